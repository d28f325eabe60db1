"""History: the past global models that stale clients start from, in slots.

A schedule's plan (`Schedule.planned`) says which history slot holds x_t; without a plan the history
is a ring of the last models (`ring_slot`).
"""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Array, Params
from ccfl_jax.checks import check_whole


class History(NamedTuple):
    """Up to `history_length` global models.

    Attributes:
        models: the models stacked along a leading axis `[history_length, ...]`.
        version: int32 `[history_length]`, t for a slot that holds x_t; -1 for an empty one.
        messages: what was sent with each model, stacked in the same way; `()` without messages.
    """

    models: Params
    version: jax.Array
    messages: Any = ()


def init(params: Params, history_length: int, message: Any = ()) -> History:
    """A history of `history_length` slots that holds x_0, in slot 0.

    Raises:
        ValueError: if `history_length` is not an integer >= 1.
    """
    history_length = check_whole("history_length", history_length, 1)
    versions = jnp.asarray(first_versions(history_length))
    models, messages = _first((params, message), history_length)
    return History(models, versions, messages)


@functools.partial(jax.jit, static_argnums=1)  # operation by operation it takes 1.5 s for a ResNet
def _first(entry: Any, history_length: int) -> Any:
    """A stack `[history_length, ...]` with an entry at 0, zeros elsewhere."""
    return jax.tree.map(
        lambda a: jnp.zeros((history_length, *a.shape), a.dtype).at[0].set(a), entry
    )


def first_versions(history_length: int) -> np.ndarray:
    """int32 `[history_length]`: the versions before round 0, x_0 in slot 0."""
    return np.where(np.arange(history_length) == 0, 0, -1).astype(np.int32)


def length(history: History) -> int:
    """The number of history slots."""
    return history.version.shape[0]


def ring_slot(version: jax.Array, history_length: int) -> jax.Array:
    """The history slot of x_v, v = `version`, in a ring: v mod history_length, that of the oldest.

    In round t it holds x_{t-s} for 0 <= s <= min(t, history_length - 1): older ones are
    overwritten, and there is none before x_0. `run.check_schedule` refuses any other staleness.
    """
    return version % history_length


def read(history: History, slot: Array) -> Params:
    """The model in a history slot, 0 <= slot < history_length."""
    return tree_util.read(history.models, slot)


def message(history: History, slot: Array) -> Any:
    """What was sent with the model in a history slot."""
    return tree_util.read(history.messages, slot)


def write(
    history: History, slot: Array, params: Params, version: jax.Array, message: Any = ()
) -> History:
    """The history with x_v and its message in a slot; unchanged where slot >= history_length."""
    entry = (params, jnp.asarray(version), message)
    return History(*tree_util.write(tuple(history), slot, entry))


def has_newest(history: History, params: Params, version: jax.Array) -> jax.Array:
    """bool: whether `params` are x_v of the history, v = `version`; true where it has none.

    Of NumPy's arrays it is computed by NumPy.
    """
    slot = (history.version == version).argmax()
    models = jax.tree.map(lambda a: a[slot], history.models)
    pairs = zip(jax.tree.leaves(models), jax.tree.leaves(params), strict=True)
    same = [((a == b) | ((a != a) & (b != b))).all() for a, b in pairs]  # nan is nan
    return functools.reduce(operator.and_, same, True) | (history.version[slot] != version)
