"""The settings of a run, in its folder, from which `--resume` continues it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import flag as flags
from .run_flags import RUN

_FILE = "config.json"
# Of a command and not of the run: where it works, not what is trained or written.
_OF_NOW = {
    name
    for name, one in RUN.items()
    if one.may_change == "always" and one.section in ("Run", "Several processes")
} - {"tensorboard"}


def resumed(argv: list[str]) -> list[str]:
    """The command line behind the settings of the run that it resumes, which it may replace.

    Raises:
        ValueError: as `flag.read`, and for a file with other settings than those of a run.
    """
    given = flags.read(argv, RUN).values
    path = Path(given["out_dir"] or "") / _FILE
    if not given["resume"] or given["out_dir"] is None or not path.is_file():
        return argv
    kept = _words(path)
    try:
        flags.read([argv[0], *kept], RUN)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return [argv[0], *kept, *argv[1:]]


def _words(path: Path) -> list[str]:
    """The flags in a file of settings; none of a file that is no object."""
    try:
        saved: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        saved = None  # said when the settings are compared
    return words(saved) if isinstance(saved, dict) else []


def words(saved: Mapping[str, Any]) -> list[str]:
    """The settings that differ from the flags' defaults, as flags."""
    own = {n: v for n, v in saved.items() if n in RUN}
    if own.get("task") is not None:
        own.pop("model", None)  # it stands for the task
    return [
        f"--{name}={value}"
        for name, value in own.items()
        if name not in _OF_NOW and value is not None and value != RUN[name].default
    ]
