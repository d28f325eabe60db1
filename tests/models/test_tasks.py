"""classification_task: losses and metrics by hand, padding, scaling, refusals."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusal import refused
from same_function import normal
from small_models import Dropping, Plain, losses_by_hand, problem

import ccfl_jax as ccfl
from ccfl_jax.algorithm.client_update import Client, build_local
from ccfl_jax.data.image_transforms import prepare_images
from ccfl_jax.models import CNN, MLP, McMahanCNN

pytestmark = pytest.mark.usefixtures("quickly_compiled")
KEY = jax.random.key(0)
ALL = np.ones(5, bool)
SOME = np.array([False, True, True, False, True])
BATCH = {"x": np.array(normal((5, 4))), "y": np.array([0, 2, 1, 0, 2], np.int32)}


class Normed(nn.Module):
    """Divides by the norm of its input: the derivative at zero does not exist."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x / jnp.linalg.norm(x, axis=-1, keepdims=True))


class WithBatchNorm(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.BatchNorm(use_running_average=not train)(nn.Dense(3)(x))


class NnxPlain(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(4, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.dropout(x))


@functools.cache
def gradient_of(task):
    """One program: (loss, metrics) and the gradient of one pass, metrics of an evaluation."""

    def both(params, batch, mask, key):
        step = jax.value_and_grad(task.observe, has_aux=True)(params, batch, mask, key)
        return *step, task.metrics(params, batch, mask)

    return jax.jit(both)


def test_loss_and_metrics_by_hand():
    task, params = problem()
    losses, best = losses_by_hand(params["Dense_0"], **BATCH)
    hits = best == BATCH["y"]
    (observed, in_training), _, evaluated = gradient_of(task)(params, BATCH, SOME, KEY)
    for loss in (observed, task.loss(params, BATCH, SOME, KEY)):
        assert float(loss) == pytest.approx(losses[SOME].mean(), rel=1e-5)
    for metrics in (in_training, evaluated):
        assert float(metrics["loss"][0]) == pytest.approx(losses[SOME].sum(), rel=1e-5)
        assert float(metrics["accuracy"][0]) == hits[SOME].sum()
        assert int(metrics["loss"][1]) == int(metrics["accuracy"][1]) == 3


PIXELS = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 2), np.uint8)
IMAGES = {"x": PIXELS, "y": BATCH["y"]}
AUGMENTED = {"shape": (6, 7, 2), "prepare": prepare_images(augment=True)}


@pytest.mark.parametrize(("model", "options", "batch", "junk"), [
    (Plain(), {}, BATCH, (np.nan, np.inf, 0.0, 1e30)),
    (Normed(), {}, BATCH, (np.nan, np.inf, 0.0, 1e30)),
    (Plain(), AUGMENTED, IMAGES, (0, 255)),
], ids=["plain", "norm", "augmented images"])  # fmt: skip
def test_padded_rows_change_no_bit(model, options, batch, junk):
    task, params = problem(model, **options)
    clean = jax.tree.leaves(gradient_of(task)(params, batch, SOME, KEY))
    assert all(np.isfinite(a).all() for a in clean)
    real = SOME.reshape(5, *[1] * (batch["x"].ndim - 1))
    for value in junk:
        x = np.where(real, batch["x"], np.array(value, batch["x"].dtype))
        dirty = {"x": x, "y": np.where(SOME, batch["y"], np.int32(-12345))}
        found = jax.tree.leaves(gradient_of(task)(params, dirty, SOME, KEY))
        for a, b in zip(clean, found, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_batch_of_padding_has_loss_zero_and_a_zero_gradient():
    task, params = problem()
    batch = {"x": np.full((5, 4), np.nan, np.float32), "y": np.array([7, -1, 0, 0, 0], np.int32)}
    (loss, _), gradient, _ = gradient_of(task)(params, batch, ~ALL, KEY)
    assert float(loss) == 0
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))


def test_bytes_are_scaled_once_and_floats_never():
    task, params = problem()
    raw = np.random.default_rng(0).integers(0, 256, (5, 4)).astype(np.uint8)
    raw[0, 0], raw[1, 1] = 0, 255
    for x in (raw, np.float32(raw / 255)):
        expected, _ = losses_by_hand(params["Dense_0"], raw / 255, BATCH["y"])
        found = task.loss(params, {**BATCH, "x": x}, ALL, KEY)
        assert float(found) == pytest.approx(expected.mean(), rel=1e-5)


@pytest.mark.filterwarnings("ignore:array 'y'. expected labels from 0 to 2")
@pytest.mark.parametrize("label", [3, -1, 2**31 - 1])
def test_a_label_out_of_range_is_never_taken_for_another(label):
    task, params = problem()
    batch = {**BATCH, "y": np.where(np.arange(5) == 2, np.int32(label), BATCH["y"])}
    assert np.isnan(task.loss(params, batch, ALL, KEY))
    assert np.isnan(ccfl.evaluate(task, params, batch, 5)["loss"])


def test_a_model_of_nans_has_no_accuracy():
    task, params = problem()
    params = jax.tree.map(lambda a: a * np.nan, params)
    metrics = task.metrics(params, BATCH, ALL)
    assert np.isnan(metrics["loss"][0]) and np.isnan(metrics["accuracy"][0])


def test_ties_go_to_the_first_class():
    task, params = problem()
    params = jax.tree.map(np.zeros_like, params)
    # Two of the five rows are of class 0.
    assert ccfl.evaluate(task, params, BATCH, 5)["accuracy"] == 0.4


@pytest.mark.parametrize("model", [Dropping(), NnxPlain], ids=["linen", "nnx"])
def test_dropout_follows_the_key_in_training_only(model):
    """Training and evaluation are two passes then, and there is no common one."""
    task, params = problem(model)
    keys = (KEY, KEY, jax.random.key(1))
    losses = [float(task.loss(params, BATCH, ALL, key)) for key in keys]
    assert losses[0] == losses[1] != losses[2]
    dense = params.get("dense", params.get("Dense_0"))
    expected = losses_by_hand(dense, **BATCH)[0].sum()
    assert float(task.metrics(params, BATCH, ALL)["loss"][0]) == pytest.approx(expected, rel=1e-5)
    assert task.observe is None


def test_nnx_factories_draw_by_the_key_and_modules_keep_their_parameters():
    task, first = problem(NnxPlain)
    same, other = task.init(KEY), task.init(jax.random.key(1))
    np.testing.assert_array_equal(first["dense"]["kernel"], same["dense"]["kernel"])
    assert (first["dense"]["kernel"] != other["dense"]["kernel"]).any()

    module = NnxPlain(nnx.Rngs(7))
    given = ccfl.classification_task(module, (4,), 3)
    for key in (KEY, None):
        kernel = given.init(key)["dense"]["kernel"]
        np.testing.assert_array_equal(kernel, module.dense.kernel[...])
    together = jax.jit(jax.vmap(given.loss, (None, None, None, 0)))
    losses = together(given.init(None), BATCH, ALL, jax.random.split(KEY, 2))
    assert losses[0] != losses[1]


@pytest.mark.parametrize(("model", "found"), [
    (WithBatchNorm(), "batch_stats"),
    (lambda rngs: nnx.BatchNorm(4, rngs=rngs), "BatchStat"),
    (nnx.BatchNorm(4, rngs=nnx.Rngs(0)), "BatchStat"),
], ids=["linen", "nnx factory", "nnx module"])  # fmt: skip
def test_batch_statistics_are_refused_with_the_cure(model, found):
    message = "model: expected parameters only; ...GroupNorm..., found {} beside its parameters"
    refused(message.format(found), ccfl.classification_task, model, (4,), 3)


@pytest.mark.parametrize(("classes", "dtype", "message"), [
    (10, None, "model: expected output (2, 10) for 2 rows, found (2, 3)"),
    (3, jnp.int8, "compute_dtype: expected a float dtype or None, found ...int8..."),
])  # fmt: skip
def test_another_width_or_dtype_is_refused(classes, dtype, message):
    refused(message, ccfl.classification_task, Plain(), (4,), classes, dtype)


@pytest.mark.parametrize(("model", "shape"), [
    (CNN(), (16, 16, 1)), (McMahanCNN(), (8, 8, 1)), (MLP((8,), 10), (4,)),
])  # fmt: skip
def test_our_models_need_one_pass(model, shape):
    assert ccfl.classification_task(model, shape, 10).observe is not None


def rounded(a):
    return np.asarray(jnp.asarray(a).astype(jnp.bfloat16).astype(jnp.float32), np.float64)


@pytest.mark.parametrize("model", [Plain(), NnxPlain], ids=["linen", "nnx"])
def test_bfloat16_rounds_what_the_model_sees_and_nothing_else(model):
    """The expected loss has rounded weights and inputs; logits carry the rounding of bfloat16."""
    task, params = problem(model, compute_dtype=jnp.bfloat16)
    (dense,) = params.values()
    assert dense["kernel"].dtype == jnp.float32
    expected, _ = losses_by_hand(jax.tree.map(rounded, dense), rounded(BATCH["x"]), BATCH["y"])
    exact, _ = losses_by_hand(dense, **BATCH)
    found = float(task.metrics(params, BATCH, ALL)["loss"][0])
    assert found == pytest.approx(expected.sum(), rel=2**-7)
    assert found != pytest.approx(exact.sum(), rel=1e-5)
    gradient = jax.eval_shape(jax.grad(task.loss), params, BATCH, ALL, KEY)
    assert {a.dtype for a in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}


def test_small_steps_in_bfloat16_are_not_lost():
    """Weights near 1 and steps of about 1e-4, a fiftieth of what bfloat16 can tell from 1."""
    task, _ = problem(compute_dtype=jnp.bfloat16)
    start = {"Dense_0": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)}}
    arrays = {"x": np.ones((8, 4), np.float32), "y": np.zeros(8, np.int32)}
    client = Client(arrays, jnp.arange(8), jnp.int32(0), jnp.int32(8))
    local = jax.jit(build_local(task, 3e-4, batch_size=8, normalise="none"))
    upload = np.asarray(local(start, client, 5, KEY).upload["Dense_0"]["kernel"])
    # Equal weights give probabilities of 1/3: class 0 gains 2/3 of the rate in a step, five times.
    expected = np.broadcast_to(5 * 3e-4 * np.array([-2, 1, 1]) / 3, (4, 3))
    np.testing.assert_allclose(upload, expected, rtol=0.02)
