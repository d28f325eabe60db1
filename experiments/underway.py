"""Trials of a sweep that are under way: kept, so that a sweep that was stopped goes on with them.

Trials that advance together are saved together, in a folder of `underway/` that is gone once their
records are written: `trials.json` names them and their settings, `checkpoints/` is as a run's.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import ccfl_jax as ccfl
from ccfl_jax import checkpoints as saving
from ccfl_jax.checks import one_line
from ccfl_jax.folder import as_json, replace_file

UNDERWAY, _LIST = "underway", "trials.json"


class Position(NamedTuple):
    """Where trials stand that advance together.

    Attributes:
        states: `[trials, ...]`, all at the same round.
        infos: the rounds since their last rows, `[trials, rounds, ...]`; None where there are none.
        rows: of each trial.
        alive: bool `[trials]`, whether it goes on.
        seconds: how long the rounds since the last rows took.
    """

    states: ccfl.State
    infos: ccfl.Info | None
    rows: list[list[dict[str, Any]]]
    alive: np.ndarray
    seconds: float


def groups(folder: str | os.PathLike, digests: Mapping[str, str]) -> list[list[str]]:
    """The trials that are under way in a sweep's folder, as they advanced together.

    Args:
        folder: of the sweep.
        digests: of the settings of each trial that is left.

    Raises:
        ValueError: for one with other settings, and for a file that cannot be read.
    """
    found = []
    for path in _lists(folder):
        kept = {name: digest for name, digest in _read(path).items() if name in digests}
        for name, digest in kept.items():
            if digest != digests[name]:
                raise ValueError(f"{path}: found {name!r} with other settings, legal: the same")
        found += [list(kept)] if kept else []
    return found


def place(folder: str | os.PathLike, digests: Mapping[str, str]) -> Path:
    """The folder for these trials, that where they are under way already or a new one."""
    for path in _lists(folder):
        if digests.keys() <= _read(path).keys():
            return path.parent
    path = Path(folder) / UNDERWAY / next(iter(digests)).replace(" ", ",")
    path.mkdir(parents=True, exist_ok=True)
    replace_file(path / _LIST, json.dumps(dict(digests)) + "\n")
    return path


def remove(path: Path) -> None:
    """Removes the folder of trials that are done."""
    shutil.rmtree(path)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()


def save(checkpoints: Any, position: Position) -> None:
    """Saves where trials stand."""
    about = {
        "rows": position.rows,
        "alive": position.alive.tolist(),
        "seconds": position.seconds,
    }
    saving.save(checkpoints, position.states, position.infos, about)


def take_up(
    checkpoints: Any, path: Path, names: Sequence[str], like: ccfl.State
) -> Position | None:
    """Where the trials `names` stood; None where nothing of it is to be had.

    Args:
        checkpoints: those in `path`.
        path: the folder of these trials, perhaps of others too that are done by now.
        names: the trials to go on with.
        like: a state before round 0, `[1, ...]`.
    """
    every = list(_read(path / _LIST))
    first = np.zeros(len(every), np.int32)
    try:
        saved, broken = saving.restore(checkpoints, jax.tree.map(lambda a: a[first], like))
    except OSError as error:
        saved, broken = None, [f"{error}; from the start"]
        for number in checkpoints.all_steps():
            checkpoints.delete(number)
    for line in broken:
        print(f"warning   {path}: {line}", file=sys.stderr)
    if saved is None:
        return None
    places, about = np.array([every.index(name) for name in names]), saved.about
    states, infos = jax.tree.map(lambda a: a[places], (saved.state, saved.infos))
    rows = [about["rows"][at] for at in places]
    return Position(states, infos, rows, np.array(about["alive"])[places], about["seconds"])


def _lists(folder: str | os.PathLike) -> list[Path]:
    return sorted((Path(folder) / UNDERWAY).glob(f"*/{_LIST}"))


def _read(path: Path) -> dict[str, str]:
    """name -> digest of the settings, in the order in which the trials are stacked."""
    found = as_json(path.read_bytes(), path)
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError(
            f"{path}: found {one_line(str(found), 80)}, legal: a digest for each trial"
        )
    return found
