"""History plan: which history slot holds each global model, and for how long.

A model is kept from the round in which it is made to the last in which a client starts from it.
The schedule tells that round, so the history needs as many slots as models are kept at once,
however stale some clients are.
"""

from heapq import heappop, heappush

import numpy as np


def plan(staleness: np.ndarray, reads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The history slots of the models of a whole run, from round 0.

    Model x_v exists from round v on (x_0 in history slot 0) and is kept to the last round t with a
    staleness of t - v. In a round all reads come before the write of x_{t+1}, which may thus take a
    history slot that is read for the last time in t. In order of v, each model takes the lowest
    free one: these are intervals, so no plan needs fewer.

    Args:
        staleness: integers `[rounds, slots]`.
        reads: bool `[rounds, slots]`, the slots that train (`Schedule.working`).

    Returns:
        `read` int32 `[rounds, slots]`, the history slot of each one's model, 0 where none is read;
        `write` int32 `[rounds]`, the history slot of x_{t+1}, or the number of history slots where
        it is never read.

    Raises:
        ValueError: for a staleness of more than t in round t.
    """
    last = last_reads(staleness, reads)
    place = _places(last)
    t, k = np.nonzero(reads)
    read = np.zeros(np.shape(reads), np.int32)
    read[t, k] = place[t - staleness[t, k].astype(np.int64)]
    never = np.int32(slots_needed(last))
    return read, np.append(place, never)[1:]


def last_reads(staleness: np.ndarray, reads: np.ndarray) -> np.ndarray:
    """int64 `[rounds]`: the last round that reads x_v, v = 0, 1, ...; -1 without any.

    Raises:
        ValueError: for a staleness of more than t in round t.
    """
    check_versions(staleness, reads, 0)
    t, k = np.nonzero(reads)
    last = np.full(len(reads), -1)
    np.maximum.at(last, t - staleness[t, k].astype(np.int64), t)
    return last


def slots_needed(last: np.ndarray) -> int:
    """The largest number of models kept at once, at least 1; `last` as `last_reads` gives it."""
    kept = np.flatnonzero(last >= 0)
    begin, end = (np.bincount(a, minlength=len(last) + 1) for a in (kept, last[kept] + 1))
    return max(1, int((begin - end).cumsum().max()))


def _places(last: np.ndarray) -> np.ndarray:
    """int32 `[rounds]`: each model's history slot; their number where it is never read."""
    slots = slots_needed(last)
    place, free = [slots] * len(last), list(range(slots))  # sorted, so a heap
    kept = np.flatnonzero(last >= 0)
    ending = kept[np.argsort(last[kept], kind="stable")].tolist()
    ends, ended = last.tolist(), 0
    for version in kept.tolist():
        while ends[ending[ended]] < version:
            heappush(free, place[ending[ended]])
            ended += 1
        place[version] = heappop(free)
    return np.array(place, np.int32)


def check_versions(staleness: np.ndarray, reads: np.ndarray, first_round: int) -> None:
    """Checks that no slot starts before x_0; row k is round `first_round` + k.

    Raises:
        ValueError: with the staleness and the round.
    """
    # As int64: unsigned ones cannot be subtracted from.
    stale = np.where(reads, staleness, 0).astype(np.int64)
    too_old = (stale - first_round - np.arange(len(stale))[:, None]).max(axis=1, initial=-1)
    if too_old.max(initial=0) > 0:
        row = int(too_old.argmax())
        raise ValueError(
            f"schedule: expected a staleness of at most {first_round + row} in round "
            f"{first_round + row} (x_0 is the first model), found {stale[row].max()}"
        )


def check_plan(
    read: np.ndarray,
    write: np.ndarray,
    staleness: np.ndarray,
    reads: np.ndarray,
    first_round: int,
    held: np.ndarray,
) -> None:
    """Checks a plan against the length and the models of the history.

    Args:
        read, write: the plan, of rounds from `first_round` on.
        staleness, reads: of the same rounds.
        first_round: the number of the first.
        held: integers `[history_length]`, the version in each history slot before it.

    Raises:
        ValueError: with both lengths, or with the first start from another model than the plan's.
    """
    needed = max(int(read.max(initial=0)) + 1, int(write.max(initial=0)))
    if needed > len(held):
        raise ValueError(
            f"history_length: expected at least {needed}, the schedule's plan holds {needed} "
            f"models, found {len(held)}"
        )
    rounds = max(len(write), 1)
    t, k = np.nonzero(reads)
    version = t - staleness[t, k].astype(np.int64)
    slot = read[t, k].astype(np.int64)
    # Writes in order of history slot and round: a search finds the last one before a read.
    writes = np.sort(write.astype(np.int64) * rounds + np.arange(len(write)))
    found = np.append(writes, -1)[np.searchsorted(writes, slot * rounds + t) - 1]
    written = found // rounds == slot
    earlier = np.asarray(held, np.int64)[slot] == first_round + version
    wrong = ~np.where(written, found % rounds + 1 == version, earlier)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(
            f"read: expected the history slot of x_{first_round + version[i]} (the plan is of a "
            f"whole run), found {slot[i]} in round {first_round + t[i]}"
        )
