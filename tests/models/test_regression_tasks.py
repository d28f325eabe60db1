"""regression_task, autoencoder_task and the autoencoder, against NumPy."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from problems import assert_trees_close, assert_trees_equal
from refusal import refused
from same_function import compiled, normal, random_params

import ccfl_jax as ccfl
from ccfl_jax.models import Autoencoder

pytestmark = pytest.mark.usefixtures("quickly_compiled")
KEY = jax.random.key(0)
X, Y = np.array(normal((4, 3))), np.array(normal((4, 2), seed=1))
MASK = np.array([False, True, True, False])


class Linear(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.width, use_bias=False)(x)


def parameters(width):
    kernel = np.random.default_rng(2).normal(size=(3, width)).astype(np.float32)
    return {"Dense_0": {"kernel": kernel}}


@pytest.mark.parametrize(("width", "y"), [(2, Y), (1, Y[:, :1]), (1, Y[:, 0])])
def test_regression_by_hand(width, y):
    task, params = compiled(ccfl.regression_task(Linear(width), (3,), width)), parameters(width)
    error = np.float64(X[MASK]) @ params["Dense_0"]["kernel"] - np.float64(
        y.reshape(4, width)[MASK]
    )
    gradient = 2 * np.float64(X[MASK]).T @ error / error.size
    step = jax.value_and_grad(task.observe, has_aux=True)
    (loss, metrics), found = step(params, {"x": X, "y": y}, MASK, KEY)
    assert float(loss) == pytest.approx((error**2).mean(), rel=1e-5)
    assert_trees_close(found, {"Dense_0": {"kernel": gradient}}, 1e-5)
    expected = {"loss": (error**2).mean(), "mean_absolute_error": np.abs(error).mean()}
    for own in (metrics, task.metrics(params, {"x": X, "y": y}, MASK)):
        assert {name: float(a / b) for name, (a, b) in own.items()} == pytest.approx(expected)
        assert all(float(count) == 2 for _, count in own.values())


def test_reconstruction_by_hand():
    task, params = compiled(ccfl.autoencoder_task(Linear(3), (3,))), parameters(3)
    error = np.float64(X[MASK]) @ params["Dense_0"]["kernel"] - np.float64(X[MASK])
    loss, found = jax.value_and_grad(task.loss)(params, {"x": X}, MASK, KEY)
    assert float(loss) == pytest.approx((error**2).mean(), rel=1e-5)
    gradient = 2 * np.float64(X[MASK]).T @ error / error.size
    assert_trees_close(found, {"Dense_0": {"kernel": gradient}}, 1e-5)
    metrics = task.metrics(params, {"x": X}, MASK)
    assert {*metrics} == {"loss"} and float(metrics["loss"][0]) == pytest.approx(2 * loss)


def test_pixels_are_reconstructed_between_0_and_1():
    class Nothing(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x * self.param("scale", nn.initializers.zeros_init(), ())

    task, pixels = ccfl.autoencoder_task(Nothing(), (2,)), np.array([[255, 0], [51, 51]], np.uint8)
    loss = task.loss(task.init(KEY), {"x": pixels}, np.ones(2, bool), KEY)
    assert float(loss) == pytest.approx((1 + 0 + 0.04 + 0.04) / 4)


@pytest.mark.parametrize("name", ["regression", "autoencoder"])
def test_padded_rows_change_no_bit(name):
    if name == "regression":
        task = compiled(ccfl.regression_task(Linear(2), (3,), 2))
    else:
        task = compiled(ccfl.autoencoder_task(Linear(3), (3,)))
    params = task.init(KEY)
    x, y = X.copy(), Y.copy()
    x[~MASK], y[~MASK] = np.nan, np.inf
    step = jax.value_and_grad(task.observe, has_aux=True)
    clean, found = (step(params, {"x": a, "y": b}, MASK, KEY) for a, b in ((X, Y), (x, y)))
    assert_trees_equal(clean, found)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(clean))


def test_a_target_that_is_nan_makes_the_loss_nan():
    task, y = ccfl.regression_task(Linear(2), (3,), 2), Y.copy()
    y[1, 0] = np.nan
    loss, slope = jax.value_and_grad(task.loss)(parameters(2), {"x": X, "y": y}, MASK, KEY)
    assert np.isnan(loss) and np.isnan(slope["Dense_0"]["kernel"]).any()


def test_the_autoencoder_by_hand():
    """Widths 1000, 500, 250, 30 and back; the 30 are linear, the others sigmoids."""
    model, x = Autoencoder(), np.array(normal((2, 3, 4, 1), scale=0.3))
    params = random_params(model, x)["params"]
    widths = [len(params[f"dense{k}"]["bias"]) for k in range(1, 9)]
    assert widths == [1000, 500, 250, 30, 250, 500, 1000, 12]
    y = np.float64(x).reshape(2, 12)
    for k in range(1, 9):
        y = y @ np.float64(params[f"dense{k}"]["kernel"]) + np.float64(params[f"dense{k}"]["bias"])
        y = y if k == 4 else 1 / (1 + np.exp(-y))
    found = model.apply({"params": params}, x)
    np.testing.assert_allclose(found, y.reshape(x.shape), rtol=1e-3, atol=1e-5)
    refused("Autoencoder: expected [b, ...], found input shape (3,)", model.init, KEY, X[0])


def test_what_is_refused():
    task = ccfl.regression_task(Linear(2), (3,), 2)
    for y in (Y[:, 0], Y[:, :1], Y[None]):
        message = f"y: expected numbers [B, 2], found shape {y.shape}"
        refused(message, task.loss, parameters(2), {"x": X, "y": y}, MASK, KEY)
    refused("arrays: expected x and y, found no y", task.loss, parameters(2), {"x": X}, MASK, KEY)
    refused("model: expected output (2, 3) for 2 rows, found (2, 2)", ccfl.autoencoder_task,
            Linear(2), (3,))  # fmt: skip
    refused(
        "num_targets: expected an integer >= 1, found 0", ccfl.regression_task, Linear(2), (3,), 0
    )
    pixels = {"x": X.astype(np.int32)}
    task = ccfl.autoencoder_task(Linear(3), (3,))
    refused("x: expected floats, or pixels as uint8, found int32", task.loss, parameters(3), pixels,
            MASK, KEY)  # fmt: skip
    refused("arrays: expected x, found no x", task.loss, parameters(3), {"y": Y}, MASK, KEY)
