"""Server transforms against the NumPy twin, and their behaviour as optax transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference

import ccfl_jax as ccfl
from ccfl_jax.algorithm.server_optimizers import adaptive_share

RULES = {
    "sgd": lambda lr: ccfl.cc_fedsgd(lr),
    "avgm": lambda lr: ccfl.cc_fedavgm(lr),
    "adagrad": lambda lr: ccfl.cc_fedadagrad(lr),
    "adam": lambda lr: ccfl.cc_fedadam(lr),
    "ams": lambda lr: ccfl.cc_fedams(lr),
}
SHAPES = {
    "scalar": {"w": ()},
    "vector": {"w": (50,)},
    "nested": {"layer": {"w": (4, 3), "b": (3,)}, "head": [(5,), ()]},
}


def is_shape(x):
    return isinstance(x, tuple)


def pseudo_gradients(shapes, rounds, seed=0):
    """Values over 1e-6 to 1e2 of either sign; in every array of 3 and more the first stays zero."""
    rng = np.random.default_rng(seed)

    def draw(shape):
        size = (rounds, *shape)
        value = rng.choice([-1.0, 1.0], size) * 10 ** rng.uniform(-6, 2, size)
        if np.prod(shape, dtype=int) >= 3:
            value.reshape(rounds, -1)[:, 0] = 0
        return value

    return jax.tree.map(draw, shapes, is_leaf=is_shape)


def run(transform, start, deltas, dtype):
    params = jax.tree.map(lambda a: jnp.asarray(a, dtype), start)

    def step(carry, delta):
        params, state = carry
        updates, state = transform.update(delta, state, params)
        return (optax.apply_updates(params, updates), state), None

    deltas = jax.tree.map(lambda a: jnp.asarray(a, dtype), deltas)
    (params, state), _ = jax.jit(lambda c, d: jax.lax.scan(step, c, d))(
        (params, transform.init(params)), deltas
    )
    return params, state


def twin(rule, start, deltas, lr):
    """The twin over flattened leaves, float64; also the distance each coordinate travelled."""
    leaves, structure = jax.tree.flatten(start)
    model = {k: np.asarray(leaf, np.float64) for k, leaf in enumerate(leaves)}
    rows = jax.tree.leaves(deltas)
    state = reference.server_init(model)
    travelled = {k: np.zeros_like(v) for k, v in model.items()}
    for t in range(len(rows[0])):
        delta = {k: rows[k][t] for k in model}
        following = reference.server_step(rule, model, state, delta, lr)
        travelled = {k: travelled[k] + abs(following[k] - model[k]) for k in model}
        model = following
    return structure.unflatten(list(model.values())), structure.unflatten(list(travelled.values()))


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("rule", RULES)
def test_500_rounds_equal_the_twin(rule, shapes):
    deltas = pseudo_gradients(SHAPES[shapes], 500)
    start = jax.tree.map(lambda s: np.ones(s), SHAPES[shapes], is_leaf=is_shape)
    expected, travelled = twin(rule, start, deltas, lr=0.1)
    params, _ = run(RULES[rule](0.1), start, deltas, jnp.float32)
    for p, e, d in zip(*map(jax.tree.leaves, (params, expected, travelled)), strict=True):
        assert (abs(np.asarray(p, np.float64) - e) <= 1e-4 * d).all()


@pytest.mark.parametrize("rule", RULES)
def test_500_rounds_equal_the_twin_in_float64(rule, x64):
    deltas = pseudo_gradients(SHAPES["nested"], 500, seed=1)
    start = jax.tree.map(lambda s: np.ones(s), SHAPES["nested"], is_leaf=is_shape)
    expected, travelled = twin(rule, start, deltas, lr=0.1)
    params, _ = run(RULES[rule](0.1), start, deltas, jnp.float64)
    for p, e, d in zip(*map(jax.tree.leaves, (params, expected, travelled)), strict=True):
        assert p.dtype == jnp.float64
        assert (abs(np.asarray(p) - e) <= 1e-9 * d).all()


def test_fedavg_is_sgd_with_rate_one():
    params = {"w": jnp.array([1.0, 2.0])}
    transform = ccfl.cc_fedavg()
    updates, _ = transform.update({"w": jnp.array([0.25, -0.5])}, transform.init(params), params)
    np.testing.assert_array_equal(optax.apply_updates(params, updates)["w"], [0.75, 2.5])


def test_first_steps_by_hand():
    """g = 0.5, -0.25, 0.1 from x = 1, lr 0.1, b1 0.9, b2 0.99, eps 1e-3."""
    g = [0.5, -0.25, 0.1]
    for rule in ("adagrad", "adam", "ams"):
        m = v = v_hat = 0.0
        x = 1.0
        for d in g:
            m = 0.1 * d + 0.9 * m
            v = v + d**2 if rule == "adagrad" else 0.01 * d**2 + 0.99 * v
            v_hat = max(v_hat, v) if rule == "ams" else v
            x -= 0.1 * m / (v_hat**0.5 + 1e-3)
        params, state = run(RULES[rule](0.1), {"x": 1.0}, {"x": np.array(g)}, jnp.float32)
        assert float(params["x"]) == pytest.approx(x, rel=1e-6)
        assert int(optax.tree.get(state, "count")) == 3


@pytest.mark.parametrize(
    ("steps", "expected"), [(1, [0.1]), (3, [0.1, 0.19, 0.271])], ids=["first", "three"]
)
def test_momentum_is_damped(steps, expected):
    """Constant g = 1, b1 = 0.9: m_t = 1 - 0.9^t, not the heavy ball's 1, 1.9, 2.71."""
    transform = ccfl.cc_fedavgm(1.0, b1=0.9)
    state = transform.init(jnp.zeros(()))
    for k in range(steps):
        update, state = transform.update(jnp.ones(()), state)
        assert float(update) == pytest.approx(-expected[k], rel=1e-6)


@pytest.mark.parametrize(("start", "step"), [(0.0, 9.0909e-3), (0.1, 3.1522e-5)])
def test_initial_accumulator_decides_the_first_adagrad_step(start, step):
    """g = 1e-4, lr 0.1, no momentum: lr g / (sqrt(start + g^2) + 1e-3)."""
    transform = ccfl.cc_fedadagrad(0.1, b1=0.0, eps=1e-3, initial_accumulator=start)
    update, _ = transform.update(jnp.float32(1e-4), transform.init(jnp.zeros(())))
    derived = 0.1 * 1e-4 / (np.sqrt(start + 1e-8) + 1e-3)
    assert derived == pytest.approx(step, rel=1e-4)
    assert -float(update) == pytest.approx(derived, rel=1e-5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_short_floats_keep_their_moments_in_float32(rule, dtype):
    params = {"w": jnp.ones(3, dtype)}
    transform = RULES[rule](0.5)
    state = transform.init(params)
    updates, state = transform.update({"w": jnp.array([0.0, 1e-3, 2.0], dtype)}, state, params)
    floats = [a for a in jax.tree.leaves(state) if jnp.issubdtype(a.dtype, jnp.floating)]
    assert all(a.dtype == jnp.float32 for a in floats)
    moved = optax.apply_updates(params, updates)["w"]
    assert moved.dtype == dtype
    assert moved[0] == 1 and jnp.isfinite(moved).all()


@pytest.mark.parametrize("rule", ["adagrad", "adam", "ams"])
def test_zero_pseudo_gradient_gives_a_zero_step(rule):
    transform = RULES[rule](1.0)
    update, _ = transform.update(jnp.zeros(4), transform.init(jnp.zeros(4)))
    np.testing.assert_array_equal(update, np.zeros(4))


def test_every_hyperparameter_may_be_traced():
    delta = jnp.array([0.3, -2.0])

    def step(lr, b1, b2, eps, accumulator):
        transform = ccfl.cc_fedams(lr, b1, b2, eps, accumulator)
        state = transform.init(delta)
        for _ in range(3):
            update, state = transform.update(delta, state)
        return update

    settings = (0.1, 0.8, 0.95, 1e-2, 1e-4)
    concrete = step(*settings)
    np.testing.assert_allclose(jax.jit(step)(*settings), concrete, rtol=1e-5)
    batched = jax.vmap(step)(*(jnp.array([s, s]) for s in settings))
    np.testing.assert_allclose(batched, np.stack([concrete] * 2), rtol=1e-5)

    def adagrad(lr, b1, eps, accumulator):
        transform = ccfl.cc_fedadagrad(lr, b1, eps, accumulator)
        return transform.update(delta, transform.init(delta))[0]

    def adam(lr, b1, b2, eps, accumulator):
        transform = ccfl.cc_fedadam(lr, b1, b2, eps, accumulator)
        return transform.update(delta, transform.init(delta))[0]

    np.testing.assert_allclose(
        jax.jit(adagrad)(0.1, 0.8, 1e-2, 1e-4), adagrad(0.1, 0.8, 1e-2, 1e-4), rtol=1e-5
    )
    np.testing.assert_allclose(jax.jit(adam)(*settings), adam(*settings), rtol=1e-5)
    avgm = lambda lr, b1: ccfl.cc_fedavgm(lr, b1)  # noqa: E731
    traced = jax.jit(lambda lr, b1: avgm(lr, b1).update(delta, avgm(lr, b1).init(delta))[0])
    np.testing.assert_allclose(traced(0.1, 0.9), -0.1 * 0.1 * delta, rtol=1e-5)


def test_traced_hyperparameters_keep_the_state_dtype_under_x64(x64):
    delta = jnp.ones(2, jnp.float32)

    def step(b1):
        transform = ccfl.cc_fedams(0.1, b1=b1)
        state = transform.init(delta)
        return jax.tree.map(lambda a: a.dtype, (state, transform.update(delta, state)[1]))

    dtypes = []
    jax.eval_shape(lambda b1: dtypes.append(step(b1)), jnp.float64(0.9))
    before, after = dtypes[0]
    assert jax.tree.leaves(before) == jax.tree.leaves(after)


@pytest.mark.parametrize("rule", RULES)
def test_learning_rate_schedule_counts_server_updates(rule):
    """lr(c) = c + 1: update k is k + 1 times the one with rate 1."""
    delta = jnp.array([0.5, -0.1])
    scheduled, constant = RULES[rule](lambda c: c + 1.0), RULES[rule](1.0)
    state, plain_state = scheduled.init(delta), constant.init(delta)
    for k in range(3):
        update, state = scheduled.update(delta, state)
        plain, plain_state = constant.update(delta, plain_state)
        np.testing.assert_allclose(update, (k + 1) * plain, rtol=1e-6)


def test_chains_with_clipping():
    delta = {"w": jnp.array([3.0, 4.0])}
    clipped = optax.chain(optax.clip_by_global_norm(1.0), ccfl.cc_fedsgd(0.5))
    update, _ = clipped.update(delta, clipped.init(delta))
    np.testing.assert_allclose(update["w"], [-0.3, -0.4], rtol=1e-6)
    adaptive = optax.chain(optax.clip_by_global_norm(1.0), ccfl.cc_fedams(0.5))
    update, _ = adaptive.update(delta, adaptive.init(delta))
    alone = ccfl.cc_fedams(0.5)
    by_hand, _ = alone.update({"w": jnp.array([0.6, 0.8])}, alone.init(delta))
    np.testing.assert_allclose(update["w"], by_hand["w"], rtol=1e-6)


@pytest.mark.parametrize("method", [ccfl.cc_fedadagrad, ccfl.cc_fedadam, ccfl.cc_fedams])
def test_inject_hyperparams(method):
    delta = jnp.array([0.5, -0.25])
    injected = optax.inject_hyperparams(method)(learning_rate=0.1, b1=0.8, eps=1e-2)
    state = injected.init(delta)
    update, state = injected.update(delta, state)
    plain = method(learning_rate=0.1, b1=0.8, eps=1e-2)
    expected, plain_state = plain.update(delta, plain.init(delta))
    np.testing.assert_allclose(update, expected, rtol=1e-6)
    state.hyperparams["learning_rate"] = jnp.float32(0.2)
    doubled, _ = injected.update(delta, state)
    expected, _ = plain.update(delta, plain_state)
    np.testing.assert_allclose(doubled, 2 * expected, rtol=1e-6)


def test_injected_b2_stays_itself_for_bfloat16_models():
    params = jnp.ones(2, jnp.bfloat16)
    injected = optax.inject_hyperparams(ccfl.cc_fedams, hyperparam_dtype=jnp.float32)(
        learning_rate=0.1, b2=0.999
    )
    state = injected.init(params)
    assert float(state.hyperparams["b2"]) == pytest.approx(0.999, abs=1e-6)
    _, state = injected.update(jnp.ones(2, jnp.bfloat16), state)
    assert float(optax.tree.get(state, "nu")[0]) == pytest.approx(0.001, rel=1e-3)


@pytest.mark.parametrize("method", [ccfl.cc_fedadagrad, ccfl.cc_fedadam, ccfl.cc_fedams])
def test_masked_and_multi_transform(method):
    delta = {"body": jnp.array([0.5]), "head": jnp.array([0.25])}
    alone = method(0.1)
    expected, _ = alone.update(delta["body"], alone.init(delta["body"]))

    masked = optax.masked(method(0.1), {"body": True, "head": False})
    update, _ = masked.update(delta, masked.init(delta))
    np.testing.assert_allclose(update["body"], expected, rtol=1e-6)
    np.testing.assert_array_equal(update["head"], delta["head"])

    both = optax.multi_transform(
        {"adaptive": method(0.1), "plain": ccfl.cc_fedsgd(2.0)},
        {"body": "adaptive", "head": "plain"},
    )
    update, _ = both.update(delta, both.init(delta))
    np.testing.assert_allclose(update["body"], expected, rtol=1e-6)
    np.testing.assert_allclose(update["head"], [-0.5], rtol=1e-6)


def test_ams_agrees_with_optax_amsgrad_without_bias_correction():
    deltas = pseudo_gradients({"w": (20,)}, 60)
    ours, _ = run(ccfl.scale_by_cc_ams(), {"w": np.zeros(20)}, deltas, jnp.float32)
    same = optax.scale_by_amsgrad(
        b1=0.9, b2=0.99, eps=1e-3, bias_correction_mu=False, bias_correction_nu=False
    )
    theirs, _ = run(same, {"w": np.zeros(20)}, deltas, jnp.float32)
    np.testing.assert_allclose(ours["w"], theirs["w"], rtol=1e-4, atol=1e-5)


def test_optax_adam_is_another_algorithm_by_its_bias_correction():
    """Bias-corrected, the first step is lr g / (|g| + eps); the paper's is lr (1-b1) g / (...)."""
    g = jnp.array([0.5])
    ours, theirs = ccfl.cc_fedadam(1.0, eps=1e-3), optax.adam(1.0, 0.9, 0.99, eps=1e-3)
    our_step = ours.update(g, ours.init(g))[0]
    their_step = theirs.update(g, theirs.init(g))[0]
    assert float(our_step[0]) == pytest.approx(-0.1 * 0.5 / (np.sqrt(0.01) * 0.5 + 1e-3), rel=1e-5)
    assert float(their_step[0]) == pytest.approx(-0.5 / (0.5 + 1e-3), rel=1e-5)


def test_adam_equals_optax_adam_with_rates_that_undo_the_correction():
    """The paper's step is optax's with eps_t = eps/sqrt(1-g^t), lr_t = lr(1-b^t)/sqrt(1-g^t)."""
    rng = np.random.default_rng(3)
    ours = ccfl.cc_fedadam(0.1)
    state, theirs_state = ours.init(jnp.zeros(8)), optax.adam(1.0).init(jnp.zeros(8))
    for t in range(1, 31):
        g = jnp.asarray(rng.normal(size=8) * 1e-2, jnp.float32)
        root = np.sqrt(1 - 0.99**t)
        update, state = ours.update(g, state)
        theirs = optax.adam(0.1 * (1 - 0.9**t) / root, 0.9, 0.99, eps=1e-3 / root)
        expected, theirs_state = theirs.update(g, theirs_state)
        np.testing.assert_allclose(update, expected, rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ccfl.cc_fedadam(0.1, b2=1.0), "b2: expected 0 <= b2 < 1.0, found 1.0"),
        (lambda: ccfl.cc_fedams(0.1, b2=-0.1), "b2: found -0.1"),
        (lambda: ccfl.cc_fedadagrad(0.1, b1=1.0), "b1: found 1.0"),
        (lambda: ccfl.cc_fedavgm(0.1, b1=float("nan")), "b1: found nan"),
        (lambda: ccfl.cc_fedams(0.1, eps=-1e-3), "eps: expected 0 <= eps < inf, found -0.001"),
        (lambda: ccfl.cc_fedams(0.1, initial_accumulator=-1.0), "initial_accumulator: found -1.0"),
        (lambda: ccfl.cc_fedams(0.1, eps=0.0), "eps: found 0 with initial_accumulator 0, legal"),
        (lambda: ccfl.cc_fedsgd(-0.1), "learning_rate: found -0.1"),
        (lambda: ccfl.cc_fedams(float("inf")), "learning_rate: found inf"),
    ],
)
def test_hyperparameters_outside_their_range_are_refused(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("server", [ccfl.cc_fedadagrad, ccfl.cc_fedadam, ccfl.cc_fedams])
def test_share_of_coordinates_that_adapt(server):
    """After one update of 0.1, 0.01 and zeros: the roots are |d| and, for the averages, a tenth of
    that (gamma 0.99); eps lies between them. In a chain as alone."""
    delta = {"a": jnp.array([[0.1, 0.01]]), "b": jnp.zeros(2)}
    eps = 0.05 if server is ccfl.cc_fedadagrad else 0.005
    for method in (server(1.0, eps=eps), optax.chain(optax.clip(1.0), server(1.0, eps=eps))):
        state = method.init(delta)
        assert float(adaptive_share(state, eps)) == 0
        _, state = method.update(delta, state, delta)
        assert float(adaptive_share(state, eps)) == 0.25


def test_a_method_without_accumulator_has_no_such_share():
    params = {"a": jnp.zeros(3)}
    assert np.isnan(adaptive_share(ccfl.cc_fedsgd(1.0).init(params), 0.1))
