"""Models of one's own: leaves that stay with their client, and Ditto's second model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratic_clients import (
    BROKEN,
    DELAY,
    RATE,
    X0,
    B,
    D,
    N,
    busy,
    data,
    delta,
    descend,
    everybody,
    grad,
    task,
    twin,
)
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax import systems
from ccfl_jax.systems.personal import Both


def two_parts():
    """f_i(body + head), the loss of quadratic clients at the sum of the model's two leaves."""

    def loss(params, *batch):
        return task().loss({"x": params["body"] + params["head"]}, *batch)

    def init(key):
        return {"body": jnp.zeros(D), "head": jnp.zeros(D)}

    return ccfl.Task(init, loss, lambda params, batch, mask: {})


def head(path):
    return path == "['head']"


def train(problem, rule, schedule, broken=True, rate=RATE):
    simulation = ccfl.simulation(
        problem, ccfl.cc_fedavg(), rate, 1, "steps", "none", lanes=2, rule=rule
    )
    state = simulation.init(jax.random.key(0), DELAY + 1, N)
    return ccfl.run_rounds(simulation.round, state, schedule, data(broken))


def test_own_leaves_never_leave_their_client_and_each_reaches_its_optimum():
    state, _ = train(two_parts(), systems.personal(head), everybody(200, 3), False, 0.3)
    assert not state.params["head"].any() and not state.history.models["head"].any()
    (heads,) = state.clients
    assert state.params["body"].any() and len(np.unique(heads[:, 0])) == N
    np.testing.assert_allclose(state.params["body"][None] + heads, B, atol=1e-5)


def test_personal_leaves_against_numpy():
    """FedPer: stale bodies, heads of the last counted visit, whoever else comes."""
    schedule, heads = busy(), np.zeros((N, D))

    def visit(t, bodies, i, s, k, last):
        both = descend(np.stack([bodies[t - s], heads[i]]), k, lambda y: _slope(i, y))
        return bodies[t - s] - both[0], both[1]

    def step(t, body, uploads, who):
        for (_, own), (i, *_, last) in zip(uploads, who, strict=True):
            if last:
                heads[i] = own
        return body - np.mean([upload for upload, _ in uploads], axis=0)

    bodies = twin(schedule, visit, step, first=np.zeros(D))
    for wide, tolerance in ((True, 1e-9), (False, 1e-5)):
        with jax.enable_x64(wide):
            state, info = train(two_parts(), systems.personal(head), schedule)
        np.testing.assert_allclose(state.params["body"], bodies[-1], atol=tolerance)
        np.testing.assert_allclose(state.clients[0], heads, atol=tolerance)
        assert not state.params["head"].any() and not state.clients[0][BROKEN].any()
        assert info.rejected.sum() > 0


def _slope(i, both):
    """The gradient of f_i(body + head) for either part."""
    return np.tile(grad(i, both.sum(axis=0)), (2, 1))


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_ditto(weight):
    schedule, own = busy(), np.tile(X0, (N, 1))

    def visit(t, xs, i, s, k, last):
        x = xs[t - s]
        v = descend(own[i], k, lambda v: grad(i, v) + weight * (v - x))
        return delta(xs, t, i, s, k), v

    def step(t, x, uploads, who):
        for (_, v), (i, *_, last) in zip(uploads, who, strict=True):
            if last:
                own[i] = v
        return x - np.mean([upload for upload, _ in uploads], axis=0)

    xs = twin(schedule, visit, step)
    for wide, tolerance in ((True, 1e-9), (False, 1e-5)):
        with jax.enable_x64(wide):
            both, rule = systems.ditto(task(), weight)
            state, info = train(both, rule, schedule)
        np.testing.assert_allclose(state.params.shared["x"], xs[-1], atol=tolerance)
        np.testing.assert_allclose(state.clients[0], own, atol=tolerance)
        np.testing.assert_array_equal(state.params.own["x"], X0)
        np.testing.assert_array_equal(state.clients[0][BROKEN], X0)
        assert np.abs(own - X0).max() > 0.1 and info.rejected.sum() > 0


def test_the_global_model_of_ditto_is_that_of_the_round_alone():
    schedule = busy()
    both, rule = systems.ditto(task(), 0.7)
    (state, info), (alone, same) = train(both, rule, schedule), train(task(), None, schedule)
    np.testing.assert_allclose(state.params.shared["x"], alone.params["x"], rtol=1e-6)
    np.testing.assert_array_equal(info.counted, same.counted)


def test_ditto_scores_the_global_model():
    def metrics(params, batch, mask):
        return {"first": (params["x"][0] * mask.sum(), mask.sum())}

    both, _ = systems.ditto(task()._replace(metrics=metrics))
    models = Both({"x": jnp.full(D, 2.0)}, {"x": jnp.ones(D)})
    assert ccfl.evaluate(both, models, data(False).arrays) == {"first": 2.0}


def test_what_has_no_own_leaf_or_a_negative_weight_is_refused():
    simulation = ccfl.simulation(
        two_parts(), ccfl.cc_fedavg(), rule=systems.personal(lambda path: "tail" in path)
    )
    message = "own: expected one of ['body'], ['head'] at least, found none"
    refused(message, simulation.init, jax.random.key(0), 1, N)
    refused("weight: expected a finite number >= 0, found -1.0", systems.ditto, task(), -1.0)
    refused("own: expected a function of a leaf's path, found 'head'", systems.personal, "head")
    for method in (systems.ditto, systems.fedper, systems.lg_fedavg, systems.model_layers):
        refused("task: expected a ccfl.Task, found 3", method, 3)


@pytest.mark.parametrize("jitted", [False, True])
def test_layers_are_in_the_order_in_which_the_model_makes_them(jitted):
    """And not in that of their names; a layer comes where its first array is made."""

    def init(key):
        stem = {"w": jax.random.normal(key, (2,))}
        deep = {"w": jax.random.normal(key, (3,)), "b": jnp.zeros(3)}
        return {"head": jnp.ones(4) * deep["w"].sum(), "deep": deep, "stem": stem}

    made = task()._replace(init=jax.jit(init) if jitted else init)
    assert systems.model_layers(made) == ["['stem']", "['deep']", "['head']"]
    params = init(jax.random.key(0))
    last, first = systems.fedper(made, 2), systems.lg_fedavg(made)
    assert [a.shape for a in last.memory(params)] == [(3,), (3,), (4,)]
    assert [a.shape for a in first.memory(params)] == [(2,)]
    message = "layers: expected fewer than the 3 of the model, ['stem'], ['deep'], ['head'], found "
    for rule in (systems.fedper, systems.lg_fedavg):
        refused(message + "3", rule, made, 3)
        refused("layers: expected an integer >= 1, found 0", rule, made, 0)


def test_a_layer_whose_name_begins_as_another_is_its_own():
    init = lambda key: {"d1": jnp.zeros(1), "d10": jnp.ones(2)}  # noqa: E731
    rule = systems.lg_fedavg(task()._replace(init=init))
    assert [a.shape for a in rule.memory(init(None))] == [(1,)]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_clients_own_model_is_the_shared_part_with_its_memory(wrapped):
    rule = systems.personal(head)
    params = {"body": jnp.arange(3.0), "head": jnp.zeros(2)}
    memory = [jnp.array([5.0, 6.0])]
    if wrapped:
        sending = ccfl.terms.sending(systems.top_k(0.5), rule)
        rule, memory = ccfl.terms.weighted(ccfl.terms.by_samples, sending), (memory, ())
    own = systems.own_model(rule)(params, memory)
    assert own["body"].tolist() == [0, 1, 2] and own["head"].tolist() == [5, 6]


def test_the_own_model_of_ditto_is_scored_in_the_place_of_the_shared_one():
    def metrics(params, batch, mask):
        return {"first": (params["x"][0] * mask.sum(), mask.sum())}

    both, rule = systems.ditto(task()._replace(metrics=metrics))
    models = Both({"x": jnp.full(D, 2.0)}, {"x": jnp.ones(D)})
    memories = [jnp.arange(N * D, dtype=float).reshape(N, D)]
    own = systems.own_model(rule)
    found = ccfl.evaluate_clients(both, models, data(False), own=own, memories=memories)
    assert found["first"].tolist() == (np.arange(N) * D).tolist()
