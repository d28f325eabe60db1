"""The settings of a run: `config.json`, with every resolved value and the environment.

The environment takes no part in any comparison.
"""

import hashlib
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from ccfl_jax.checks import one_line
from ccfl_jax.io.files import as_json, replace_file

CONFIG = "config.json"


def write(folder: str | os.PathLike, config: Mapping[str, Any]) -> None:
    """Writes `config.json`: the given values, and under "environment" what `environment` tells."""
    text = json.dumps({**config, "environment": environment()}, indent=2, allow_nan=False)
    replace_file(Path(folder) / CONFIG, text + "\n")


def environment() -> dict[str, Any]:
    """When, how and where this process works: date, command, commit, versions and devices."""
    device = jax.devices()[0]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "commit": commit(Path(__file__)),
        "ccfl_jax": version("ccfl_jax"),
        "jax": jax.__version__,
        "backend": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
    }


def commit(file: Path) -> str | None:
    """The commit of the Git checkout that a file belongs to; None for a file in none.

    It ends with "-dirty" where files of the checkout differ from it.
    """
    known = ["ls-files", "--error-unmatch", file.name]  # not one that merely lies around it
    named = ["describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        for words in (known, named):
            line = ["git", "--no-optional-locks", *words]
            done = subprocess.run(
                line, cwd=file.parent, check=True, capture_output=True, text=True, timeout=10
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def check(folder: str | os.PathLike, config: Mapping[str, Any], free: Collection[str]) -> None:
    """Checks that a run is resumed with its own settings.

    Args:
        folder: of the run.
        config: the settings to resume it with.
        free: the fields that may differ.

    Raises:
        FileNotFoundError: if `folder` holds no run.
        ValueError: with every other field that differs and both values.
    """
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: expected the folder of an earlier run, found no {CONFIG}"
        )
    saved = as_json(path.read_bytes(), path)
    if not isinstance(saved, dict):
        raise ValueError(
            f"{path}: expected the settings of a run, found {one_line(str(saved), 80)}"
        )
    check_same(folder, saved, config, free)


def check_same(
    place: str | os.PathLike,
    saved: Mapping[str, Any],
    config: Mapping[str, Any],
    free: Collection[str],
) -> None:
    """Checks settings against those saved in `place`, except the fields in `free`.

    Raises:
        ValueError: naming every other field that differs, with both values.
    """
    names = (saved.keys() | config.keys()) - {"environment", *free}
    differing = [
        f"{name} {saved.get(name)!r} -> {config.get(name)!r}"
        for name in sorted(names)
        if saved.get(name) != config.get(name)
    ]
    if differing:
        differing = one_line(", ".join(differing), 2000)
        raise ValueError(
            f"{place}: expected the same settings, except {', '.join(sorted(free))}, found "
            f"{differing}"
        )


def digest(config: Mapping[str, Any], free: Collection[str]) -> str:
    """SHA-256 of the settings as hexadecimal digits, without those in `free` and None values."""
    kept = {n: v for n, v in sorted(config.items()) if n not in free and v is not None}
    return hashlib.sha256(json.dumps(kept, allow_nan=False).encode()).hexdigest()


def version(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
