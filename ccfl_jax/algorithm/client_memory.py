"""Client memory: what clients keep from visit to visit, in rows.

Row i is client i's; or a schedule's plan says whose (`Schedule.remembered`), and then the last row
holds what every client has before its first visit.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Array, Arrivals
from ccfl_jax.checks import check_whole, device_bytes


def init(first: Any, num_clients: int | None, rows: int | None = None) -> Any:
    """All memories before round 0.

    Args:
        first: a client's memory before its first visit.
        num_clients: n.
        rows: memories to make room for; one for each client by default.

    Returns:
        `first` stacked `[rows, ...]`, or as it is where it holds no array.

    Raises:
        ValueError: without `num_clients` where there is something to remember, or where a device
            has no room for so many rows.
    """
    if not jax.tree.leaves(first):
        return first
    if num_clients is None:
        raise ValueError(
            "num_clients: expected an integer >= 1 (the rule keeps memories), found None"
        )
    num_clients = check_whole("num_clients", num_clients, 1)
    rows = num_clients if rows is None else check_whole("memories", rows, 1)
    first = jax.tree.map(jnp.asarray, first)
    each = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(first))
    room = device_bytes()
    if rows * each > room:
        raise ValueError(
            f"memories: expected at most {room // each} of {each / 1e6:.3g} MB (a device has "
            f"{room / 1e9:.3g} GB), found {rows}, {rows * each / 1e9:.3g} GB; see "
            "Schedule.remembered()"
        )
    return jax.tree.map(lambda a: jnp.tile(a[None], (rows, *[1] * a.ndim)), first)


def keep(
    part: Callable[[Any], Any],
    before: tuple[Any, Any],
    rows: Array,
    entries: tuple[Any, Any],
    arrivals: Arrivals,
) -> tuple[Any, Any]:
    """What clients remember after a round, and the sum over all of them of the shared part.

    The sum is of floats of at least 32 bits, whatever clients remember: each round adds to it.

    Args:
        part: `Rule.shared`.
        before: both before the round; the memories `[rows, ...]`, or a tree without arrays where
            nothing is remembered.
        rows: int32 `[slots]`, the row that each slot writes; from the number of rows on it is none.
        entries: what each slot's client remembered, and remembers now, `[slots, ...]`; where it is
            not counted, the same, which goes to the row of a plan that was another's.
        arrivals: of the round.
    """
    memories, shared = before
    leaves = jax.tree.leaves(memories)
    if not leaves:
        return before
    writes = last_visits(arrivals.client, arrivals.steps > 0, arrivals.counted)
    old, new = (tree_util.wide(jax.vmap(part)(one)) for one in entries)
    growth = tree_util.masked_sum(jax.tree.map(jnp.subtract, new, old), writes)
    rows = jnp.where(writes, rows, len(leaves[0]))
    memories = tree_util.write(memories, rows, entries[1])
    return memories, jax.tree.map(jnp.add, shared, growth)


def last_visits(client: jax.Array, works: jax.Array, counted: jax.Array) -> jax.Array:
    """bool `[slots]`: each client's last counted slot, or the last that works if none is counted.

    Args:
        client: int32 `[slots]`.
        works, counted: bool `[slots]`; what is counted works.
    """
    client = jnp.where(works, client, -1)
    order = jnp.argsort(counted, stable=True)
    order = order[jnp.argsort(client[order], stable=True)]
    is_last = jnp.diff(client[order], append=-2) != 0
    return jnp.zeros(len(client), bool).at[order].set(is_last) & works
