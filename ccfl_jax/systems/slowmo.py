"""SlowMo (Wang et al., 2020, arXiv:1910.00643): slow momentum over rounds of local steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Params
from ccfl_jax.checks import check_known


class SlowMomentum(NamedTuple):
    """State of `slowmo`.

    Attributes:
        count: int32 scalar, server updates so far.
        u: the slow momentum, like the parameters.
    """

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride], as in optax
    u: Params


def slowmo(
    learning_rate: float | jax.Array,
    local_lr: float | jax.Array | Callable[[jax.Array], Any],
    b1: float | jax.Array = 0.7,
) -> optax.GradientTransformation:
    r""":math:`u_t = \beta u_{t-1} + \Delta_t / \eta_l`, :math:`x_{t+1} = x_t - \alpha \eta_l u_t`.

    A server on undivided uploads (`normalise="none"`). For one local rate it is heavy-ball momentum
    at rate alpha; for a rate that changes with the round it is not.

    Args:
        learning_rate: alpha, the slow learning rate, 1 in the paper.
        local_lr: eta_l, the clients' rate, or a function of the number of server updates.
        b1: beta, in [0, 1).

    Raises:
        ValueError: for a number outside its range.

    Examples:
        >>> server = ccfl.systems.slowmo(learning_rate=1.0, local_lr=0.25, b1=0.5)
        >>> state = server.init(jnp.zeros(2))
        >>> update, state = server.update(jnp.array([1.0, -4.0]), state)
        >>> print(update, state.u)  # u is measured in gradients: delta / local_lr
        [-1.  4.] [  4. -16.]
    """
    b1 = check_known("b1", b1, most=1, below=True)
    learning_rate = check_known("learning_rate", learning_rate)
    if not callable(local_lr):
        local_lr = check_known("local_lr", local_lr, above=True)

    def init(params: Params) -> SlowMomentum:
        zeros = jax.tree.map(jnp.zeros_like, tree_util.wide(params))
        return SlowMomentum(jnp.zeros((), jnp.int32), zeros)

    def update(
        updates: Params, state: Any, params: Params | None = None
    ) -> tuple[Params, SlowMomentum]:
        del params
        rate = local_lr(state.count) if callable(local_lr) else local_lr
        u = jax.tree.map(lambda u, d: (b1 * u + d / rate).astype(u.dtype), state.u, updates)
        step = jax.tree.map(lambda a: (-learning_rate * rate * a).astype(a.dtype), u)
        return step, SlowMomentum(state.count + 1, u)

    return optax.GradientTransformation(init, update)
