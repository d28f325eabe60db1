"""Faults that people reported for other tools (see the README): models and arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from problems import points_task, slope_task
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.models import Logistic

pytestmark = pytest.mark.usefixtures("quickly_compiled")
KEY = jax.random.key(0)


class _Deterministic(linen.Module):
    @linen.compact
    def __call__(self, x, deterministic=True):
        return linen.Dense(3)(linen.Dropout(1.0, deterministic=deterministic)(x))


class _Training(linen.Module):
    @linen.compact
    def __call__(self, x, training=False):
        return linen.Dense(3)(linen.Dropout(1.0, deterministic=not training)(x))


class _Train(linen.Module):
    @linen.compact
    def __call__(self, x, train=False):
        return linen.Dense(3)(linen.Dropout(1.0, deterministic=not train)(x))


class _Words(linen.Module):
    @linen.compact
    def __call__(self, x, **words):
        return _Train()(x, **words)


class _Nnx(nnx.Module):
    def __init__(self, rngs):
        self.dense, self.drop = nnx.Linear(6, 3, rngs=rngs), nnx.Dropout(1.0, rngs=rngs)

    def __call__(self, x, train=False):
        return self.dense(self.drop(x, deterministic=not train))


def _always(deterministic):
    return linen.Sequential([linen.Dropout(0.5, deterministic=deterministic), linen.Dense(3)])


@pytest.mark.parametrize("model", [_Train(), _Training(), _Deterministic(), _Nnx])
def test_of_03_dropout_acts_in_training_whatever_its_switch_is_called(model):
    """Of rate 1 nothing passes: logits 0, loss log 3 in training."""
    x = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    batch, mask = {"x": x, "y": np.arange(30, dtype=np.int32) % 3}, np.ones(30, bool)
    task = ccfl.classification_task(model, (6,), 3)
    params = task.init(KEY)
    loss = task.loss(params, batch, mask, jax.random.key(1))
    assert float(loss) == pytest.approx(np.log(3), rel=1e-6)
    total, count = task.metrics(params, batch, mask)["loss"]
    assert abs(total / count - np.log(3)) > 0.01


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            _Words(),
            "model: expected dropout in training (... train, ...), found none by _Train_0/...1",
        ),
        (
            _always(True),
            "model: expected dropout in training (...), found none by layers_0 ... 0.5",
        ),
        (_always(False), "model: expected no draws in evaluation (...), found some"),
    ],
)
def test_of_03_dropout_that_never_or_always_acts_is_refused(model, message):
    refused(message, ccfl.classification_task, model, (6,), 3)


def test_of_05_parameters_are_floats():
    """JAX's gradient of a complex number points elsewhere; an integer has none."""
    for value, found in ((1j, "complex64"), (1, "int32")):
        task = slope_task()._replace(init=lambda key, value=value: {"a": {"z": jnp.asarray(value)}})
        message = f"params.a.z: expected floats, found {found}"
        refused(message, ccfl.init_state, task, ccfl.cc_fedavg(), KEY)


def test_of_06_masked_numbers_are_refused():
    """What is masked is not there: neither a label nor a pixel may come back as a number."""
    labels = np.ma.masked_equal(np.array([0, 1, 2, 3] * 10), 3)
    pixels = np.ma.masked_greater(np.array([[1.0], [9.0]], np.float32), 5)
    message = "labels: expected no masked numbers, found 10"
    refused(message, ccfl.partition_dirichlet, labels, 2, 1.0, seed=0, min_size=1)
    data, message = ccfl.FederatedData, "array 'x': expected no masked numbers, found 1"
    refused(message, data.from_indices, {"x": pixels}, [[0, 1]])
    refused(message, data.from_offsets, {"x": pixels}, np.arange(2), np.array([0, 2]))
    refused(message, ccfl.evaluate, points_task(), {}, {"x": pixels})
    kept = np.ma.masked_greater(pixels.data, 99)  # a mask of nothing
    np.testing.assert_array_equal(data.from_indices({"x": kept}, [[0, 1]]).arrays["x"], pixels.data)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_of_11_pixels_in_a_wider_integer_are_refused(dtype):
    """They would not be scaled as the same numbers in uint8 are."""
    task = ccfl.classification_task(Logistic(num_classes=3), (4,), 3)
    arrays = {"x": np.ones((6, 4), dtype), "y": np.arange(6, dtype=np.int32) % 3}
    held = jnp.asarray(arrays["x"]).dtype
    message = f"x: expected floats, or pixels as uint8, found {held}"
    refused(message, ccfl.evaluate, task, task.init(KEY), arrays)


class _Masked(linen.Module):
    @linen.compact
    def __call__(self, x):
        return jnp.where(jnp.arange(3)[None] == 2, -jnp.inf, linen.Dense(3)(x))


def test_of_15_a_class_masked_by_minus_infinity_spoils_nothing():
    """Loss and slopes are those of the two classes that are left (NumPy, float64)."""
    task = ccfl.classification_task(_Masked(), (6,), 3)
    params = task.init(KEY)
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    y = np.array([0, 1, 0, 1], np.int32)
    batch, mask = {"x": x, "y": y}, np.ones(4, bool)
    loss, slopes = jax.value_and_grad(task.loss)(params, batch, mask, KEY)
    dense = jax.tree.map(lambda a: np.asarray(a, np.float64), params["Dense_0"])
    logits = (x @ dense["kernel"] + dense["bias"])[:, :2]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert float(loss) == pytest.approx(-np.log(p[np.arange(4), y]).mean(), rel=1e-5)
    right = np.zeros((4, 3))
    right[:, :2] = p - np.eye(2)[y]
    np.testing.assert_allclose(slopes["Dense_0"]["kernel"], x.T @ right / 4, rtol=1e-4, atol=1e-6)
