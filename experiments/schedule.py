"""Makes, saves and shows a schedule: `python -m experiments.schedule --file=NAME.npz ...`.

NAME.npz is what `--schedule_file` of a run takes, NAME.png its picture, and NAME.log.npz every task
of the clock. Exit codes: 0 done; 2 a flag, value or file was refused (one line says why). JAX and
what builds on it is imported inside the functions: `--help` and a wrong flag need not wait.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.schedule_flags import Asked, parse_schedule, schedule_help_text

if TYPE_CHECKING:
    import numpy as np

    from ccfl_jax.event_log import EventLog
    from ccfl_jax.schedule import Schedule

_MOST_BARS, _LONGEST_BAR = 12, 40  # lines, one for a value, and letters of a histogram


def main(argv: list[str]) -> int:
    """Does what the command line `argv` asks for and returns the exit code."""
    if "--help" in argv[1:]:
        print(schedule_help_text())
        return 0
    try:
        asked = parse_schedule(argv)
        lines = _show(asked) if asked.show else _make(asked)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        print("schedule: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


def files(file: Path) -> tuple[Path, Path, Path]:
    """The schedule, its log and its picture."""
    return file, file.with_suffix(".log.npz"), file.with_suffix(".png")


def _make(asked: Asked) -> list[str]:
    """Makes and writes what was asked for; returns what is said of it."""
    file, log_file, picture = files(asked.file)
    found = [path for path in files(file) if path.exists()]
    if found and not asked.overwrite:
        raise FileExistsError(f"{found[0]}: found a file, legal: a new name, or --overwrite")

    from experiments import raster, worlds

    made = worlds.make(asked)
    schedule = made.schedule
    lines = describe(schedule, schedule.num_clients, made.log, made.model_bytes, made.steps)
    file.parent.mkdir(parents=True, exist_ok=True)
    schedule.save(file)
    written = [file, picture]
    if made.log is not None:
        worlds.save_log(made.log, log_file)
        written.insert(1, log_file)
    else:
        log_file.unlink(missing_ok=True)  # of a schedule that was there before
    title = (
        f"{file.name}: {asked.options['rule']}, {asked.config.dataset}, seed {asked.config.seed}"
    )
    raster.draw(schedule, schedule.num_clients, picture, title, made.log, made.labels)
    return [*lines, *made.notes, *_named("written", written)]


def _show(asked: Asked) -> list[str]:
    """What is said of a schedule that is there, and its picture where there is none."""
    import numpy as np

    from ccfl_jax.schedule import Schedule
    from experiments import raster, worlds

    file, log_file, picture = files(asked.file)
    schedule = Schedule.load(file)
    num_clients = asked.num_clients or schedule.num_clients
    if num_clients is None:
        num_clients = int(np.max(schedule.client, initial=0)) + 1
    log = worlds.load_log(log_file, schedule)
    lines = describe(schedule, num_clients, log)
    if picture.exists() and not asked.overwrite:
        return [*lines, f"picture   {picture} was there; --overwrite draws it anew"]
    raster.draw(schedule, num_clients, picture, file.name, log)
    return [*lines, *_named("written", [picture])]


def describe(
    schedule: "Schedule",
    num_clients: int,
    log: "EventLog | None" = None,
    model_bytes: int | None = None,
    steps: "np.ndarray | None" = None,
) -> list[str]:
    """Lines that say what a schedule asks for; of slots, those with work are counted.

    Args:
        schedule: any; times are in seconds.
        num_clients: n.
        log: the clock's tasks; without it nothing is said of them.
        model_bytes: of one model, for the history; without it models are counted alone.
        steps: integers `[rounds, slots]`, local steps, for phi_1, phi_2 and phi_3; without it they
            are in units of work.

    Raises:
        ValueError: as `Schedule.stats` and `Schedule.history_slots`.
    """
    import numpy as np

    from experiments.raster import uniform_clients

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
        # What is there at all is seen.
        bar = "#" * -(-total * _LONGEST_BAR // max(*sums, 1))
        lines.append(f"{label:>9} {bar} {total}" if bar else f"{label:>9} 0")
    return lines


def duration(seconds: float) -> str:
    """Seconds as people say them, with their unit."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.4g} {unit}"
    return f"{seconds:.4g} s"


def _times(schedule: "Schedule") -> list[str]:
    import numpy as np

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


def _tasks(log: "EventLog | None") -> list[str]:
    if log is None:
        return []
    fates = ", ".join(f"{count} {fate}" for fate, count in log.counts().items())
    mean = f"; {duration((log.stop - log.start).mean())} each" if len(log.start) else ""
    return [f"tasks     {len(log.start)} started: {fates}{mean}; {log.missed} starts missed"]


def _spread(values: "np.ndarray") -> str:
    import numpy as np

    if not len(values):
        return "none"
    return f"min {values.min():.4g}, median {np.median(values):.4g}, max {values.max():.4g}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.4g}%" if whole else "none"


def _named(word: str, paths: Sequence[Path]) -> list[str]:
    return [f"{word:<10}{path}" for path in paths]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
