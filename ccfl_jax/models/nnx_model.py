"""The functions of an NNX model, as `flax_model` has them for Linen."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ccfl_jax.algorithm.types import Params
from ccfl_jax.checks import check_kind
from ccfl_jax.models.modules import named, rate, refuse_statistics, switches

# Layers that drop, which all have an attribute and an argument `deterministic`.
_LAYERS = nnx.Dropout | nnx.MultiHeadAttention


def functions(model: Any, example: jax.ShapeDtypeStruct) -> tuple:
    """As those of a Linen module: `init`, `apply` and `silent`."""

    def build(key: jax.Array) -> nnx.Module:
        built = model if isinstance(model, nnx.Module) else model(nnx.Rngs(key))
        check_kind("model", built, nnx.Module, "an nnx.Module of a function of rngs")
        return built

    # Built, not only traced: its arrays that are no parameters are constants.
    module = build(jax.random.key(0))
    graph, shapes, streams, constants = nnx.split(module, nnx.Param, nnx.RngState, ...)
    kinds = {type(v) for _, v in nnx.to_flat_state(constants) if isinstance(v, nnx.Variable)}
    refuse_statistics(sorted(kind.__name__ for kind in kinds - {nnx.Variable}))

    def init(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.state(build(key), nnx.Param))

    def apply(
        params: Params, x: jax.Array, key: jax.Array | None, without: tuple | None = None
    ) -> jax.Array:
        state = jax.tree.map(lambda a: a, shapes)  # a copy, which the next line fills in place
        nnx.replace_by_pure_dict(state, params)
        fresh = _seeded(streams, jax.random.key(0) if key is None else key)
        module = nnx.merge(graph, state, fresh, constants)
        module.set_attributes(raise_if_not_found=False, deterministic=key is None)
        for path, layer in nnx.iter_modules(module):
            if path == without:
                setattr(layer, rate(layer), 0.0)
        return module(x, **switches(module, key is not None))

    return init, apply, partial(_without_effect, apply, module, example)


def _without_effect(
    apply: Callable, module: nnx.Module, example: jax.ShapeDtypeStruct, params: Params
) -> list[str]:
    """The layers that drop without which training computes the same."""

    def training(without: tuple | None) -> str:
        run = jax.make_jaxpr(partial(apply, without=without))
        return str(run(params, example, jax.random.key(0)))

    found = [pair for pair in nnx.iter_modules(module) if isinstance(pair[1], _LAYERS)]
    found = [(path, layer) for path, layer in found if getattr(layer, rate(layer))]
    whole = training(None) if found else ""
    return [named(path, layer) for path, layer in found if training(path) == whole]


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
