"""The functions of a Flax model, of Linen or NNX: its first parameters and its output."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import errors, linen, nnx

from ccfl_jax.algorithm.types import Params
from ccfl_jax.checks import check_kind, check_promotion, is_whole, one_line

# The arguments by which a model may be told that it trains.
_SWITCHES = {"train": True, "training": True, "is_training": True, "deterministic": False}
_TOLD = f"a model is told that it trains by {', '.join(_SWITCHES)}"
# Layers that drop, which all have an attribute and an argument `deterministic`.
_LINEN_LAYERS = linen.Dropout | linen.MultiHeadDotProductAttention
_NNX_LAYERS = nnx.Dropout | nnx.MultiHeadAttention


def functions(
    model: Any, input_shape: Sequence[int], dtype: Any, output: tuple[int, ...], compute_dtype: Any
) -> tuple[Callable, Callable, bool]:
    """`init(key) -> params` and `apply(params, x, key) -> [B, *output]` of a model.

    And whether `apply` computes the same with a key, in training, as with None, in evaluation.

    Args:
        model: as for `tasks.classification_task`.
        input_shape: shape of one sample.
        dtype: of samples.
        output: shape of the output for one sample.
        compute_dtype: a float dtype to which parameters and float inputs are rounded, or None.

    Raises:
        ValueError: for statistics beside the parameters, a layer whose dropout does not act in
            training, draws in evaluation, another output, or a model that cannot be called.
    """
    check_promotion()
    if compute_dtype is not None and not jnp.issubdtype(compute_dtype, jnp.floating):
        raise ValueError(f"compute_dtype: expected a float dtype or None, found {compute_dtype!r}")
    known = linen.Module | nnx.Module | Callable
    check_kind("model", model, known, "a Flax module, or a function rngs -> nnx.Module")
    if not (isinstance(input_shape, Sequence) and all(map(is_whole, input_shape))):
        raise ValueError(f"input_shape: expected integers, as (28, 28, 1), found {input_shape!r}")
    example = jax.ShapeDtypeStruct((2, *input_shape), dtype)
    samples = f"{example.dtype} {list(example.shape)}"
    if jnp.issubdtype(dtype, jnp.floating):
        samples += ", or for token ids next_token_task"
    with _explained("evaluation", samples):
        init, exact, silent = (_linen if isinstance(model, linen.Module) else _nnx)(model, example)
        params = jax.eval_shape(init, jax.random.key(0))

    def apply(params: Params, x: Any, key: jax.Array | None) -> jax.Array:
        if jnp.issubdtype(x.dtype, jnp.floating):  # and not token ids
            x = optax.tree.cast(x, compute_dtype)
        return exact(optax.tree.cast(params, compute_dtype), x, key)

    def trace(key: jax.Array | None) -> tuple:
        run = jax.make_jaxpr(lambda params, x: apply(params, x, key), return_shape=True)
        return run(params, example)

    with _explained("evaluation", samples):
        evaluation, logits = trace(None)
    with _explained("training", samples):
        training, _ = trace(jax.random.key(0))
        layers = silent(params)
    found = logits.shape if hasattr(logits, "shape") else f"a {type(logits).__name__}"
    if found != (2, *output):
        raise ValueError(f"model: expected output {(2, *output)} for 2 rows, found {found}")
    if layers:
        raise ValueError(
            f"model: expected dropout in training ({_TOLD}), found none by {', '.join(layers)}"
        )
    return init, apply, str(evaluation) == str(training)


@contextlib.contextmanager
def _explained(place: str, samples: str) -> Iterator[None]:
    """Errors of a model in one line; `place`: what it is called for, with which `samples`."""
    try:
        yield
    except errors.InvalidRngError as error:
        if place == "evaluation":
            raise ValueError(
                f"model: expected no draws in evaluation ({_TOLD}), found some"
            ) from None
        reason = one_line(" ".join(str(error).split()), 200)
        raise ValueError(f"model: expected draws of the stream dropout, found {reason}") from None
    except Exception as error:  # a model's own, of any kind
        if isinstance(error, ValueError) and str(error).startswith("model: "):
            raise
        reason = one_line(" ".join(f"{type(error).__name__}: {error}".split()), 200)
        raise ValueError(
            f"model: expected one that can be called with {samples} ({_TOLD}), "
            f"found in {place} {reason}"
        ) from error


def _switches(model: Any, train: bool) -> dict[str, Any]:
    """The arguments by which a module is told whether it trains."""
    known = inspect.signature(type(model).__call__).parameters
    return {name: value == train for name, value in _SWITCHES.items() if name in known}


def _rate(layer: Any) -> str:
    """The attribute of a layer that drops which holds its rate."""
    return "rate" if isinstance(layer, linen.Dropout | nnx.Dropout) else "dropout_rate"


def _named(path: Sequence, layer: Any) -> str:
    name = "/".join(map(str, path)) or type(layer).__name__
    return f"{name} of rate {getattr(layer, _rate(layer)):g}"


def _linen(model: linen.Module, example: jax.ShapeDtypeStruct) -> tuple:
    """`init`, `apply`, and `silent(params)`: the layers whose dropout does not act in training."""
    one = np.zeros((1, *example.shape[1:]), example.dtype)

    @jax.jit  # without the model's output, which takes a deep model seconds op by op
    def variables(key: jax.Array) -> Any:
        return model.init(key, one, **_switches(model, False))

    _refuse_statistics(sorted(set(jax.eval_shape(variables, jax.random.key(0))) - {"params"}))

    def init(key: jax.Array) -> Params:
        return variables(key)["params"]

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> Any:
        rngs = None if key is None else {"dropout": key}
        return model.apply({"params": params}, x, **_switches(model, key is not None), rngs=rngs)

    def silent(params: Params) -> list[str]:
        acts: dict[str, bool] = {}

        def note(following: Callable, args: Any, kwargs: Any, context: Any) -> Any:
            layer: Any = context.module
            if isinstance(layer, _LINEN_LAYERS) and getattr(layer, _rate(layer)):
                taken = inspect.signature(type(layer).__call__).bind(layer, *args, **kwargs)
                given, name = taken.arguments.get("deterministic"), _named(layer.path, layer)
                is_off = layer.deterministic if given is None else given
                acts[name] = acts.get(name, False) or not is_off
            return following(*args, **kwargs)

        with linen.intercept_methods(note):
            jax.eval_shape(apply, params, example, jax.random.key(0))
        return [name for name, active in acts.items() if not active]

    return init, apply, silent


def _nnx(model: Any, example: jax.ShapeDtypeStruct) -> tuple:
    """As `_linen`."""

    def build(key: jax.Array) -> nnx.Module:
        built = model if isinstance(model, nnx.Module) else model(nnx.Rngs(key))
        check_kind("model", built, nnx.Module, "an nnx.Module of a function of rngs")
        return built

    # Built, not only traced: its arrays that are no parameters are constants.
    module = build(jax.random.key(0))
    graph, shapes, streams, constants = nnx.split(module, nnx.Param, nnx.RngState, ...)
    kinds = {type(v) for _, v in nnx.to_flat_state(constants) if isinstance(v, nnx.Variable)}
    _refuse_statistics(sorted(kind.__name__ for kind in kinds - {nnx.Variable}))

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
                setattr(layer, _rate(layer), 0.0)
        return module(x, **_switches(module, key is not None))

    return init, apply, partial(_without_effect, apply, module, example)


def _without_effect(
    apply: Callable, module: nnx.Module, example: jax.ShapeDtypeStruct, params: Params
) -> list[str]:
    """The layers that drop without which training computes the same."""

    def training(without: tuple | None) -> str:
        run = jax.make_jaxpr(partial(apply, without=without))
        return str(run(params, example, jax.random.key(0)))

    found = [pair for pair in nnx.iter_modules(module) if isinstance(pair[1], _NNX_LAYERS)]
    found = [(path, layer) for path, layer in found if getattr(layer, _rate(layer))]
    whole = training(None) if found else ""
    return [_named(path, layer) for path, layer in found if training(path) == whole]


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
