"""Tasks: a model and a kind of data, made into the three functions of a `Task`."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx

from ccfl_jax.types import Batch, Params, Task


def classification_task(
    model: linen.Module | nnx.Module | Callable[[nnx.Rngs], nnx.Module],
    input_shape: Sequence[int],
    num_classes: int,
) -> Task:
    """Single-label classification with softmax cross-entropy.

    Batches hold "x" `[B, *input_shape]` (uint8 images are scaled to [0, 1] here, floats are taken
    as they are) and "y" integer `[B]`, 0 <= y < num_classes. Padded rows may hold anything: before
    the model sees them they are replaced by the batch's first real row, so that neither their
    values nor the derivatives at them can matter.

    Metrics are "loss" and "accuracy". A label outside the range makes the loss nan (so the upload
    is rejected, the metric nan); logits that are not numbers make the accuracy nan, never a lucky
    hit.

    Args:
        model: a Flax Linen module; or a function `rngs -> nnx.Module`; or an NNX module, whose own
            parameters are then the initial model for every key. A Linen module that takes a
            keyword `train` gets it, and the key as its "dropout" stream.
        input_shape: shape of one sample.
        num_classes: width of the model's output.

    Returns:
        A `Task`.

    Raises:
        ValueError: if the model keeps statistics beside its parameters (BatchNorm), or its output
        is
            not `[B, num_classes]`.
    """
    init, apply = (_linen if isinstance(model, linen.Module) else _nnx)(model, tuple(input_shape))
    key = jax.random.key(0)
    example = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
    logits = jax.eval_shape(lambda x: apply(init(key), x, None), example)
    if logits.shape != (2, num_classes):
        raise ValueError(
            f"model: found output {logits.shape}, legal: (2, {num_classes}) for 2 rows"
        )

    def rows(params: Params, batch: Batch, mask: jax.Array, key: jax.Array | None) -> tuple:
        x, y = _real(batch["x"], mask), _real(batch["y"], mask)
        logits = apply(params, _scale(x), key)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        legal = (y >= 0) & (y < num_classes)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(legal, y, 0))
        return jnp.where(mask, jnp.where(legal, losses, jnp.nan), 0.0), logits, y

    def loss(params: Params, batch: Batch, mask: jax.Array, key: jax.Array) -> jax.Array:
        losses, _, _ = rows(params, batch, mask, key)
        return losses.sum() / jnp.maximum(mask.sum(), 1)

    def metrics(params: Params, batch: Batch, mask: jax.Array) -> dict[str, tuple]:
        losses, logits, y = rows(params, batch, mask, None)
        hits = jnp.where(jnp.isnan(logits).any(axis=-1), jnp.nan, logits.argmax(axis=-1) == y)
        count = mask.sum()
        return {
            "loss": (losses.sum(), count),
            "accuracy": (jnp.where(mask, hits, 0.0).sum(), count),
        }

    return Task(init, loss, metrics)


def _linen(model: linen.Module, input_shape: tuple[int, ...]) -> tuple[Callable, Callable]:
    takes_train = "train" in inspect.signature(type(model).__call__).parameters
    example = jnp.zeros((1, *input_shape))

    def call(train: bool) -> dict[str, bool]:
        return {"train": train} if takes_train else {}

    shapes = jax.eval_shape(lambda key: model.init(key, example, **call(False)), jax.random.key(0))
    _refuse_statistics(sorted(set(shapes) - {"params"}))

    def init(key: jax.Array) -> Params:
        return model.init(key, example, **call(False))["params"]

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        rngs = None if key is None else {"dropout": key}
        return model.apply({"params": params}, x, **call(key is not None), rngs=rngs)

    return init, apply


def _nnx(model: Any, input_shape: tuple[int, ...]) -> tuple[Callable, Callable]:
    del input_shape

    def build(key: jax.Array) -> nnx.Module:
        return model if isinstance(model, nnx.Module) else model(nnx.Rngs(key))

    graph, shapes, streams, rest = nnx.split(
        nnx.eval_shape(lambda: build(jax.random.key(0))), nnx.Param, nnx.RngState, ...
    )
    _refuse_statistics(sorted({type(v).__name__ for _, v in nnx.to_flat_state(rest)}))

    def init(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.state(build(key), nnx.Param))

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        state = jax.tree.map(lambda a: a, shapes)  # a copy: the next line fills it in place
        nnx.replace_by_pure_dict(state, params)
        module = nnx.merge(
            graph, state, _seeded(streams, jax.random.key(0) if key is None else key)
        )
        module.set_attributes(raise_if_not_found=False, deterministic=key is None)
        return module(x)

    return init, apply


def _seeded(streams: nnx.State, key: jax.Array) -> nnx.State:
    """The random streams of an NNX module, each restarted from its own part of `key`."""
    leaves, structure = jax.tree.flatten(streams)
    fresh = [
        jax.random.fold_in(key, i)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else jnp.zeros(leaf.shape, leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]
    return structure.unflatten(fresh)


def _refuse_statistics(found: list[str]) -> None:
    if found:
        raise ValueError(
            f"model: found {', '.join(found)} beside its parameters, legal: parameters only; "
            "statistics have no meaning between stale clients, use GroupNorm instead of BatchNorm"
        )


def _scale(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x


def _real(a: jax.Array, mask: jax.Array) -> jax.Array:
    """`a` `[B, ...]` with rows outside `mask` replaced by the first inside it, else by zeros."""
    first = jnp.where(mask.any(), a[mask.argmax()], jnp.zeros((), a.dtype))
    return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, first)
