"""Event log: every task on the virtual clock, its fate, and the schedule of the used ones."""

import os
from typing import Any, NamedTuple

import numpy as np

from ccfl_jax.checks import naming
from ccfl_jax.io.files import write_whole
from ccfl_jax.io.npz import read_npz
from ccfl_jax.schedules.schedule import Schedule

# What became of a task.
USED, STALE, TIMED_OUT, UNDERWAY = range(4)
FATES = ("used", "stale", "timed out", "under way")
_DTYPES = {
    "client": np.int32,
    "start": np.float64,
    "stop": np.float64,
    "version": np.int32,
    "work": np.int32,
    "fate": np.int8,
    "round": np.int32,
    "missed": np.int64,
}


class EventLog(NamedTuple):
    """Every task that a client has started, in the order of starts, arrays `[tasks]`.

    Attributes:
        client: int32.
        start: float64, seconds; when it took the model.
        stop: float64, seconds; when its upload arrives, or would arrive after the last round.
        version: int32, v: the model was x_v.
        work: int32, local epochs or steps.
        fate: int8, `USED` in a round; dropped as `STALE`, or as `TIMED_OUT` where a time-out
            emptied the buffer; `UNDERWAY` if still training, or in an unfilled buffer, at the end.
        round: int32, the round it is used in; -1 for the others.
        missed: starts of a rate without an idle client, or with `concurrency` clients training.

    Examples:
        >>> phones = ccfl.speed.draw_devices(
        ...     seed=0, num_clients=30, step=ccfl.speed.uniform(1.0, 10.0)
        ... )
        >>> schedule, log = ccfl.clock_schedule(0, 100, phones, ccfl.availability.always(30))
        >>> log.counts()
        {'used': 500, 'stale': 0, 'timed out': 0, 'under way': 9}
        >>> seconds = (log.stop - log.start)[log.fate == ccfl.clock.USED]
        >>> seconds.shape, bool(seconds.min() >= 1)
        ((500,), True)
    """

    client: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    version: np.ndarray
    work: np.ndarray
    fate: np.ndarray
    round: np.ndarray
    missed: int

    def counts(self) -> dict[str, int]:
        """The number of tasks of each fate: `used`, `stale`, `timed out` and `under way`."""
        found = np.bincount(self.fate, minlength=len(FATES))
        return dict(zip(FATES, found.tolist(), strict=True))

    def save(self, path: str | os.PathLike) -> None:
        """Writes it to `path` as npz, whole or not at all: its arrays, and `missed` as an int64."""
        arrays: dict[str, Any] = {
            name: np.asarray(getattr(self, name), dtype) for name, dtype in _DTYPES.items()
        }
        write_whole(path, lambda file: np.savez_compressed(file, **arrays))

    @staticmethod
    def load(path: str | os.PathLike) -> "EventLog":
        """Reads a file that `save` wrote; never unpickles.

        Raises:
            OSError: if it cannot be read.
            ValueError: if it is no log file.
        """
        with naming(path):
            arrays = read_npz(path, [*_DTYPES])
            shapes = {array.shape for name, array in arrays.items() if name != "missed"}
            kinds = [a.dtype.kind == np.dtype(_DTYPES[name]).kind for name, a in arrays.items()]
            if len(shapes) != 1 or len(*shapes) != 1 or arrays["missed"].shape or not all(kinds):
                raise ValueError(
                    f"arrays: expected numbers [tasks], missed [], found shapes {sorted(shapes)}"
                )
            if not (np.isfinite(arrays["start"]).all() and np.isfinite(arrays["stop"]).all()):
                raise ValueError("start, stop: expected finite seconds, found others")
            if not np.isin(arrays["fate"], range(len(FATES))).all():
                raise ValueError(f"fate: expected 0 to {len(FATES) - 1}, found others")
        whole: dict[str, Any] = {
            name: arrays[name].astype(dtype) for name, dtype in _DTYPES.items()
        }
        whole["missed"] = int(whole["missed"])
        return EventLog(**whole)

    def makes(self, schedule: Schedule) -> bool:
        """Whether `schedule` was made from these tasks."""
        (total, slots), used = schedule.client.shape, self.fate == USED
        within = (self.round >= 0) & (self.round < total)
        if schedule.time is None or not np.array_equal(used, within):
            return False
        if np.bincount(self.round[used], minlength=1).max() > slots:
            return False
        return made_schedule(self, schedule.time, slots).digest() == schedule.digest()


def made_schedule(log: EventLog, time: np.ndarray, slots: int) -> Schedule:
    """The schedule of the rounds that ended at `time`, `[rounds]`, from the tasks used in them.

    A round's slots are filled in the order in which its uploads arrive; those of one second in the
    order of their starts.
    """
    used = np.flatnonzero(log.fate == USED)
    used = used[np.lexsort((used, log.stop[used], log.round[used]))]
    t = log.round[used]
    counts = np.bincount(t, minlength=len(time))
    slot = np.arange(len(used)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = len(time), slots
    client, staleness, work = np.zeros((3, *shape), np.int32)
    present = np.zeros(shape, bool)
    client[t, slot], work[t, slot], present[t, slot] = log.client[used], log.work[used], True
    staleness[t, slot] = t - log.version[used]
    return Schedule(client, staleness, work, present, np.asarray(time, np.float64))


def check_log(log: EventLog, schedule: Schedule, concurrency: int, duration: np.ndarray) -> None:
    """Checks that a log, and the schedule made from it, are possible.

    Args:
        log: the tasks.
        schedule: made from it.
        concurrency: clients that train at the same time, at most.
        duration: float64 `[tasks]`, seconds.

    Raises:
        RuntimeError: unless the clock never goes back, every task takes the newest model and ends
            `duration` after its start, no staleness is negative, no client has two tasks at a time
            and not more than `concurrency` train, and each upload is used in one round, or
            dropped, or left over.
    """
    order = np.lexsort((log.start, log.client))
    follows = np.diff(log.client[order]) == 0
    time = np.asarray(schedule.time)
    used, gone = log.fate == USED, log.stop <= (time[-1] if len(time) else 0.0)
    steps = np.concatenate([np.ones(len(log.start), int), np.full(len(log.stop), -1)])
    moments = np.concatenate([log.start, log.stop])
    # Of one second, uploads come before starts.
    training = np.cumsum(steps[np.lexsort((steps, moments))])
    filled = schedule.present.sum(axis=1, initial=0)
    rules = {
        "starts in order": (np.diff(log.start) >= 0).all(),
        "rounds in order": (np.diff(time) >= 0).all(),
        "tasks of their duration": np.array_equal(log.stop, log.start + duration),
        "the newest model taken": _took_the_newest(log, time).all(),
        "staleness >= 0": (schedule.staleness >= 0).all(),
        "one task of a client at a time": (log.start[order][1:] >= log.stop[order][:-1])[
            follows
        ].all(),
        "at most `concurrency` training": training.max(initial=0) <= concurrency,
        "each upload used once": used.sum() == filled.sum()
        and np.array_equal(np.bincount(log.round[used], minlength=len(filled)), filled),
        "no other in a round": (log.round[~used] == -1).all(),
        "uploads before the end of their round": (log.stop <= _time_of(log, time))[used].all(),
        "dropped uploads have arrived": gone[(log.fate == STALE) | (log.fate == TIMED_OUT)].all(),
    }
    broken = [name for name, holds in rules.items() if not holds]
    if broken:
        raise RuntimeError(
            f"clock: expected a log that keeps its rules, found broken: {', '.join(broken)}"
        )


def _took_the_newest(log: EventLog, time: np.ndarray) -> np.ndarray:
    """bool `[tasks]`: whether each can have taken the newest model.

    Starts and rounds alternate within one second where tasks take no time; the second alone does
    not tell their order then.
    """
    before, after = (np.searchsorted(time, log.start, side) for side in ("left", "right"))
    alternate = np.isin(log.start, log.start[log.stop == log.start])
    between = (before <= log.version) & (log.version <= after)
    in_order = np.diff(log.version, prepend=0) >= 0
    return np.where(alternate, between, log.version == after) & in_order


def _time_of(log: EventLog, time: np.ndarray) -> np.ndarray:
    """float64 `[tasks]`: when the round of each ended; -inf without one."""
    return np.append(time, -np.inf)[log.round]
