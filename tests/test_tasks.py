"""classification_task: losses and metrics by hand, padding, scaling, refusals."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import ccfl_jax as ccfl
from ccfl_jax.models import CNN, MLP, Logistic, ResNet20


class Plain(nn.Module):
    classes: int = 3

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(x.reshape(x.shape[0], -1))


class Normed(nn.Module):
    """Divides by the norm of its input: the derivative at zero does not exist."""

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        return nn.Dense(3)(x / jnp.linalg.norm(x, axis=-1, keepdims=True))


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(x))


class WithBatchNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False)(nn.Dense(3)(x))


class NnxPlain(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(4, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.dropout(x))


class NnxBatchNorm(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


def batch_of(rows=5, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": jnp.asarray(rng.normal(size=(rows, 4)), jnp.float32),
        "y": jnp.asarray(rng.integers(0, 3, rows), jnp.int32),
    }


def test_loss_and_metrics_by_hand():
    task = ccfl.classification_task(Plain(), (4,), 3)
    params, batch = task.init(jax.random.key(0)), batch_of()
    mask = jnp.array([True, True, False, True, False])
    dense = jax.tree.map(lambda a: np.asarray(a, np.float64), params["Dense_0"])
    logits = np.asarray(batch["x"], np.float64) @ dense["kernel"] + dense["bias"]
    y, real = np.asarray(batch["y"]), np.asarray(mask)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(5), y]
    assert float(task.loss(params, batch, mask, jax.random.key(1))) == pytest.approx(
        losses[real].mean(), rel=1e-5
    )
    metrics = task.metrics(params, batch, mask)
    assert float(metrics["loss"][0]) == pytest.approx(losses[real].sum(), rel=1e-5)
    assert float(metrics["accuracy"][0]) == (logits.argmax(1) == y)[real].sum()
    assert int(metrics["loss"][1]) == int(metrics["accuracy"][1]) == 3


@pytest.mark.parametrize("model", [Plain(), Normed()], ids=["plain", "norm"])
@pytest.mark.parametrize("junk", [np.nan, np.inf, 0.0, 1e30])
def test_padded_rows_change_no_bit(model, junk):
    task = ccfl.classification_task(model, (4,), 3)
    params, batch = task.init(jax.random.key(0)), batch_of()
    mask = jnp.array([False, True, True, False, True])
    dirty = {
        "x": jnp.where(mask[:, None], batch["x"], junk),
        "y": jnp.where(mask, batch["y"], -12345),
    }
    both = jax.jit(jax.value_and_grad(task.loss))
    clean, found = (both(params, b, mask, jax.random.key(1)) for b in (batch, dirty))
    for a, b in zip(*map(jax.tree.leaves, (clean, found)), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(a, b)
    clean, found = (task.metrics(params, b, mask) for b in (batch, dirty))
    for a, b in zip(*map(jax.tree.leaves, (clean, found)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_of_padding_has_loss_zero_and_a_finite_gradient():
    task = ccfl.classification_task(Plain(), (4,), 3)
    params = task.init(jax.random.key(0))
    batch = {"x": jnp.full((2, 4), jnp.nan), "y": jnp.array([7, -1])}
    loss, gradient = jax.value_and_grad(task.loss)(params, batch, jnp.zeros(2, bool), None)
    assert float(loss) == 0
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))


def test_bytes_are_scaled_once_and_floats_never():
    task = ccfl.classification_task(Plain(), (4,), 3)
    params = task.init(jax.random.key(0))
    raw = np.random.default_rng(0).integers(0, 256, (5, 4)).astype(np.uint8)
    raw[0, 0], raw[1, 1] = 0, 255
    y, mask = jnp.zeros(5, jnp.int32), jnp.ones(5, bool)
    from_bytes = task.loss(params, {"x": jnp.asarray(raw), "y": y}, mask, jax.random.key(0))
    scaled = jnp.asarray(raw / 255, jnp.float32)
    from_floats = task.loss(params, {"x": scaled, "y": y}, mask, jax.random.key(0))
    assert float(from_bytes) == pytest.approx(float(from_floats), rel=1e-6)


@pytest.mark.parametrize("label", [3, -1, 2**31 - 1])
def test_an_illegal_label_is_never_taken_for_another(label):
    task = ccfl.classification_task(Plain(), (4,), 3)
    params, batch = task.init(jax.random.key(0)), batch_of()
    batch["y"] = batch["y"].at[2].set(label)
    assert jnp.isnan(task.loss(params, batch, jnp.ones(5, bool), jax.random.key(0)))
    assert np.isnan(ccfl.evaluate(task, params, batch, 5)["loss"])


def test_a_model_of_nans_has_no_accuracy():
    task = ccfl.classification_task(Plain(), (4,), 3)
    params = jax.tree.map(lambda a: a * jnp.nan, task.init(jax.random.key(0)))
    found = ccfl.evaluate(task, params, {"x": np.ones((6, 4)), "y": np.zeros(6, int)}, 4)
    assert np.isnan(found["loss"]) and np.isnan(found["accuracy"])


def test_ties_go_to_the_first_class():
    task = ccfl.classification_task(Plain(10), (4,), 10)
    params = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
    arrays = {"x": np.ones((1000, 4), np.float32), "y": np.arange(1000) % 10}
    assert ccfl.evaluate(task, params, arrays, 300)["accuracy"] == 0.1


def test_dropout_follows_the_key_in_training_only():
    for model in (Dropping(), NnxPlain):
        task = ccfl.classification_task(model, (4,), 3)
        params, batch, mask = task.init(jax.random.key(0)), batch_of(), jnp.ones(5, bool)
        losses = [float(task.loss(params, batch, mask, jax.random.key(k))) for k in (0, 0, 1)]
        assert losses[0] == losses[1] != losses[2]
        first, second = (task.metrics(params, batch, mask)["loss"][0] for _ in range(2))
        assert first == second


def test_nnx_modules_and_factories():
    batch, mask = batch_of(), jnp.ones(5, bool)
    made = ccfl.classification_task(NnxPlain, (4,), 3)
    first, same, other = (made.init(jax.random.key(k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(first["dense"]["kernel"], same["dense"]["kernel"])
    assert (first["dense"]["kernel"] != other["dense"]["kernel"]).any()
    logits = batch["x"] @ first["dense"]["kernel"] + first["dense"]["bias"][None]
    losses = jax.nn.logsumexp(logits, axis=1) - logits[jnp.arange(5), batch["y"]]
    found = made.metrics(first, batch, mask)["loss"][0]
    assert float(found) == pytest.approx(float(losses.sum()), rel=1e-5)

    module = NnxPlain(nnx.Rngs(7))
    given = ccfl.classification_task(module, (4,), 3)
    for k in (0, 1):
        np.testing.assert_array_equal(
            given.init(jax.random.key(k))["dense"]["kernel"], module.dense.kernel[...]
        )
    batched = jax.vmap(given.loss, (None, None, None, 0))(
        given.init(None), batch, mask, jax.random.split(jax.random.key(0), 2)
    )
    assert batched.shape == (2,)


@pytest.mark.parametrize("model", [WithBatchNorm(), NnxBatchNorm])
def test_batch_statistics_are_refused_with_the_cure(model):
    with pytest.raises(ValueError, match=r"model: found .*(batch_stats|BatchStat).*GroupNorm"):
        ccfl.classification_task(model, (4,), 3)


def test_wrong_width_is_refused():
    with pytest.raises(ValueError, match=r"model: found output \(2, 3\), legal: \(2, 10\)"):
        ccfl.classification_task(Plain(), (4,), 10)


@pytest.mark.parametrize("model", [Plain(), NnxPlain, Dropping()], ids=["linen", "nnx", "drops"])
def test_loss_and_metrics_of_one_pass_are_those_of_two(model):
    """Where dropout makes training and evaluation two passes there is none."""
    task = ccfl.classification_task(model, (4,), 3)
    if model is not NnxPlain and isinstance(model, Plain):
        params, batch, mask = task.init(jax.random.key(0)), batch_of(), jnp.arange(5) < 3
        key = jax.random.key(1)
        loss, metrics = jax.jit(task.observe)(params, batch, mask, key)
        assert float(loss) == pytest.approx(float(task.loss(params, batch, mask, key)), rel=1e-6)
        expected = task.metrics(params, batch, mask)
        for a, b in zip(jax.tree.leaves(metrics), jax.tree.leaves(expected), strict=True):
            assert float(a) == pytest.approx(float(b), rel=1e-6)
    else:
        assert task.observe is None


@pytest.mark.parametrize(
    ("model", "shape"),
    [(CNN(), (28, 28, 1)), (ResNet20(), (32, 32, 3)), (MLP((8,), 10), (4,)), (Logistic(10), (4,))],
    ids=["cnn", "resnet20", "mlp", "logistic"],
)
def test_our_models_need_one_pass(model, shape):
    assert ccfl.classification_task(model, shape, 10).observe is not None


def rounded(a):
    return np.asarray(jnp.asarray(a).astype(jnp.bfloat16).astype(jnp.float32), np.float64)


@pytest.mark.parametrize("model", [Plain(), NnxPlain], ids=["linen", "nnx"])
def test_bfloat16_rounds_what_the_model_sees_and_nothing_else(model):
    """The expected loss has rounded weights and inputs; logits carry the rounding of bfloat16."""
    task = ccfl.classification_task(model, (4,), 3, compute_dtype=jnp.bfloat16)
    exact = ccfl.classification_task(model, (4,), 3)
    params, batch, mask = task.init(jax.random.key(0)), batch_of(), jnp.ones(5, bool)
    dense = next(iter(params.values()))
    assert dense["kernel"].dtype == jnp.float32

    logits = rounded(batch["x"]) @ rounded(dense["kernel"]) + rounded(dense["bias"])
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    loss = -log_p[np.arange(5), np.asarray(batch["y"])].sum()
    found = task.metrics(params, batch, mask)["loss"][0]
    assert float(found) == pytest.approx(loss, rel=2**-7)
    assert float(found) != float(exact.metrics(params, batch, mask)["loss"][0])

    gradient = jax.grad(task.loss)(params, batch, mask, jax.random.key(0))
    assert {a.dtype for a in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}


def test_small_steps_in_bfloat16_are_not_lost():
    """Weights near 1 and steps of about 1e-4, a fiftieth of what bfloat16 can tell from 1."""
    task = ccfl.classification_task(Plain(), (4,), 3, compute_dtype=jnp.bfloat16)
    task = task._replace(
        init=lambda key: {"Dense_0": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)}}
    )
    x, y = np.ones((8, 4), np.float32), np.zeros(8, np.int32)
    data = ccfl.FederatedData.from_indices({"x": x, "y": y}, [np.arange(8)])
    server = ccfl.cc_fedavg()
    round_fn = ccfl.build_round(task, server, 3e-4, batch_size=8, normalise="none")
    state = ccfl.init_state(task, server, jax.random.key(0))
    schedule = ccfl.random_schedule(0, 5, 1, buffer_size=1, max_delay=0, local_work=1, randomness=1)
    state, _ = ccfl.run_rounds(round_fn, state, schedule, data)
    # Equal weights give probabilities of 1/3: class 0 gains 2/3 of the rate in a step, five times.
    kernel = np.asarray(state.params["Dense_0"]["kernel"])
    np.testing.assert_allclose(kernel[:, 0] - 1, 5 * 3e-4 * 2 / 3, rtol=0.02)
    np.testing.assert_allclose(kernel[:, 1] - 1, -5 * 3e-4 / 3, rtol=0.02)


def test_a_compute_dtype_that_is_no_float_is_refused():
    with pytest.raises(ValueError, match="compute_dtype: found .*int8.*, legal: a float dtype"):
        ccfl.classification_task(Plain(), (4,), 3, compute_dtype=jnp.int8)
