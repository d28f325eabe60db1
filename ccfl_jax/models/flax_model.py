"""The functions of a Flax model, of Linen or NNX: its first parameters and its output."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import errors, linen

from ccfl_jax.algorithm.types import Params
from ccfl_jax.checks import check_kind, check_promotion, is_whole, one_line
from ccfl_jax.models.modules import TOLD, named, rate, refuse_statistics, switches

# Layers that drop, which all have an attribute and an argument `deterministic`.
_LINEN_LAYERS = linen.Dropout | linen.MultiHeadDotProductAttention


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
    known = linen.Module | Callable
    check_kind("model", model, known, "a Flax module, or a function rngs -> nnx.Module")
    if not (isinstance(input_shape, Sequence) and all(map(is_whole, input_shape))):
        raise ValueError(f"input_shape: expected integers, as (28, 28, 1), found {input_shape!r}")
    example = jax.ShapeDtypeStruct((2, *input_shape), dtype)
    samples = f"{example.dtype} {list(example.shape)}"
    if jnp.issubdtype(dtype, jnp.floating):
        samples += ", or for token ids next_token_task"
    with _explained("evaluation", samples):
        init, exact, silent = _functions(model, example)
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
            f"model: expected dropout in training ({TOLD}), found none by {', '.join(layers)}"
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
                f"model: expected no draws in evaluation ({TOLD}), found some"
            ) from None
        reason = one_line(" ".join(str(error).split()), 200)
        raise ValueError(f"model: expected draws of the stream dropout, found {reason}") from None
    except Exception as error:  # a model's own, of any kind
        if isinstance(error, ValueError) and str(error).startswith("model: "):
            raise
        reason = one_line(" ".join(f"{type(error).__name__}: {error}".split()), 200)
        raise ValueError(
            f"model: expected one that can be called with {samples} ({TOLD}), "
            f"found in {place} {reason}"
        ) from error


def _functions(model: Any, example: jax.ShapeDtypeStruct) -> tuple:
    """`init`, `apply`, and `silent(params)`: the layers whose dropout does not act in training."""
    if isinstance(model, linen.Module):
        return _linen(model, example)
    from ccfl_jax.models import nnx_model  # NNX takes an eighth of a second to import

    return nnx_model.functions(model, example)


def _linen(model: linen.Module, example: jax.ShapeDtypeStruct) -> tuple:
    one = np.zeros((1, *example.shape[1:]), example.dtype)

    @jax.jit  # without the model's output, which takes a deep model seconds op by op
    def variables(key: jax.Array) -> Any:
        return model.init(key, one, **switches(model, False))

    refuse_statistics(sorted(set(jax.eval_shape(variables, jax.random.key(0))) - {"params"}))

    def init(key: jax.Array) -> Params:
        return variables(key)["params"]

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> Any:
        rngs = None if key is None else {"dropout": key}
        return model.apply({"params": params}, x, **switches(model, key is not None), rngs=rngs)

    def silent(params: Params) -> list[str]:
        acts: dict[str, bool] = {}

        def note(following: Callable, args: Any, kwargs: Any, context: Any) -> Any:
            layer: Any = context.module
            if isinstance(layer, _LINEN_LAYERS) and getattr(layer, rate(layer)):
                taken = inspect.signature(type(layer).__call__).bind(layer, *args, **kwargs)
                given, name = taken.arguments.get("deterministic"), named(layer.path, layer)
                is_off = layer.deterministic if given is None else given
                acts[name] = acts.get(name, False) or not is_off
            return following(*args, **kwargs)

        with linen.intercept_methods(note):
            jax.eval_shape(apply, params, example, jax.random.key(0))
        return [name for name, active in acts.items() if not active]

    return init, apply, silent
