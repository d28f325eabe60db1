"""The progress of training, in memory and in its folder: of a run, or of trials together.

Both have a folder with `metrics.jsonl` and `checkpoints/`. A run is one trial with an empty name,
whose state has no axis of trials.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm.auto import tqdm

import ccfl_jax as ccfl
from ccfl_jax.io import folder_lock
from ccfl_jax.runs import checkpoints as saving
from ccfl_jax.runs import metrics
from ccfl_jax.runs.metrics import Row
from ccfl_jax.runs.train_loop import Progress, Store

from ..config import output


class Journal(NamedTuple):
    """The folder of a run, or of trials that train together.

    Attributes:
        folder: its path.
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


def store(own: Journal) -> Store:
    """Where the training loop keeps rows and checkpoints."""
    return Store(partial(add, own), partial(save, own))


def add(journal: Journal, progress: Progress, new: dict[int, Row]) -> Progress:
    """Writes rows, number of the trial -> row; returns the progress with them.

    Raises:
        OSError: if they cannot be written; then none is.
    """
    names = journal.names
    named = [{"trial": names[k], **row} if names[k] else row for k, row in new.items()]
    rows = [*progress.rows]
    for k, row in zip(new, metrics.append_rows(journal.folder, named), strict=True):
        rows[k] = [*rows[k], {name: value for name, value in row.items() if name != "trial"}]
        if (line := metrics.rejection(rows[k])) and jax.process_index() == 0:
            with tqdm.external_write_mode():
                warn(journal.folder / names[k], line)
    return progress._replace(rows=rows)


def save(journal: Journal, progress: Progress, score: float | None = None) -> None:
    """Saves a checkpoint; after its rows, as one without them would leave a gap in the metrics.

    Raises:
        OSError: if it cannot be written.
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
    """The newest undamaged checkpoint; None if there is none at all.

    Args:
        journal: of all or some of the trials in the checkpoint.
        like: a state of the run; or a function that returns states of trials for their names.

    Raises:
        OSError: if all checkpoints are damaged.
    """

    def wanted(about: dict[str, Any]) -> ccfl.State:
        return like(about.get("trials", journal.names)) if callable(like) else like

    saved, broken = saving.restore(journal.checkpoints, wanted)
    for line in broken:
        warn(journal.folder, line)
    return None if saved is None else _of_old(journal, saved)


def resumed(journal: Journal, saved: saving.Saved) -> Progress:
    """The progress at a checkpoint; rows after it are removed from `metrics.jsonl`.

    Raises:
        ValueError: if it was made with other settings, or another schedule.
    """
    about, states, infos = saved.about, saved.state, saved.infos
    _check_same(journal, about, int(np.asarray(states.round).max()))
    counts = dict(zip(about["trials"], about["rows"], strict=True))
    rows = metrics.keep_rows(journal.folder, {name: counts[name] for name in journal.names})
    if np.ndim(states.round):
        places = np.array([about["trials"].index(name) for name in journal.names])
        states, infos = jax.tree.map(lambda a: a[places], (states, infos))
    return Progress(states, infos, rows, about["seconds"])


def lock(folder: str | os.PathLike) -> folder_lock.Lock:
    """Locks a folder, with a warning where its last process was killed or there are no locks."""
    found = folder_lock.lock(folder)
    if not found.is_locked:
        line = "expected a file system with locks, found none: one process alone may use it"
        also = f"; {found.left_by} does, or ended without releasing it" if found.left_by else ""
        warn(Path(folder), line + also)
    elif found.left_by:
        warn(Path(folder), f"{found.left_by} ended without releasing it")
    return found


def warn(folder: Path, line: str) -> None:
    """Prints a warning about a folder."""
    output.warn(f"{folder}: {line}")


def _digests(journal: Journal, done: int) -> list[str]:
    return [schedule.rounds(0, done).digest() for schedule in journal.schedules]


def _check_same(journal: Journal, about: dict[str, Any], done: int) -> None:
    settings = dict(zip(about["trials"], about["settings"], strict=True))
    if [settings[name] for name in journal.names] != journal.settings:
        raise ValueError(
            f"{journal.folder}: expected the settings of the checkpoint of round {done}, found "
            "others"
        )
    schedules = about["schedules"]
    if schedules is not None and not {*_digests(journal, done)} <= {*schedules}:
        raise ValueError(
            f"{journal.folder}: expected the schedule of its first {done} rounds, found another"
        )


def _of_old(journal: Journal, saved: saving.Saved) -> saving.Saved:
    """The checkpoint in today's form, if it is of an earlier version.

    There a run's has no axis of trials, and those of trials hold their rows.
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
