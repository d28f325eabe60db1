"""History: a ring buffer of the last global models, from which stale clients start."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax import tree
from ccfl_jax.types import Params


class History(NamedTuple):
    """The last `history_length` global models.

    Attributes:
        models: the models stacked along a leading axis `[history_length, ...]`; x_t stands at index
            t mod history_length.
    """

    models: Params


def init(params: Params, history_length: int) -> History:
    """A history that holds x_0 and room for `history_length` models in all.

    Raises:
        ValueError: if `history_length` is not a whole number from 1 on.
    """
    whole = isinstance(history_length, int | np.integer) and not isinstance(history_length, bool)
    if not whole or history_length < 1:
        raise ValueError(
            f"history_length: found {history_length!r}, legal: a whole number from 1 on"
        )

    def first(a: jax.Array) -> jax.Array:
        return jnp.zeros((history_length, *a.shape), a.dtype).at[0].set(a)

    return History(models=jax.tree.map(first, params))


def length(history: History) -> int:
    """How many models the history can hold."""
    return jax.tree.leaves(history.models)[0].shape[0]


def read(history: History, round_index: jax.Array, staleness: jax.Array) -> Params:
    """x_{t-s}, the model that a client with staleness s in round t started from.

    Legal staleness is 0 <= s <= min(t, history_length - 1): what is older is overwritten, what
    would be younger than x_0 was never written. `simulate.check_schedule` refuses any other before
    a run.
    """
    return tree.read(history.models, (round_index - staleness) % length(history))


def push(history: History, round_index: jax.Array, params: Params) -> History:
    """The history after x_{t} with t = `round_index` has become known; it replaces the oldest."""
    return History(models=tree.write(history.models, round_index % length(history), params))
