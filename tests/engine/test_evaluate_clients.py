"""Metrics of every client, in one program, of the global model or of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from quadratic_clients import RATE, B, D, N, data, descend, everybody, grad, task
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax import systems

SIZES = [0, 1, 7, 20, 3]
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 6)).astype(np.float32), RNG.integers(0, 3, 40).astype(np.int32)
LISTS = np.split(RNG.permutation(40)[: sum(SIZES)], np.cumsum(SIZES)[:-1])
CLIENTS = ccfl.FederatedData.from_indices({"x": X, "y": Y}, LISTS)
SOFTMAX = problems.softmax_task()
PARAMS = SOFTMAX.init(jax.random.key(3))


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_each_client_has_the_metrics_of_its_own_rows(batch_size):
    found = ccfl.evaluate_clients(SOFTMAX, PARAMS, CLIENTS, batch_size)
    for name, values in found.items():
        assert values.shape == (5,) and np.isnan(values[0])  # no sample, no value
        for k in range(1, 5):
            own = {"x": X[LISTS[k]], "y": Y[LISTS[k]]}
            expected = ccfl.evaluate(SOFTMAX, PARAMS, own)[name]
            np.testing.assert_allclose(values[k], expected, rtol=1e-5)


def test_clients_of_other_sizes_compile_nothing(monkeypatch):
    traced = []

    def metrics(params, batch, mask):
        traced.append(1)
        return SOFTMAX.metrics(params, batch, mask)

    counted = SOFTMAX._replace(metrics=metrics)
    ccfl.evaluate_clients(counted, PARAMS, CLIENTS, 4)
    first = len(traced)
    lists = [LISTS[k] for k in (3, 2, 0, 4, 1)]
    other = ccfl.FederatedData.from_indices({"x": X, "y": Y}, lists)
    found = ccfl.evaluate_clients(counted, PARAMS, other, 4)
    assert (
        len(traced) == first
        and np.isnan(found["loss"]).tolist() == [False] * 2 + [True] + [False] * 2
    )


def test_fine_tuning_starts_from_the_global_model_and_is_scored_for_each_client():
    """Two steps of each from x = 1: models of their own, whose errors those of NumPy are."""

    def metrics(params, batch, mask):
        error = ((params["x"][None] - batch["b"]) ** 2).sum(axis=1)
        return {"error": (jnp.where(mask, error, 0).sum(), mask.sum())}

    trained = task()._replace(init=lambda key: {"x": jnp.ones(D)}, metrics=metrics)
    server, rule = ccfl.cc_fedavg(), systems.fine_tuning()
    simulation = ccfl.simulation(trained, server, RATE, 1, "steps", "none", rule=rule)
    state, world = simulation.init(jax.random.key(0), 1, N), data(broken=False)
    state, _ = ccfl.run_rounds(simulation.round, state, everybody(1, 2), world)
    np.testing.assert_array_equal(state.params["x"], np.ones(D))
    own = [descend(np.ones(D), 2, lambda y, i=i: grad(i, y)) for i in range(N)]
    np.testing.assert_allclose(state.clients["x"], own, rtol=1e-5)
    found = ccfl.evaluate_clients(
        trained, state.params, world, own=lambda params, memory: memory, memories=state.clients
    )
    expected = ((np.array(own) - B) ** 2).sum(axis=1)
    np.testing.assert_allclose(found["error"], expected, rtol=1e-4)
    plain = ccfl.evaluate_clients(trained, state.params, world)["error"]
    assert (found["error"] < plain).all()


@pytest.mark.parametrize("clients", [1, 10, 11, 40])
def test_fairness_is_mean_worst_decile_and_variance_over_clients_with_a_score(clients):
    """Of 11 clients the worst decile is two of them."""
    scores = np.random.default_rng(clients).uniform(size=clients)
    found = ccfl.fairness(np.insert(scores, clients // 2, np.nan))
    worst = sorted(scores)[: {1: 1, 10: 1, 11: 2, 40: 4}[clients]]
    mean = sum(scores) / clients
    expected = mean, sum(worst) / len(worst), sum((one - mean) ** 2 for one in scores) / clients
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert all(type(value) is float for value in found)


def test_fairness_of_nobody_is_nan_and_of_a_table_refused():
    assert np.isnan(ccfl.fairness([np.nan])).all()
    refused(
        "scores: expected numbers [clients], found float64 (2, 3)", ccfl.fairness, np.zeros((2, 3))
    )


def test_what_cannot_be_scored_is_refused_and_a_model_that_is_not_finite_has_no_score():
    message = "memories: expected 5 rows, one for each client, found 4"
    refused(message, ccfl.evaluate_clients, SOFTMAX, PARAMS, CLIENTS, memories=jnp.zeros(4))
    message = "batch_size: expected an integer >= 1, found 0"
    refused(message, ccfl.evaluate_clients, SOFTMAX, PARAMS, CLIENTS, 0)
    refused("data: expected ccfl.FederatedData, found 3", ccfl.evaluate_clients, SOFTMAX, PARAMS, 3)
    broken = jax.tree.map(lambda a: a * jnp.nan, PARAMS)
    found = ccfl.evaluate_clients(SOFTMAX, broken, CLIENTS)
    assert all(np.isnan(values).all() for values in found.values())
