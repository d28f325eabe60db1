"""Checkpoints of the unfinished trials of a sweep.

Trials that train together have a folder in `underway/`, which is removed once their records are
written: `trials.json` has their names and digests of settings, the rest is as in a run's folder.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ccfl_jax.checks import one_line
from ccfl_jax.io.files import as_json, replace_file

from ..config.sweep_flags import file_of

UNDERWAY, _LIST = "underway", "trials.json"


def groups(folder: str | os.PathLike, digests: Mapping[str, str]) -> list[list[str]]:
    """The unfinished trials in a sweep's folder, as they trained together.

    Args:
        folder: of the sweep.
        digests: of the settings of each trial without a record.

    Raises:
        ValueError: for a trial with other settings, and for a file that cannot be read.
    """
    found = []
    for path, every in _lists(folder):
        kept = {name: digest for name, digest in every.items() if name in digests}
        for name, digest in kept.items():
            if digest != digests[name]:
                raise ValueError(f"{path}: expected the settings of {name!r}, found others")
        found += [list(kept)] if kept else []
    return found


def place(folder: str | os.PathLike, digests: Mapping[str, str]) -> Path:
    """The folder of these trials: the one they have, or a new one."""
    for path, every in _lists(folder):
        if digests.keys() <= every.keys():
            return path.parent
    path = Path(folder) / UNDERWAY / file_of(next(iter(digests)))
    path.mkdir(parents=True, exist_ok=True)
    replace_file(path / _LIST, json.dumps(dict(digests)) + "\n")
    return path


def remove(path: Path) -> None:
    """Removes the folder of trials that are done."""
    shutil.rmtree(path)


def remove_all(folder: str | os.PathLike) -> None:
    """Removes what is left where no trial is unfinished; after all of a sweep's processes."""
    with contextlib.suppress(OSError):  # it is not empty, or not there
        (Path(folder) / UNDERWAY).rmdir()


def _lists(folder: str | os.PathLike) -> list[tuple[Path, dict[str, str]]]:
    """Each list of unfinished trials: its file, and what it holds."""
    found = []
    for path in sorted((Path(folder) / UNDERWAY).glob(f"*/{_LIST}")):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            found.append((path, _read(path)))
    return found


def _read(path: Path) -> dict[str, str]:
    """name -> digest of the settings of each trial."""
    found = as_json(path.read_bytes(), path)
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError(
            f"{path}: expected a digest for each trial, found {one_line(str(found), 80)}"
        )
    return found
