"""Tasks with squared error: numbers that are predicted, inputs that are reconstructed."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

from ccfl_jax.algorithm.types import Batch, Params, Task
from ccfl_jax.checks import check_whole
from ccfl_jax.models.flax_model import functions
from ccfl_jax.models.task_parts import (
    check_there,
    floats,
    make_task,
    predict_floats,
    real_rows,
    wide,
)


def regression_task(
    model: linen.Module | Callable[..., Any],
    input_shape: Sequence[int],
    num_targets: int = 1,
    compute_dtype: Any = None,
) -> Task:
    """Regression with squared error.

    Batches hold "x" as in `classification_task`, and "y" numbers `[B, num_targets]`, or `[B]` of
    one target. The loss is (f(x) - y)^2, averaged over targets and rows. Padded rows may hold
    anything.

    Metrics are "loss" and "mean_absolute_error", that of `|f(x) - y|`, in the unit of y. A target
    that is nan or inf makes the loss so, and the upload is rejected.

    Args:
        model: as for `classification_task`, of output `[B, num_targets]`.
        input_shape: shape of one sample.
        num_targets: width of the model's output.
        compute_dtype: as for `classification_task`.

    Returns:
        A `Task`.

    Raises:
        ValueError: as `classification_task`, with `num_targets` for `num_classes`.

    Examples:
        >>> task = ccfl.regression_task(ccfl.models.Logistic(1), input_shape=(2,))  # a linear model
        >>> params = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
        >>> ccfl.evaluate(task, params, {"x": np.ones((2, 2)), "y": np.array([1.0, 3.0])})
        {'loss': 5.0, 'mean_absolute_error': 2.0}
    """
    check_whole("num_targets", num_targets, 1)
    init, apply, same = functions(model, input_shape, jnp.float32, (num_targets,), compute_dtype)

    def rows(params: Params, batch: Batch, mask: jax.Array, key: jax.Array | None) -> tuple:
        check_there(batch, "x", "y")
        y, shape = batch["y"], (len(mask), num_targets)
        if y.shape != shape and (num_targets > 1 or y.shape != shape[:1]):
            raise ValueError(f"y: expected numbers [B, {num_targets}], found shape {y.shape}")
        x, y = real_rows(batch["x"], mask), real_rows(y, mask)
        error = wide(apply(params, floats(x), key)) - y.reshape(shape)
        return _squared(error, mask), mask, error

    def measure(losses: jax.Array, mask: jax.Array, error: jax.Array) -> dict:
        absolute = jnp.where(mask, jnp.abs(error).mean(axis=1), 0.0).sum()
        return {"loss": (losses.sum(), mask.sum()), "mean_absolute_error": (absolute, mask.sum())}

    return make_task(init, rows, measure, same, predict=predict_floats(apply))


def autoencoder_task(
    model: linen.Module | Callable[..., Any],
    input_shape: Sequence[int],
    compute_dtype: Any = None,
) -> Task:
    """Reconstruction of inputs, with squared error.

    Batches hold "x" as in `classification_task`, uint8 images scaled to [0, 1]; other arrays, as
    labels, are not read. The loss, and the one metric "loss", is the mean squared error over the
    numbers of a sample and the rows. Padded rows may hold anything.

    Args:
        model: as for `classification_task`, of output `[B, *input_shape]`.
        input_shape: shape of one sample.
        compute_dtype: as for `classification_task`.

    Returns:
        A `Task`.

    Raises:
        ValueError: as `classification_task`.

    Source: the EMNIST autoencoder of Reddi et al., Adaptive Federated Optimization (ICLR 2021).

    Examples:
        >>> model = ccfl.models.MLP(features=(8,), num_classes=64)  # with outputs like its inputs
        >>> task = ccfl.autoencoder_task(model, input_shape=(64,))
        >>> params = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
        >>> ccfl.evaluate(task, params, {"x": np.full((5, 64), 0.5)})
        {'loss': 0.25}
    """
    output = (*input_shape,)
    init, apply, same = functions(model, input_shape, jnp.float32, output, compute_dtype)

    def rows(params: Params, batch: Batch, mask: jax.Array, key: jax.Array | None) -> tuple:
        check_there(batch, "x")
        x = floats(real_rows(batch["x"], mask))
        return _squared(wide(apply(params, x, key)) - x, mask), mask

    def measure(losses: jax.Array, mask: jax.Array) -> dict:
        return {"loss": (losses.sum(), mask.sum())}

    return make_task(init, rows, measure, same, predict=predict_floats(apply))


def _squared(error: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean square of each row of errors `[B, ...]`, 0 where masked."""
    flat = error.reshape(len(error), math.prod(error.shape[1:]))
    return jnp.where(mask, jnp.square(flat).mean(axis=1), 0.0)
