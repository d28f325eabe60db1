"""The description of a schedule, as text."""

from collections.abc import Sequence

import numpy as np

import ccfl_jax as ccfl
from ccfl_jax.clock.event_log import EventLog

from ..figures.schedule_figure import uniform_clients

_MOST_BARS, _LONGEST_BAR = 12, 40  # lines, one for a value, and letters of a histogram


def describe(
    schedule: ccfl.Schedule,
    num_clients: int,
    log: EventLog | None = None,
    model_bytes: int | None = None,
    steps: np.ndarray | None = None,
) -> list[str]:
    """Lines on a schedule's slots with work, its staleness, history, clients, work and tasks.

    Args:
        schedule: any; times are in seconds.
        num_clients: n.
        log: the clock's tasks, or None.
        model_bytes: of one model, for the bytes of the history, or None.
        steps: integers `[rounds, slots]`, local steps, for phi_1, phi_2 and phi_3; without it they
            are in units of work.

    Raises:
        ValueError: as `Schedule.stats` and `Schedule.history_slots`.
    """
    stats = schedule.stats(num_clients, steps)
    working, (rounds, slots) = schedule.working(), schedule.client.shape
    filled, unit = int(working.sum()), schedule.work_unit or "units"
    planned, ring = schedule.history_slots(), stats["tau_max"] + 1
    size = "" if model_bytes is None else f" ({planned * model_bytes / 1e6:.4g} MB"
    size += "" if model_bytes is None else f" instead of {ring * model_bytes / 1e6:.4g} MB)"
    visits, work = stats["participation"], schedule.work[working]
    expected = uniform_clients(working.sum(axis=1), num_clients)[2]
    phi = ", ".join(f"phi_{k} {stats[f'phi_{k}']:.4g}" for k in (1, 2, 3))
    return [
        f"schedule  {rounds} rounds of {slots} slots for {num_clients} clients; {filled} of "
        f"{rounds * slots} slots filled ({_share(filled, rounds * slots)})",
        *_times(schedule),
        f"staleness mean {stats['tau_avg']:.4g}, {_spread(schedule.staleness[working])}",
        *histogram(stats["staleness"]),
        f"history   {planned} models planned, a ring holds {ring}{size}",
        f"theorem   tau_max {stats['tau_max']}, tau_avg {stats['tau_avg']:.4g}; in local "
        f"{unit if steps is None else 'steps'} {phi}",
        f"clients   {np.count_nonzero(visits)} of {num_clients} seen; slots {_spread(visits)}",
        f"effective {stats['effective_clients']:.4g} clients; uniform cohorts give {expected:.4g}",
        f"inclusion {_spread(stats['inclusion'])} of the rounds; the theorem assumes m/n = "
        f"{slots / num_clients:.4g} for all",
        f"work      mean {work.mean() if filled else np.nan:.4g} {unit}, {_spread(work)}",
        *_tasks(log),
    ]


def histogram(counts: Sequence[int]) -> list[str]:
    """A line for each value 0, 1, ..., with a bar as long as its count.

    Where there are more than twelve values the lines are for 0, 1, 2-3, 4-7, 8-15, ...
    """
    starts = list(range(len(counts)))
    if len(counts) > _MOST_BARS:
        starts = [0, *(2**k for k in range((len(counts) - 1).bit_length()))]
    stops = [*starts[1:], len(counts)]
    sums = [int(sum(counts[a:b])) for a, b in zip(starts, stops, strict=True)]
    lines = []
    for first, stop, total in zip(starts, stops, sums, strict=True):
        label = f"{first}" if stop == first + 1 else f"{first}-{stop - 1}"
        # Rounded up: every count above 0 is visible.
        bar = "#" * -(-total * _LONGEST_BAR // max(*sums, 1))
        lines.append(f"{label:>9} {bar} {total}" if bar else f"{label:>9} 0")
    return lines


def duration(seconds: float) -> str:
    """Seconds in a convenient unit."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.4g} {unit}"
    return f"{seconds:.4g} s"


def _times(schedule: ccfl.Schedule) -> list[str]:
    if schedule.time is None:
        return ["time      no clock"]
    if not len(schedule.time):
        return ["time      no round"]
    each = np.diff(schedule.time, prepend=0.0)
    least, median, most = map(duration, (each.min(), np.median(each), each.max()))
    return [
        f"time      {duration(schedule.time[-1])} in all; a round min {least}, median {median}, "
        f"max {most}"
    ]


def _tasks(log: EventLog | None) -> list[str]:
    if log is None:
        return []
    fates = ", ".join(f"{count} {fate}" for fate, count in log.counts().items())
    mean = f"; {duration((log.stop - log.start).mean())} each" if len(log.start) else ""
    return [f"tasks     {len(log.start)} started: {fates}{mean}; {log.missed} starts missed"]


def _spread(values: np.ndarray) -> str:
    if not len(values):
        return "none"
    return f"min {values.min():.4g}, median {np.median(values):.4g}, max {values.max():.4g}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.4g}%" if whole else "none"
