"""The functions of a Flax model, of Linen or NNX: its first parameters and its output."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx

from ccfl_jax.algorithm.types import Params


def functions(
    model: Any, input_shape: Sequence[int], dtype: Any, width: int, compute_dtype: Any
) -> tuple[Callable, Callable, bool]:
    """`init(key) -> params` and `apply(params, x, key) -> logits [B, width]` of a model.

    And whether `apply` computes the same with a key, in training, as with None, in evaluation.

    Args:
        model: as for `tasks.classification_task`.
        input_shape: shape of one sample.
        dtype: of samples.
        width: of the output.
        compute_dtype: a float dtype to which parameters and float inputs are rounded, or None.

    Raises:
        ValueError: for statistics beside the parameters, or another output.
    """
    if compute_dtype is not None and not jnp.issubdtype(compute_dtype, jnp.floating):
        raise ValueError(f"compute_dtype: expected a float dtype or None, found {compute_dtype!r}")
    example = jax.ShapeDtypeStruct((2, *input_shape), dtype)
    init, exact = (_linen if isinstance(model, linen.Module) else _nnx)(model, example)

    def apply(params: Params, x: Any, key: jax.Array | None) -> jax.Array:
        if jnp.issubdtype(x.dtype, jnp.floating):  # and not token ids
            x = optax.tree.cast(x, compute_dtype)
        return exact(optax.tree.cast(params, compute_dtype), x, key)

    params = jax.eval_shape(init, jax.random.key(0))

    def trace(key: jax.Array | None) -> tuple:
        run = jax.make_jaxpr(lambda params, x: apply(params, x, key), return_shape=True)
        return run(params, example)

    (evaluation, logits), (training, _) = trace(None), trace(jax.random.key(0))
    if logits.shape != (2, width):
        raise ValueError(f"model: expected output (2, {width}) for 2 rows, found {logits.shape}")
    return init, apply, str(evaluation) == str(training)


def _linen(model: linen.Module, example: jax.ShapeDtypeStruct) -> tuple[Callable, Callable]:
    takes_train = "train" in inspect.signature(type(model).__call__).parameters
    one = jnp.zeros((1, *example.shape[1:]), example.dtype)

    def call(train: bool) -> dict[str, Any]:
        return {"train": train} if takes_train else {}

    shapes = jax.eval_shape(lambda key: model.init(key, one, **call(False)), jax.random.key(0))
    _refuse_statistics(sorted(set(shapes) - {"params"}))

    @jax.jit  # without the model's output, which takes a deep model seconds op by op
    def init(key: jax.Array) -> Params:
        return model.init(key, one, **call(False))["params"]

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> Any:
        rngs = None if key is None else {"dropout": key}
        return model.apply({"params": params}, x, **call(key is not None), rngs=rngs)

    return init, apply


def _nnx(model: Any, example: jax.ShapeDtypeStruct) -> tuple[Callable, Callable]:
    del example

    def build(key: jax.Array) -> nnx.Module:
        return model if isinstance(model, nnx.Module) else model(nnx.Rngs(key))

    graph, shapes, streams, rest = nnx.split(
        nnx.eval_shape(lambda: build(jax.random.key(0))), nnx.Param, nnx.RngState, ...
    )
    _refuse_statistics(sorted({type(v).__name__ for _, v in nnx.to_flat_state(rest)}))

    def init(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.state(build(key), nnx.Param))

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        state = jax.tree.map(lambda a: a, shapes)  # a copy, which the next line fills in place
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
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else jnp.zeros(leaf.shape, leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]
    return structure.unflatten(fresh)


def _refuse_statistics(found: list[str]) -> None:
    if found:
        raise ValueError(
            "model: expected parameters only; statistics have no meaning between stale clients, "
            f"use GroupNorm instead of BatchNorm, found {', '.join(found)} beside its parameters"
        )
