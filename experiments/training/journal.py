"""How far training has come, in memory and in its folder: of a run, or of trials side by side.

Either folder has `metrics.jsonl`, the rows as they come, and `checkpoints/`. A run is one trial,
whose name is empty and whose state has no axis of trials.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import ccfl_jax as ccfl
from ccfl_jax.runs import checkpoints as saving
from ccfl_jax.runs import metrics
from ccfl_jax.runs.metrics import Row


class Progress(NamedTuple):
    """How far trials have come that train together.

    Attributes:
        states: of a run; or those of trials, `[trials, ...]`, all at the same round, and perhaps
            some more, which fill the devices.
        infos: the rounds since the last rows, `[trials, rounds, ...]`; None where there are none.
        rows: of each trial.
        seconds: how long those rounds took.
    """

    states: ccfl.State
    infos: ccfl.Info | None
    rows: list[list[Row]]
    seconds: float

    @property
    def done(self) -> int:
        """The rounds done."""
        return int(np.max(self.states.round))

    def alive(self, max_rejected: int | None) -> list[bool]:
        """Whether each trial goes on: its model is not lost, nor more uploads than may be."""
        return [not (rows and metrics.has_failed(rows, max_rejected)) for rows in self.rows]


class Journal(NamedTuple):
    """The folder that holds it.

    Attributes:
        folder: of the run, or of the trials.
        names: of the trials; ("",) for a run.
        settings: a digest of the settings of each.
        schedules: of each trial, or one for all of them.
        checkpoints: the open Orbax manager.
    """

    folder: Path
    names: Sequence[str]
    settings: list[str]
    schedules: list[ccfl.Schedule]
    checkpoints: Any


def start(states: ccfl.State, trials: int) -> Progress:
    """Where so many trials stand before round 0."""
    return Progress(states, None, [[] for _ in range(trials)], 0.0)


def add(journal: Journal, progress: Progress, new: dict[int, Row]) -> Progress:
    """Writes a row of some trials, by number; returns the progress with them.

    Raises:
        OSError: if they cannot be written; then none of them is.
    """
    names = journal.names
    named = [{"trial": names[k], **row} if names[k] else row for k, row in new.items()]
    rows = [*progress.rows]
    for k, row in zip(new, metrics.append_rows(journal.folder, named), strict=True):
        rows[k] = [*rows[k], {name: value for name, value in row.items() if name != "trial"}]
    return progress._replace(rows=rows)


def save(journal: Journal, progress: Progress, score: float | None = None) -> None:
    """Saves a checkpoint; after its rows, for one without them would leave a gap in the record.

    Raises:
        OSError: if it could not be written.
    """
    trials, states = len(progress.rows), progress.states
    about = {
        "trials": [*journal.names],
        "rows": [len(rows) for rows in progress.rows],
        "seconds": progress.seconds,
        "settings": journal.settings,
        "schedules": _digests(journal, progress.done),
    }
    if np.ndim(states.round):  # there may be more than trials, to fill the devices
        states = jax.tree.map(lambda a: a[:trials], states)
    saving.save(journal.checkpoints, states, progress.infos, about, score)


def newest(
    journal: Journal, like: ccfl.State | Callable[[Sequence[str]], ccfl.State]
) -> saving.Saved | None:
    """The newest checkpoint that is whole; None if there is none at all.

    Args:
        journal: of trials that are in the checkpoint, perhaps of some of them alone.
        like: of a run, a state before round 0; of trials, a function that gives those of any names.

    Raises:
        OSError: if there are checkpoints, but none is whole.
    """

    def wanted(about: dict[str, Any]) -> ccfl.State:
        return like(about.get("trials", journal.names)) if callable(like) else like

    saved, broken = saving.restore(journal.checkpoints, wanted)
    for line in broken:
        warn(journal.folder, line)
    return None if saved is None else _of_old(journal, saved)


def go_on(journal: Journal, saved: saving.Saved) -> Progress:
    """Where a checkpoint left off; what follows it in the record of rows is cut off.

    Raises:
        ValueError: if it was made with other settings, or on another schedule.
    """
    about, states, infos = saved.about, saved.state, saved.infos
    _check_same(journal, about, int(np.max(states.round)))
    counts = dict(zip(about["trials"], about["rows"], strict=True))
    rows = metrics.keep_rows(journal.folder, {name: counts[name] for name in journal.names})
    if np.ndim(states.round):
        places = np.array([about["trials"].index(name) for name in journal.names])
        states, infos = jax.tree.map(lambda a: a[places], (states, infos))
    return Progress(states, infos, rows, about["seconds"])


def warn(folder: Path, line: str) -> None:
    """Says what is wrong with a folder and does not stop anything."""
    print(f"warning   {folder}: {line}", file=sys.stderr)


def _digests(journal: Journal, done: int) -> list[str]:
    return [schedule.rounds(0, done).digest() for schedule in journal.schedules]


def _check_same(journal: Journal, about: dict[str, Any], done: int) -> None:
    settings = dict(zip(about["trials"], about["settings"], strict=True))
    if [settings[name] for name in journal.names] != journal.settings:
        raise ValueError(
            f"{journal.folder}: expected the settings that the checkpoint of round {done} was made "
            "with, found others"
        )
    schedules = about["schedules"]
    if schedules is not None and not {*_digests(journal, done)} <= {*schedules}:
        raise ValueError(
            f"{journal.folder}: expected the schedule of its first {done} rounds, found another"
        )


def _of_old(journal: Journal, saved: saving.Saved) -> saving.Saved:
    """What was saved; brought into this form where it is in one of those before it.

    A run's then has no axis of trials, and trials have their rows in the checkpoint itself.
    """
    about = saved.about
    if "trials" in about:
        return saved
    if isinstance(about["rows"], int):
        infos = jax.tree.map(lambda a: a[None], saved.infos)
        own = {"trials": [""], "rows": [about["rows"]], "settings": [about["settings"]]}
        return saved._replace(infos=infos, about=about | own | {"schedules": [about["schedule"]]})
    each = [*zip(journal.names, about["rows"], strict=True)]
    (journal.folder / metrics.METRICS).unlink(missing_ok=True)
    metrics.append_rows(journal.folder, [{"trial": n, **row} for n, rows in each for row in rows])
    own = {"trials": [*journal.names], "settings": journal.settings, "schedules": None}
    return saved._replace(about=about | own | {"rows": [len(rows) for _, rows in each]})
