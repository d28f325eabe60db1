"""Memory plan: which row holds what a client remembers, and for how long."""

from heapq import heappop, heappush

import numpy as np


def plan(client: np.ndarray, works: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of what clients remember over a whole run, from round 0.

    A memory is kept from its client's first round to its last. In a round all visits read before
    any writes, so a row that is read for the last time in t may be taken in t. In order of first
    rounds each client takes the lowest free row: these are intervals, so no plan needs fewer.

    Args:
        client: integers `[rounds, slots]`.
        works: bool `[rounds, slots]`, the slots that train (`Schedule.working`).

    Returns:
        `recall` int32 `[rounds, slots]`, the row to read: `rows_needed`, what all have before their
        first visit, in a client's first round; `store` int32, the row to write: `rows_needed` + 1,
        which is none, in its last.
    """
    first, last = _spans(client, works)
    rows = rows_needed(client, works)
    row, free = [rows] * len(first), list(range(rows))  # sorted, so a heap
    again = np.flatnonzero(last > first)
    again = again[np.argsort(first[again], kind="stable")]
    ending, ended = again[np.argsort(last[again], kind="stable")].tolist(), 0
    for one in again.tolist():
        while last[ending[ended]] <= first[one]:
            heappush(free, row[ending[ended]])
            ended += 1
        row[one] = heappop(free)
    place = np.array(row, np.int32)
    t = np.arange(len(client))[:, None]
    recall = np.where(works & (first[client] < t), place[client], rows)
    store = np.where(works & (last[client] > t), place[client], rows + 1)
    return recall.astype(np.int32), store.astype(np.int32)


def rows_needed(client: np.ndarray, works: np.ndarray) -> int:
    """The largest number of clients at once that came before and will come again."""
    first, last = _spans(client, works)
    again = last > first
    begin, end = (np.bincount(a[again], minlength=len(client) + 1) for a in (first, last))
    return int((begin - end).cumsum().max(initial=0))


def check_rows(planned: int | None, recall: np.ndarray | None, rows: int, num_clients: int) -> None:
    """Checks the number of rows of memories against a schedule's plan, or the clients.

    Args:
        planned: the rows of the plan, where it tells.
        recall: the plan, or None.
        rows: of the memories.
        num_clients: n.

    Raises:
        ValueError: with both numbers.
    """
    if recall is None and rows != num_clients:
        raise ValueError(
            f"state.clients: expected {num_clients} rows, one for each client, found {rows} (a "
            "schedule remembered() has others)"
        )
    if recall is not None and planned is None:
        planned = max(rows, int(recall.max(initial=0)) + 1)
    if recall is not None and rows != planned:
        raise ValueError(
            f"state.clients: expected {planned} rows, as in the schedule's plan, found {rows}"
        )


def _spans(client: np.ndarray, works: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64 `[clients]`: the first round in which each works, and the last; 0 and -1 without."""
    t, k = np.nonzero(works)
    first = np.full(int(client.max(initial=0)) + 1, len(client))
    last = np.full(len(first), -1)
    np.minimum.at(first, client[t, k], t)
    np.maximum.at(last, client[t, k], t)
    return np.where(last < 0, 0, first), last
