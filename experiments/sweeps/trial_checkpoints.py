"""Trials of a sweep that are not done: kept, so that a sweep that was stopped goes on with them.

Trials that advance together are kept together, in a folder of `underway/` that is gone once their
records are written: `trials.json` names them and their settings, the rest is as a run's.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ccfl_jax.checks import one_line
from ccfl_jax.io.files import as_json, replace_file

UNDERWAY, _LIST = "underway", "trials.json"


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
                raise ValueError(f"{path}: expected the settings of {name!r}, found others")
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


def _lists(folder: str | os.PathLike) -> list[Path]:
    return sorted((Path(folder) / UNDERWAY).glob(f"*/{_LIST}"))


def _read(path: Path) -> dict[str, str]:
    """name -> digest of the settings of each trial."""
    found = as_json(path.read_bytes(), path)
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError(
            f"{path}: expected a digest for each trial, found {one_line(str(found), 80)}"
        )
    return found
