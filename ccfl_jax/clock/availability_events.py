"""Availability events: blocks of the changes of clients' availability, in seconds.

A block holds about 100,000 changes of all clients, or covers a day or a cycle; its length follows
from the model alone, so a seed always gives the same blocks.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ccfl_jax.checks import unmasked

PerClient = float | np.ndarray  # one for all, or [clients]
DAY = 86_400.0
BLOCK = 100_000
# Float64 resolves a millisecond up to the longest period, so a client's changes keep their order.
SHORTEST, LONGEST = 1e-3, 1e12


class Changes(NamedTuple):
    """The changes in [end of the block before, `end`), sorted by time and then by client.

    At most one change per client and time. From `time` on, inclusive, the client is available or
    it is not.

    Attributes:
        end: seconds, the end of the block; the first block begins at 0.
        time: float64 [changes], seconds.
        client: int32 [changes].
        available: bool [changes].
    """

    end: float
    time: np.ndarray
    client: np.ndarray
    available: np.ndarray


def replay(
    initially: np.ndarray, rows: tuple[np.ndarray, np.ndarray, np.ndarray], period: np.ndarray
) -> Iterator[Changes]:
    """Endless blocks of periodic changes.

    Args:
        initially: bool `[clients]`, the clients available at 0.
        rows: client, offset in seconds (0 < offset <= period) and whether available from then on,
            each `[rows]`: a change at k period[client] + offset for k = 0, 1, ... A client's rows
            alternate.
        period: float64 `[clients]`, seconds.
    """
    client, offset, available = rows
    cycle = period[client]
    length = block_length(1.0 / cycle, cycle)
    there = np.flatnonzero(initially)
    for number in itertools.count():
        begin, end = number * length, (number + 1) * length
        # One period more than needed on either side; `inside` decides.
        turn = np.maximum(np.floor((begin - offset) / cycle), 0.0)
        turns = np.maximum(np.ceil((end - offset) / cycle) - turn + 1, 0).astype(np.int64)
        row = np.repeat(np.arange(len(client)), turns)
        turn = turn[row] + np.arange(len(row)) - (np.cumsum(turns) - turns)[row]
        time = turn * cycle[row] + offset[row]
        inside = (time >= begin) & (time < end)
        row, time = row[inside], np.append(np.zeros(len(there)), time[inside])
        what = np.append(there >= 0, available[row])
        yield in_order(end, time, np.append(there, client[row]), what)
        there = there[:0]


def in_order(end: float, time: np.ndarray, client: np.ndarray, available: np.ndarray) -> Changes:
    """The block of these changes, sorted."""
    order = np.lexsort((client, time))
    return Changes(end, time[order], client[order].astype(np.int32), available[order])


def block_length(rate: np.ndarray, cycle: np.ndarray) -> float:
    """Seconds of a block, from each row's changes a second and the seconds of its cycle.

    With many rows a block has more changes, as each block goes through all rows.
    """
    longest = max(DAY, cycle.max(initial=0.0))
    return float(min(longest, max(BLOCK, len(rate) / 4) / max(rate.sum(), 1e-300)))


def per_client(
    name: str, value: PerClient, num_clients: int, least: float, most: float
) -> np.ndarray:
    """`value`, a number or an array of one for each client, as float64 `[num_clients]`.

    Raises:
        ValueError: with `name`, for another shape, or values outside [least, most].
    """
    array = unmasked(name, value)
    shapes = (), (num_clients,)
    if array.dtype.kind not in "fiu" or array.shape not in shapes:
        raise ValueError(
            f"{name}: expected numbers of shape {' or '.join(map(str, shapes))}, found "
            f"{array.dtype} {array.shape}"
        )
    wrong = array[~((least <= array) & (array <= most))]
    if wrong.size:
        raise ValueError(f"{name}: expected {least} to {most}, found {wrong[0]}")
    return np.broadcast_to(array.astype(np.float64), num_clients)
