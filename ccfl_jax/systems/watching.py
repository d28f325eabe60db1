"""What a visit's optimiser sees, kept for its end: optax transformations that change nothing."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Params


class FirstGradient(NamedTuple):
    """State of `first_gradient`.

    Attributes:
        step: int32 scalar, gradients seen.
        gradient: the first of them.
    """

    step: jax.Array
    gradient: Params


def first_gradient() -> optax.GradientTransformation:
    """Keeps the first gradient of a visit, that of its first batch at the start model."""

    def init(params: Params) -> FirstGradient:
        return FirstGradient(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: Params, state: Any, params: Params | None = None
    ) -> tuple[Params, FirstGradient]:
        del params
        kept = tree_util.select(state.step == 0, updates, state.gradient)
        return updates, FirstGradient(state.step + 1, kept)

    return optax.GradientTransformation(init, update)


class FirstLoss(NamedTuple):
    """State of `first_loss`.

    Attributes:
        step: int32 scalar, gradients seen.
        loss: float scalar, the loss of the first batch.
    """

    step: jax.Array
    loss: jax.Array


def first_loss() -> optax.GradientTransformationExtraArgs:
    """Keeps the loss of a visit's first batch at the start model."""

    def init(params: Params) -> FirstLoss:
        del params
        return FirstLoss(jnp.zeros((), jnp.int32), jnp.zeros(()))

    def update(
        updates: Params, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, FirstLoss]:
        del params
        value = jnp.asarray(extra["value"], state.loss.dtype)
        kept = jnp.where(state.step == 0, value, state.loss)
        return updates, FirstLoss(state.step + 1, kept)

    return optax.GradientTransformationExtraArgs(init, update)
