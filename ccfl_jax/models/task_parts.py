"""What tasks share: a `Task` from the losses and metrics of a batch, and its real rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Batch, Params, Task
from ccfl_jax.data.image_transforms import scale


def make_task(
    init: Callable,
    rows: Callable,
    measure: Callable,
    same: bool,
    labels: tuple[tuple[str, int, int], ...] = (),
    predict: Callable | None = None,
) -> Task:
    """The functions of a `Task`.

    `rows(params, batch, mask, key)` returns losses `[B, ...]`, bool of the same shape, whether each
    counts (the losses are zero where not), and the further arguments of
    `measure(losses, counts, ...)`, which returns the metrics; `same` is whether training and
    evaluation compute the same, for every key; `labels` and `predict` are those of the `Task`.
    """

    def loss(params: Params, batch: Batch, mask: jax.Array, key: jax.Array) -> jax.Array:
        return _mean(*rows(params, batch, mask, key)[:2])

    def metrics(params: Params, batch: Batch, mask: jax.Array) -> dict[str, tuple]:
        return measure(*rows(params, batch, mask, None))

    def observe(params: Params, batch: Batch, mask: jax.Array, key: jax.Array) -> tuple:
        return observed(rows(params, batch, mask, key), measure)

    return Task(init, loss, metrics, observe if same else None, labels=labels, predict=predict)


def observed(found: tuple, measure: Callable) -> tuple:
    """The loss and the metrics of what `rows` returned."""
    return _mean(*found[:2]), measure(*jax.lax.stop_gradient(found))


def _mean(losses: jax.Array, counts: jax.Array) -> jax.Array:
    return losses.sum() / jnp.maximum(counts.sum(), 1)


def check_there(batch: Batch, *names: str) -> None:
    """Raises ValueError for a batch without some of its arrays."""
    if missing := {*names} - {*batch}:
        found = " and no ".join(sorted(missing))
        raise ValueError(f"arrays: expected {' and '.join(names)}, found no {found}")


def pair(batch: Batch, mask: jax.Array, *shapes: str) -> tuple[jax.Array, jax.Array]:
    """The real rows of "x", and of "y" in a dtype that holds all that it is compared with.

    Raises:
        ValueError: where one is missing, or "y" has no integers or another rank than `shapes`.
    """
    check_there(batch, "x", "y")
    y = batch["y"]
    ranks = [shape.count(",") + 1 for shape in shapes]
    if jnp.issubdtype(y.dtype, jnp.inexact) or y.ndim not in ranks:
        raise ValueError(f"y: expected integers {' or '.join(shapes)}, found {y.dtype} {y.shape}")
    return real_rows(batch["x"], mask), real_rows(tree_util.at_least_int32(y), mask)


def floats(x: jax.Array) -> jax.Array:
    """What a model takes of floats, bools and pixels, which are scaled; ValueError for others."""
    if not (jnp.issubdtype(x.dtype, jnp.floating) or x.dtype in (jnp.uint8, jnp.bool_)):
        raise ValueError(f"x: expected floats, or pixels as uint8, found {x.dtype}")
    return scale(x)


def predict_floats(apply: Callable) -> Callable[[Params, jax.Array], jax.Array]:
    """The `predict` of a task whose model takes floats."""
    return lambda params, x: wide(apply(params, floats(x), None))


def counted(losses: jax.Array, known: jax.Array, counts: jax.Array) -> jax.Array:
    """Losses: 0 where none `counts`, nan with nan derivatives where the label is not `known`."""
    # A product: a `where` alone would give the derivative 0, and the upload would not be rejected.
    return jnp.where(counts, losses * jnp.where(known, 1.0, jnp.nan), 0.0)


def are_numbers(logits: jax.Array) -> jax.Array:
    """Whether the largest logit is finite, bool without the last axis; -inf may mask classes."""
    return jnp.isfinite(logits.max(axis=-1))


def hits(logits: jax.Array, y: jax.Array) -> jax.Array:
    """1 where the largest logit is that of `y`, 0 elsewhere, nan where logits are no numbers."""
    return jnp.where(are_numbers(logits), logits.argmax(axis=-1) == y, jnp.nan)


def wide(logits: jax.Array) -> jax.Array:
    """The model's output in float32 at least."""
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def real_rows(a: jax.Array, mask: jax.Array) -> jax.Array:
    """`a` `[B, ...]` with rows outside `mask` replaced by the first inside it, else by zeros."""
    first = jnp.where(mask.any(), a[mask.argmax()], jnp.zeros((), a.dtype))
    return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, first)
