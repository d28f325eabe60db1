"""Tasks: the functions of a `Task` for a model and a kind of data."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Batch, Params, Task
from ccfl_jax.checks import check_whole
from ccfl_jax.data.image_transforms import scale
from ccfl_jax.models.flax_model import functions

# The stream of this module's draws, apart from those of a model, such as dropout.
_PREPARE_STREAM = 0x50524550


def classification_task(
    model: linen.Module | nnx.Module | Callable[[nnx.Rngs], nnx.Module],
    input_shape: Sequence[int],
    num_classes: int,
    compute_dtype: Any = None,
    prepare: Callable[[jax.Array, jax.Array | None], jax.Array] | None = None,
) -> Task:
    """Single-label classification with softmax cross-entropy.

    Batches hold "x" `[B, *input_shape]` (uint8 images are scaled to [0, 1] here, floats are not,
    other integers are refused) and "y" integer `[B]`, 0 <= y < num_classes. Padded rows may hold
    anything: before `prepare` and the model they are replaced by the batch's first real row, so
    that neither their values nor the derivatives at them matter.

    Metrics are "loss" and "accuracy". A label outside the range makes the loss nan (so the upload
    is rejected, the metric nan); logits that are nan or inf (-inf beside finite ones is allowed)
    make the accuracy nan.

    Args:
        model: a Flax Linen module; or a function `rngs -> nnx.Module`; or an NNX module, whose own
            parameters are then the initial model for every key. A module that takes a keyword
            `train`, `training`, `is_training` or `deterministic` gets it, and the key as its
            "dropout" stream. Arrays of an NNX module that are no parameters are constants, drawn
            ones those of `nnx.Rngs(key(0))`.
        input_shape: shape of one sample.
        num_classes: width of the model's output.
        compute_dtype: a float dtype, such as `jnp.bfloat16`, to which parameters and inputs are
            rounded for the model alone; losses, gradients and all state between steps stay in the
            parameters' dtype. By default nothing is rounded.
        prepare: `prepare(x, key) -> x`, what becomes of a batch's inputs before the model; the key
            is None in evaluation.

    Returns:
        A `Task`.

    Raises:
        ValueError: if the model has statistics beside its parameters (BatchNorm), a layer whose
            dropout does not act in training, draws in evaluation, or another output than
            `[B, num_classes]`, or cannot be called so; the task's functions, for an "x" or "y" that
            is missing or not as described.
    """
    check_whole("num_classes", num_classes, 1)
    init, apply, same = functions(model, input_shape, jnp.float32, num_classes, compute_dtype)

    def rows(params: Params, batch: Batch, mask: jax.Array, key: jax.Array | None) -> tuple:
        x, y = _pair(batch, mask, "[B]")
        if prepare is not None:
            x = prepare(x, None if key is None else jax.random.fold_in(key, _PREPARE_STREAM))
        if not (jnp.issubdtype(x.dtype, jnp.floating) or x.dtype in (jnp.uint8, jnp.bool_)):
            raise ValueError(f"x: expected floats, or pixels as uint8, found {x.dtype}")
        logits = apply(params, scale(x), key)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        known = (y >= 0) & (y < num_classes)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(known, y, 0))
        return _counted(losses, known, mask), logits, y

    def measure(mask: jax.Array, losses: jax.Array, logits: jax.Array, y: jax.Array) -> dict:
        hits = jnp.where(_are_numbers(logits), logits.argmax(axis=-1) == y, jnp.nan)
        count = mask.sum()
        return {
            "loss": (losses.sum(), count),
            "accuracy": (jnp.where(mask, hits, 0.0).sum(), count),
        }

    return _task(init, rows, measure, same, (0, num_classes - 1))


def tags_task(
    model: linen.Module | nnx.Module | Callable[[nnx.Rngs], nnx.Module],
    input_shape: Sequence[int],
    num_tags: int,
    compute_dtype: Any = None,
) -> Task:
    r"""Tag prediction: any number of `num_tags` labels for a row, sigmoid cross-entropy.

    Batches hold "x" int32 `[B, *input_shape]`, token ids as the model takes them, and "y" int32
    `[B, T]`, the row's tags 0 <= y < num_tags in any order, with -1 as padding; a tag named twice
    counts once. Padded rows may hold anything. With :math:`t_{bk} \in \{0, 1\}` for "row b has
    tag k" and logits :math:`z_{bk}` the loss is

    .. math:: \frac{1}{B} \sum_b \sum_k \log(1 + e^{z_{bk}}) - t_{bk} z_{bk}

    summed over tags, averaged over rows. The federated tag-prediction baselines average over tags
    and sum over rows instead: their loss is B / num_tags times ours, and so is the `local_lr` here
    that takes the same step as theirs (100 there with B 100 and 500 tags is 20 here). The paper's
    0.01 hardly changes this model.

    Metrics are "loss" and "recall_at_5": of all true tags of all rows, the share among the five
    highest logits of its row. Of equal logits the lower tag is first; with fewer than five tags all
    are among them. It is nan where no row has a tag, or a real row has a logit that is nan or inf.
    A tag outside the range makes the loss nan.

    Args:
        model: as for `classification_task`; its method `descend(params, x, slope)`, where it has
            one, makes the step of plain SGD, `params - slope . d logits / d params`.
        input_shape: shape of one sample, `(L,)` for texts of up to L tokens.
        num_tags: width of the model's output.
        compute_dtype: as for `classification_task`.

    Returns:
        A `Task`.

    Raises:
        ValueError: as `classification_task`, with `num_tags` for `num_classes`.

    Source: the StackOverflow task of Reddi et al., Adaptive Federated Optimization (ICLR 2021).
    """
    check_whole("num_tags", num_tags, 1)
    init, apply, same = functions(model, input_shape, jnp.int32, num_tags, compute_dtype)
    own_step: Any = getattr(model, "descend", None)

    def from_logits(logits: jax.Array, y: jax.Array, mask: jax.Array) -> tuple:
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        tagged = (y[:, :, None] == jnp.arange(num_tags)[None, None]).any(axis=1)
        # Half the exponentials of optax.sigmoid_binary_cross_entropy, which allows soft labels.
        losses = (jax.nn.softplus(logits) - jnp.where(tagged, logits, 0.0)).sum(axis=1)
        known = ((y >= -1) & (y < num_tags)).all(axis=1)
        return _counted(losses, known, mask), logits, tagged

    def rows(params: Params, batch: Batch, mask: jax.Array, key: jax.Array | None) -> tuple:
        x, y = _pair(batch, mask, "[B, T]")
        return from_logits(apply(params, x, key), y, mask)

    def measure(mask: jax.Array, losses: jax.Array, logits: jax.Array, tagged: jax.Array) -> dict:
        _, best = jax.lax.top_k(logits, min(5, num_tags))  # of equals the lower index first
        hits = jnp.take_along_axis(tagged, best, axis=1).sum(axis=1)
        hits = jnp.where(_are_numbers(logits), hits, jnp.nan)
        return {
            "loss": (losses.sum(), mask.sum()),
            "recall_at_5": (jnp.where(mask, hits, 0.0).sum(), (tagged & mask[:, None]).sum()),
        }

    def descend(
        params: Params, batch: Batch, mask: jax.Array, key: jax.Array, rate: float
    ) -> tuple[jax.Array, dict, Params]:
        x, y = _pair(batch, mask, "[B, T]")

        def head(logits: jax.Array) -> tuple:
            return _observed(from_logits(logits, y, mask), measure, mask)

        seen, slope = jax.value_and_grad(head, has_aux=True)(apply(params, x, key))
        return *seen, own_step(params, x, rate * slope)

    task = _task(init, rows, measure, same, (-1, num_tags - 1))
    return task._replace(descend=descend) if same and own_step is not None else task


def _task(
    init: Callable, rows: Callable, measure: Callable, same: bool, labels: tuple[int, int]
) -> Task:
    """The functions of a `Task`.

    `rows(params, batch, mask, key)` returns losses `[B]`, zero where masked, and the further
    arguments of `measure(mask, losses, ...)`, which returns the metrics; `same` is whether training
    and evaluation compute the same, for every key; `labels` is the range of "y".
    """

    def loss(params: Params, batch: Batch, mask: jax.Array, key: jax.Array) -> jax.Array:
        return _mean(rows(params, batch, mask, key)[0], mask)

    def metrics(params: Params, batch: Batch, mask: jax.Array) -> dict[str, tuple]:
        return measure(mask, *rows(params, batch, mask, None))

    def observe(params: Params, batch: Batch, mask: jax.Array, key: jax.Array) -> tuple:
        return _observed(rows(params, batch, mask, key), measure, mask)

    return Task(init, loss, metrics, observe if same else None, labels=(("y", *labels),))


def _observed(found: tuple, measure: Callable, mask: jax.Array) -> tuple:
    """The loss and the metrics of what `rows` returned."""
    return _mean(found[0], mask), measure(mask, *jax.lax.stop_gradient(found))


def _mean(losses: jax.Array, mask: jax.Array) -> jax.Array:
    return losses.sum() / jnp.maximum(mask.sum(), 1)


def _pair(batch: Batch, mask: jax.Array, shape: str) -> tuple[jax.Array, jax.Array]:
    """The real rows of "x", and of "y" in a dtype that holds all that it is compared with."""
    if missing := {"x", "y"} - {*batch}:
        raise ValueError(f"arrays: expected x and y, found no {' and no '.join(sorted(missing))}")
    y = batch["y"]
    if jnp.issubdtype(y.dtype, jnp.inexact) or y.ndim != shape.count(",") + 1:
        raise ValueError(f"y: expected integers {shape}, found {y.dtype} {y.shape}")
    return _real(batch["x"], mask), _real(tree_util.at_least_int32(y), mask)


def _counted(losses: jax.Array, known: jax.Array, mask: jax.Array) -> jax.Array:
    """Losses `[B]`: 0 where masked, and nan with nan derivatives where the label is not `known`."""
    # A product: a `where` alone would give the derivative 0, and the upload would not be rejected.
    return jnp.where(mask, losses * jnp.where(known, 1.0, jnp.nan), 0.0)


def _are_numbers(logits: jax.Array) -> jax.Array:
    """bool `[B]`: whether the largest logit is finite; models may mask classes with -inf."""
    return jnp.isfinite(logits.max(axis=-1))


def _real(a: jax.Array, mask: jax.Array) -> jax.Array:
    """`a` `[B, ...]` with rows outside `mask` replaced by the first inside it, else by zeros."""
    first = jnp.where(mask.any(), a[mask.argmax()], jnp.zeros((), a.dtype))
    return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, first)
