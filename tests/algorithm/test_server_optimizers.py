"""Server transforms against the NumPy twin, and as optax transformations."""

import inspect
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.algorithm.server_optimizers import adaptive_share

NAMES = ("sgd", "avgm", "adagrad", "adam", "ams")
RULES = {name: getattr(ccfl, f"cc_fed{name}") for name in NAMES}
ADAPTIVE = [RULES[rule] for rule in NAMES[2:]]
SHAPES = {"layer": {"w": (4, 3), "b": (3,)}, "head": [(50,), ()]}


def updates_of(transform, *deltas):
    """The updates that such pseudo-gradients give one after another, and the last state."""
    state, updates = transform.init(deltas[0]), []
    for delta in deltas:
        update, state = transform.update(delta, state, deltas[0])
        updates.append(update)
    return updates, state


def pseudo_gradients(rounds):
    """Values over 1e-6 to 1e2 of either sign; in every array of 3 and more the first stays zero."""
    rng = np.random.default_rng(0)

    def draw(shape):
        size = (rounds, *shape)
        value = rng.choice([-1.0, 1.0], size) * 10 ** rng.uniform(-6, 2, size)
        if math.prod(shape) >= 3:
            value.reshape(rounds, -1)[:, 0] = 0
        return value

    return jax.tree.map(draw, SHAPES, is_leaf=lambda node: isinstance(node, tuple))


def trained(transforms, deltas, dtype):
    """The parameters that each transform makes of ones."""
    deltas = jax.tree.map(lambda a: jnp.asarray(a, dtype), deltas)
    start = jax.tree.map(lambda a: jnp.ones_like(a[0]), deltas)

    def run(transform):
        def step(carry, delta):
            params, state = carry
            updates, state = transform.update(delta, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (start, transform.init(start)), deltas)[0][0]

    return jax.jit(lambda: {name: run(transform) for name, transform in transforms.items()})()


@cache
def after_500_rounds(dtype):
    with jax.enable_x64(dtype == "float64"):
        return trained({rule: RULES[rule](0.1) for rule in RULES}, pseudo_gradients(500), dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-9)])
@pytest.mark.parametrize("rule", RULES)
def test_500_rounds_equal_the_twin(rule, dtype, tolerance):
    """Within a fraction of the distance that each coordinate travels."""
    found = jax.tree.leaves(after_500_rounds(dtype)[rule])
    rows = jax.tree.leaves(pseudo_gradients(500))
    model = {k: np.ones(a.shape[1:]) for k, a in enumerate(rows)}
    state, travelled = reference.server_init(model), jax.tree.map(np.zeros_like, model)
    for t in range(500):
        delta = {k: rows[k][t] for k in model}
        before, model = model, reference.server_step(rule, model, state, delta, 0.1)
        travelled = {k: travelled[k] + abs(model[k] - before[k]) for k in model}
    for k, value in enumerate(found):
        assert value.dtype == dtype
        assert (abs(np.asarray(value, np.float64) - model[k]) <= tolerance * travelled[k]).all()


def test_fedavg_is_sgd_with_rate_one():
    (update,), _ = updates_of(ccfl.cc_fedavg(), jnp.array([0.25, -0.5]))
    np.testing.assert_array_equal(update, [-0.25, 0.5])


@pytest.mark.parametrize("rule", ["adagrad", "adam", "ams"])
def test_first_steps_by_hand(rule):
    """g = 0.5, -0.25, 0.1; lr 0.1, b1 0.9, b2 0.99, eps 1e-3."""
    deltas, expected, m, v, v_hat = [0.5, -0.25, 0.1], [], 0.0, 0.0, 0.0
    for d in deltas:
        m = 0.1 * d + 0.9 * m
        v = v + d**2 if rule == "adagrad" else 0.01 * d**2 + 0.99 * v
        v_hat = max(v_hat, v) if rule == "ams" else v
        expected.append(-0.1 * m / (v_hat**0.5 + 1e-3))
    updates, state = updates_of(RULES[rule](0.1), *map(jnp.float32, deltas))
    np.testing.assert_allclose(updates, expected, rtol=1e-6)
    assert int(optax.tree.get(state, "count")) == 3


def test_momentum_is_damped():
    """Constant g = 1, b1 = 0.9: m_t = 1 - 0.9^t, not the heavy ball's 1, 1.9, 2.71."""
    updates, _ = updates_of(ccfl.cc_fedavgm(1.0, b1=0.9), *[jnp.ones(())] * 3)
    np.testing.assert_allclose(updates, [-0.1, -0.19, -0.271], rtol=1e-6)


@pytest.mark.parametrize(("start", "step"), [(0.0, 9.0909e-3), (0.1, 3.1522e-5)])
def test_initial_accumulator_decides_the_first_adagrad_step(start, step):
    """g = 1e-4, lr 0.1, no momentum: lr g / (sqrt(start + g^2) + 1e-3)."""
    transform = ccfl.cc_fedadagrad(0.1, b1=0.0, eps=1e-3, initial_accumulator=start)
    (update,), _ = updates_of(transform, jnp.float32(1e-4))
    derived = 0.1 * 1e-4 / (np.sqrt(start + 1e-8) + 1e-3)
    assert derived == pytest.approx(step, rel=1e-4)
    assert -float(update) == pytest.approx(derived, rel=1e-5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_short_floats_keep_their_moments_in_float32(rule, dtype):
    params, delta = jnp.ones(3, dtype), jnp.array([0.0, 1e-3, 2.0], dtype)
    (update,), state = updates_of(RULES[rule](0.5), delta)
    assert {a.dtype for a in jax.tree.leaves(state)} <= {np.dtype("float32"), np.dtype("int32")}
    moved = optax.apply_updates(params, update)
    assert moved.dtype == dtype and moved[0] == 1 and jnp.isfinite(moved).all()


@pytest.mark.parametrize("method", ADAPTIVE)
def test_zero_pseudo_gradient_gives_a_zero_step(method):
    (update,), _ = updates_of(method(1.0), jnp.zeros(4))
    np.testing.assert_array_equal(update, np.zeros(4))


@pytest.mark.parametrize("rule", NAMES[1:])
def test_every_hyperparameter_may_be_traced(rule):
    usual = {"b1": 0.8, "b2": 0.95, "eps": 1e-2, "initial_accumulator": 1e-4}
    numbers = {name: usual.get(name, 0.1) for name in inspect.signature(RULES[rule]).parameters}

    def step(numbers):
        return jnp.stack(updates_of(RULES[rule](**numbers), *[jnp.array([0.3, -2.0])] * 2)[0])

    (batched,) = jax.jit(jax.vmap(step))(jax.tree.map(lambda n: jnp.array([n]), numbers))
    np.testing.assert_allclose(batched, step(numbers), rtol=1e-5)


def test_traced_hyperparameters_keep_the_state_dtype_under_x64(x64):
    def states(b1):
        transform, delta = ccfl.cc_fedams(0.1, b1=b1), jnp.ones(2, jnp.float32)
        return transform.init(delta), updates_of(transform, delta)[1]

    before, after = jax.eval_shape(states, jnp.float64(0.9))
    assert before == after


@pytest.mark.parametrize("method", RULES.values())
def test_learning_rate_schedule_counts_server_updates(method):
    """lr(c) = c + 1: update k is k + 1 times the one with rate 1."""
    deltas = [jnp.array([0.5, -0.1])] * 3
    scheduled, _ = updates_of(method(lambda count: count + 1.0), *deltas)
    plain, _ = updates_of(method(1.0), *deltas)
    np.testing.assert_allclose(scheduled, [(k + 1) * plain[k] for k in range(3)], rtol=1e-6)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_inject_hyperparams(method):
    delta, numbers = jnp.array([0.5, -0.25]), {"learning_rate": 0.1, "b1": 0.8, "eps": 1e-2}
    injected = optax.inject_hyperparams(method)(**numbers)
    update, state = injected.update(delta, injected.init(delta))
    (first, second), _ = updates_of(method(**numbers), delta, delta)
    np.testing.assert_allclose(update, first, rtol=1e-6)
    state.hyperparams["learning_rate"] = jnp.float32(0.2)
    np.testing.assert_allclose(injected.update(delta, state)[0], 2 * second, rtol=1e-6)


def test_injected_b2_stays_itself_for_bfloat16_models():
    inject = optax.inject_hyperparams(ccfl.cc_fedams, hyperparam_dtype=jnp.float32)
    _, state = updates_of(inject(learning_rate=0.1, b2=0.999), jnp.ones(2, jnp.bfloat16))
    assert float(state.hyperparams["b2"]) == pytest.approx(0.999, abs=1e-6)
    assert float(optax.tree.get(state, "nu")[0]) == pytest.approx(0.001, rel=1e-3)


def test_combines_with_optax():
    """In a chain with clipping, masked, and beside another method."""
    ams, clip = ccfl.cc_fedams(0.1), optax.clip_by_global_norm(1.0)
    both = {"body": ams, "head": ccfl.cc_fedsgd(2.0)}

    def of_ams(d):
        return updates_of(ams, jnp.array([d]))[0][0]

    for transform, body, head in (
        (optax.chain(clip, ccfl.cc_fedsgd(0.5)), [-0.3], [-0.4]),
        (optax.chain(clip, ams), of_ams(0.6), of_ams(0.8)),
        (optax.masked(ams, {"body": True, "head": False}), of_ams(3.0), [4.0]),
        (optax.multi_transform(both, {name: name for name in both}), of_ams(3.0), [-8.0]),
    ):
        (update,), _ = updates_of(transform, {"body": jnp.array([3.0]), "head": jnp.array([4.0])})
        np.testing.assert_allclose(update["body"], body, rtol=1e-6)
        np.testing.assert_allclose(update["head"], head, rtol=1e-6)


def test_ams_agrees_with_optax_amsgrad_without_bias_correction():
    uncorrected = {"bias_correction_mu": False, "bias_correction_nu": False}
    same = optax.scale_by_amsgrad(b1=0.9, b2=0.99, eps=1e-3, **uncorrected)
    servers = {"ours": ccfl.scale_by_cc_ams(), "theirs": same}
    found = trained(servers, {"w": pseudo_gradients(60)["head"][0]}, "float32")
    np.testing.assert_allclose(found["ours"]["w"], found["theirs"]["w"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "name", "value", "message"),
    [
        ("adam", "b2", 1.0, "expected a finite number >= 0 and < 1, found 1.0"),
        ("ams", "b2", -0.1, "expected a finite number >= 0 and < 1, found -0.1"),
        ("adagrad", "b1", 1.0, "expected a finite number >= 0 and < 1, found 1.0"),
        ("avgm", "b1", math.nan, "expected a finite number >= 0 and < 1, found nan"),
        ("ams", "eps", -1e-3, "expected a finite number >= 0, found -0.001"),
        ("ams", "initial_accumulator", -1.0, "expected a finite number >= 0, found -1.0"),
        ("ams", "eps", 0.0, "expected ... 1.2e-38 ..., found 0 with initial_accumulator 0"),
        ("sgd", "learning_rate", -0.1, "expected a finite number >= 0, found -0.1"),
        ("ams", "learning_rate", math.inf, "expected ..., found inf"),
    ],
)
def test_hyperparameters_outside_their_range_are_refused(rule, name, value, message):
    refused(f"{name}: {message}", RULES[rule], **({"learning_rate": 0.1} | {name: value}))


@pytest.mark.parametrize(("method", "eps"), list(zip(ADAPTIVE, (0.05, 0.005, 0.005), strict=True)))
def test_share_of_coordinates_that_adapt(method, eps):
    """After one update of 0.1, 0.01 and zeros: the roots are |d| and, for the averages, a tenth of
    that (gamma 0.99); eps lies between them. In a chain as alone; CC-FedSGD has no root."""
    delta = {"a": jnp.array([[0.1, 0.01]]), "b": jnp.zeros(2)}
    for server in (method(1.0, eps=eps), optax.chain(optax.clip(1.0), method(1.0, eps=eps))):
        assert float(adaptive_share(server.init(delta), eps)) == 0
        assert float(adaptive_share(updates_of(server, delta)[1], eps)) == 0.25
    assert np.isnan(adaptive_share(ccfl.cc_fedsgd(1.0).init(delta), eps))
