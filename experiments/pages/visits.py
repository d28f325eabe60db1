"""Who visits when: the schedules that a page shows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ccfl_jax as ccfl
from ccfl_jax.checks import naming
from ccfl_jax.runs import metrics, provenance

from ..config import run_file, run_flags
from ..config.run_flags import RUN
from ..config.settings import SEEDS
from ..config.sweep_flags import name_of
from ..sweeps import lines, results
from ..sweeps.results import Record
from ..training import run_schedule
from .content import Group, numbers

_MOST = 100_000  # visits of a schedule; about two megabytes of the page
_DECIDING = [n for n, one in RUN.items() if one.section == "Schedule" or n == "num_clients"]


def of_groups(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The schedules of the groups as JSON, each once, or "missing" with the reason.

    That of a run is in its folder. Those of a sweep are the files that its trials were given, or
    drawn again; of trials that differ in their seeds alone there is the first one's.

    Raises:
        OSError, ValueError: for a file that is there and cannot be read, and settings that are no
            run's.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, schedule in (one for group in groups for one in _named(group)):
        if isinstance(schedule, str):
            found[f"{name}: {schedule}"] = {"missing": schedule, "names": [name]}
        else:
            one = found.setdefault(schedule.digest(), {**_visits(schedule), "names": []})
            one["names"].append(name)
    return [{**one, "name": ", ".join(one["names"])} for one in found.values()]


def _named(group: Group) -> Iterator[tuple[str, ccfl.Schedule | str]]:
    """The name of each schedule, and its rounds that were run, or why it is not there."""
    if lines.is_sweep(group.folders[0]):
        yield from _of_sweep(group)
        return
    for label, line in zip(group.labels, group.lines, strict=True):
        path = line.folder / metrics.SCHEDULE
        whole = ccfl.Schedule.load(path) if path.is_file() else f"no {path}"
        yield label, _run(whole, line.runs[0])


def _of_sweep(group: Group) -> Iterator[tuple[str, ccfl.Schedule | str]]:
    folder, first = group.folders[0], {}
    for one in results.read_all(folder):
        if one.rows:
            first.setdefault(tuple(f"{one.config.get(name)}" for name in _DECIDING), one)
    known = [v for n, v in provenance.read(folder).items() if n.startswith("schedule[")]
    for one in first.values():
        own = {n: v for n, v in one.varied.items() if n in (*_DECIDING, *SEEDS)}
        with naming(f"{folder / results.TRIALS}, {one.name}"):
            whole = _of_trial(one)
        if known and not isinstance(whole, str) and whole.digest() not in known:
            whole = "another one than its trials had"
        yield f"{group.name} {name_of(own)}".strip(), _run(whole, one.rows)


def _of_trial(one: Record) -> ccfl.Schedule | str:
    config = run_flags.parse(["", *run_file.words(one.config | {"tensorboard": None})])
    if config.schedule_file is None:
        return run_schedule.drawn_schedule(config)
    path = Path(config.schedule_file.replace("{seed}", f"{config.seed_of('schedule')}"))
    return ccfl.Schedule.load(path).rounds(0, config.rounds) if path.is_file() else f"no {path}"


def _run(schedule: ccfl.Schedule | str, rows: Sequence[metrics.Row]) -> ccfl.Schedule | str:
    """The rounds until the last row."""
    if isinstance(schedule, str):
        return schedule
    return schedule.rounds(0, min(rows[-1]["round"], schedule.num_rounds))


def _visits(schedule: ccfl.Schedule) -> dict[str, Any]:
    """The slots with work, of as many of the first rounds as a page can hold."""
    working = schedule.working()
    shown = int(np.searchsorted(np.cumsum(working.sum(axis=1)), _MOST, side="right"))
    there = working[:shown]
    return {
        "round": np.nonzero(there)[0].tolist(),
        "client": schedule.client[:shown][there].tolist(),
        "staleness": schedule.staleness[:shown][there].tolist(),
        "work": schedule.work[:shown][there].tolist(),
        "unit": schedule.work_unit or "units",
        "time": None if schedule.time is None else numbers(schedule.time[:shown]),
        "clients": schedule.num_clients or int(schedule.client.max(initial=0)) + 1,
        "rounds": schedule.num_rounds,
        "shown": shown,
    }
