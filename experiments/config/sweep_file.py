"""The flags that a sweep was started with, in its folder, from which `--resume` continues it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import flag as flags
from .flag import Given, Table

SWEEP_FILE = "sweep.json"
# Not of the sweep, but of a command.
OF_NOW = ("out_dir", "resume", "overwrite", "accept_changed", "cluster")
_PARTS = ("of_files", "written")  # given in flag files, and on the command line itself


def flags_of(given: Given) -> dict[str, dict[str, Any]]:
    """What `resumed` reads: the flags given in flag files, and those on the command line itself."""
    own = {name: given.values[name] for name in sorted(given.names) if name not in OF_NOW}
    every = ({n: v for n, v in own.items() if (n in given.written) == kind} for kind in (0, 1))
    return dict(zip(_PARTS, every, strict=True))


def resumed(argv: list[str], folder: str, known: Table) -> Given:
    """The command line `argv` behind the flags in `folder`, where it may replace them.

    Raises:
        FileNotFoundError: if `folder` is none of a sweep.
        ValueError: for a file that holds no flags of a sweep; and as `flags.read`.
    """
    path = Path(folder) / SWEEP_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: expected the folder of a sweep, found no {SWEEP_FILE}")
    try:
        of_files, written = (_words(part) for part in _read(path, known))
        flags.read([argv[0], *of_files, *written], known)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    before = flags.read([argv[0], *of_files], known).names
    own = flags.read([argv[0], *written, *argv[1:]], known).written
    found = flags.read([argv[0], *of_files, *written, *argv[1:]], known)
    return found._replace(written=found.written - before | own)


def _words(part: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in part.items()]


def _read(path: Path, known: Table) -> list[dict[str, Any]]:
    """The two parts of the file; their values are not checked."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON, found {error}") from None
    parts = [found.get(name) for name in _PARTS] if isinstance(found, dict) else []
    for part in parts or [None]:
        if not isinstance(part, dict) or not part.keys() <= known.keys() - {*OF_NOW}:
            raise ValueError(
                f"expected flags of a sweep in {', '.join(_PARTS)}, found {part!r:.80}"
            )
    return parts
