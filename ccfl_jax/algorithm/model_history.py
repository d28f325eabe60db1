"""History: the past global models that stale clients start from, in slots.

Which slot holds x_t is said by a plan of the schedule (`Schedule.planned`), or without one by the
special case of a ring (`ring_slot`), which holds the last ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Params
from ccfl_jax.checks import check_whole


class History(NamedTuple):
    """Up to `history_length` global models.

    Attributes:
        models: the models stacked along a leading axis `[history_length, ...]`.
        version: int32 `[history_length]`, t for a slot that holds x_t; -1 for an empty one.
    """

    models: Params
    version: jax.Array


def init(params: Params, history_length: int) -> History:
    """A history that holds x_0, in slot 0, and room for `history_length` models in all.

    Raises:
        ValueError: if `history_length` is not an integer >= 1.
    """
    check_whole("history_length", history_length, 1)

    def first(a: jax.Array) -> jax.Array:
        return jnp.zeros((history_length, *a.shape), a.dtype).at[0].set(a)

    return History(jax.tree.map(first, params), jnp.asarray(first_versions(history_length)))


def first_versions(history_length: int) -> np.ndarray:
    """Which versions a history holds before round 0: x_0 in slot 0."""
    return np.where(np.arange(history_length) == 0, 0, -1).astype(np.int32)


def length(history: History) -> int:
    """How many models the history can hold."""
    return history.version.shape[0]


def ring_slot(version: jax.Array, history_length: int) -> jax.Array:
    """The slot of x_v, v = `version`, in a ring: v mod history_length, in the place of the oldest.

    In round t it holds x_{t-s} for 0 <= s <= min(t, history_length - 1): what is older is
    overwritten, what would be younger than x_0 was never written. `run.check_schedule` refuses
    any other staleness before a run.
    """
    return version % history_length


def read(history: History, slot: jax.Array) -> Params:
    """The model in a slot, 0 <= slot < history_length."""
    return tree_util.read(history.models, slot)


def write(history: History, slot: jax.Array, params: Params, version: jax.Array) -> History:
    """The history with x_v in a slot; one of `history_length` on is none: nothing changes."""
    return History(*tree_util.write(tuple(history), slot, (params, jnp.asarray(version))))
