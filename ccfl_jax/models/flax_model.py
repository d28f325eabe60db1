"""The functions of a Flax model, of Linen or NNX: its first parameters and its output."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import errors, linen, nnx

from ccfl_jax.algorithm.types import Params
from ccfl_jax.checks import check_promotion

# The arguments by which a model may be told that it trains.
_SWITCHES = {"train": True, "training": True, "is_training": True, "deterministic": False}
_TOLD = f"a model is told that it trains by {', '.join(_SWITCHES)}"


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
    check_promotion()
    if compute_dtype is not None and not jnp.issubdtype(compute_dtype, jnp.floating):
        raise ValueError(f"compute_dtype: expected a float dtype or None, found {compute_dtype!r}")
    example = jax.ShapeDtypeStruct((2, *input_shape), dtype)
    with _naming_switches():
        init, exact, dropout = (_linen if isinstance(model, linen.Module) else _nnx)(model, example)

    def apply(params: Params, x: Any, key: jax.Array | None) -> jax.Array:
        if jnp.issubdtype(x.dtype, jnp.floating):  # and not token ids
            x = optax.tree.cast(x, compute_dtype)
        return exact(optax.tree.cast(params, compute_dtype), x, key)

    params = jax.eval_shape(init, jax.random.key(0))

    def trace(key: jax.Array | None) -> tuple:
        run = jax.make_jaxpr(lambda params, x: apply(params, x, key), return_shape=True)
        return run(params, example)

    with _naming_switches():
        (evaluation, logits), (training, _) = trace(None), trace(jax.random.key(0))
    found = logits.shape if hasattr(logits, "shape") else f"a {type(logits).__name__}"
    if found != (2, width):
        raise ValueError(f"model: expected output (2, {width}) for 2 rows, found {found}")
    same = str(evaluation) == str(training)
    if same and dropout:
        raise ValueError(
            f"model: expected dropout in training ({_TOLD}), found none, and a rate of {dropout[0]}"
        )
    return init, apply, same


@contextlib.contextmanager
def _naming_switches() -> Iterator[None]:
    try:
        yield
    except errors.InvalidRngError:
        raise ValueError(f"model: expected no draws in evaluation ({_TOLD}), found some") from None


def _switches(model: Any, train: bool) -> dict[str, Any]:
    """The arguments by which a module is told whether it trains."""
    known = inspect.signature(type(model).__call__).parameters
    return {name: value == train for name, value in _SWITCHES.items() if name in known}


def _dropout_rate(module: Any) -> float:
    dropout = isinstance(module, linen.Dropout | nnx.Dropout)
    return module.rate if dropout else getattr(module, "dropout_rate", 0)


def _linen(
    model: linen.Module, example: jax.ShapeDtypeStruct
) -> tuple[Callable, Callable, list[float]]:
    """`init`, `apply`, and the rates of dropout that are not 0."""
    one = jnp.zeros((1, *example.shape[1:]), example.dtype)
    dropout: list[float] = []

    def note(following: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        dropout.extend(filter(None, [_dropout_rate(context.module)]))
        return following(*args, **kwargs)

    with linen.intercept_methods(note):
        shapes = jax.eval_shape(
            lambda key: model.init(key, one, **_switches(model, False)), jax.random.key(0)
        )
    _refuse_statistics(sorted(set(shapes) - {"params"}))

    @jax.jit  # without the model's output, which takes a deep model seconds op by op
    def init(key: jax.Array) -> Params:
        return model.init(key, one, **_switches(model, False))["params"]

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> Any:
        rngs = None if key is None else {"dropout": key}
        return model.apply({"params": params}, x, **_switches(model, key is not None), rngs=rngs)

    return init, apply, dropout


def _nnx(model: Any, example: jax.ShapeDtypeStruct) -> tuple[Callable, Callable, list[float]]:
    """As `_linen`."""
    del example

    def build(key: jax.Array) -> nnx.Module:
        return model if isinstance(model, nnx.Module) else model(nnx.Rngs(key))

    # Built, not only traced: its arrays that are no parameters are constants.
    module = build(jax.random.key(0))
    graph, shapes, streams, constants = nnx.split(module, nnx.Param, nnx.RngState, ...)
    kinds = {type(v) for _, v in nnx.to_flat_state(constants) if isinstance(v, nnx.Variable)}
    _refuse_statistics(sorted(kind.__name__ for kind in kinds - {nnx.Variable}))

    def init(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.state(build(key), nnx.Param))

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        state = jax.tree.map(lambda a: a, shapes)  # a copy, which the next line fills in place
        nnx.replace_by_pure_dict(state, params)
        fresh = _seeded(streams, jax.random.key(0) if key is None else key)
        module = nnx.merge(graph, state, fresh, constants)
        module.set_attributes(raise_if_not_found=False, deterministic=key is None)
        return module(x, **_switches(module, key is not None))

    rates = (_dropout_rate(one) for _, one in nnx.iter_modules(module))
    return init, apply, [rate for rate in rates if rate]


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
