"""Plan: which history slot holds each global model, and for how long.

A model has to be kept from the round that it is first known in to the last that a client starts
from it in. The schedule says which one that is, so the history needs as many slots as models are
wanted at once, however stale some clients are.
"""

from heapq import heappop, heappush

import numpy as np


def plan(staleness: np.ndarray, reads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slots for the models of a whole run, from round 0.

    Model x_v is known from round v on (x_0 from the start, in slot 0) and kept to the last round t
    in which a slot with staleness t - v reads it. In a round all reads come before x_{t+1} is
    written, which may thus take a slot that was read for the last time in t. In order of v, each
    model takes the lowest free slot: these are intervals, so no plan has fewer slots.

    Args:
        staleness: integers `[rounds, slots]`.
        reads: bool `[rounds, slots]`, which of them start from a model.

    Returns:
        `read` int32 `[rounds, slots]`, the history slot of each one's model, 0 where none is read;
        `write` int32 `[rounds]`, the history slot of x_{t+1}, or their number where it is never
        read.

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
    """int64 `[rounds]`: the last round that reads x_v, v = 0, 1, ...; -1 where none does.

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
    """int32 `[rounds]`: the slot of each model; the number of slots where it is never read."""
    slots = slots_needed(last)
    place, free = [slots] * len(last), list(range(slots))  # in order, so it is a heap
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
    """Refuses a start from a model before x_0; row k is round `first_round` + k.

    Raises:
        ValueError: with the staleness and the round.
    """
    # Of any integer dtype, the unsigned ones too, from which nothing can be subtracted.
    asked = np.where(reads, staleness, 0).astype(np.int64)
    too_old = (asked - first_round - np.arange(len(asked))[:, None]).max(axis=1, initial=-1)
    if too_old.max(initial=0) > 0:
        row = int(too_old.argmax())
        raise ValueError(
            f"schedule: expected a staleness of at most {first_round + row} in round "
            f"{first_round + row} (x_0 is the first model), found {asked[row].max()}"
        )


def check_plan(
    read: np.ndarray,
    write: np.ndarray,
    staleness: np.ndarray,
    reads: np.ndarray,
    first_round: int,
    held: np.ndarray,
) -> None:
    """Refuses a plan that the history is too short for, or that does not go on from what it holds.

    Args:
        read, write: the plan, of rounds from `first_round` on.
        staleness, reads: of the same rounds.
        first_round: the number of the first.
        held: integers `[history_length]`, the version in each slot before it.

    Raises:
        ValueError: with both lengths, or with the first start from a slot that holds another model.
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
    # Writes in order of slot and round: the last one before a read is a search away.
    writes = np.sort(write.astype(np.int64) * rounds + np.arange(len(write)))
    found = np.append(writes, -1)[np.searchsorted(writes, slot * rounds + t) - 1]
    written = found // rounds == slot
    earlier = np.asarray(held, np.int64)[slot] == first_round + version
    wrong = ~np.where(written, found % rounds + 1 == version, earlier)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(
            f"read: expected that of x_{first_round + version[i]}; a plan is of the whole run, from"
            f" round 0, found history slot {slot[i]} in round {first_round + t[i]}"
        )
