"""Files of a folder that one process writes: whole, and no others are overwritten."""

import json
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from reprlib import repr as shortened
from typing import IO, Any

LOCK, _UNFINISHED = "lock", ".tmp"


def check_unused(folder: str | os.PathLike, own: Collection[str] | None = None) -> None:
    """Checks that a folder for a new run is new, empty, or to be overwritten.

    Args:
        folder: its path.
        own: names that may be in it, because they are to be overwritten; None: no name.

    Raises:
        OSError: with what was found.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: expected a new or an empty folder, found a file")
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    names = [name for name in names if name != LOCK]
    if own is None and names:
        raise FileExistsError(
            f"{folder}: expected a new or an empty folder (or resuming, or overwriting), found "
            "content"
        )
    foreign = [name for name in names if own and not _is_own(name, own)]
    if own and foreign:
        raise FileExistsError(
            f"{folder}: expected only {', '.join(own)} in a folder to overwrite, found {foreign[0]}"
        )


def clear(folder: str | os.PathLike, own: Collection[str]) -> None:
    """Removes the files and folders named in `own`, and unfinished copies of them."""
    for name in os.listdir(folder):
        path = Path(folder) / name
        if _is_own(name, own):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def write_whole(path: str | os.PathLike, write: Callable[[IO[bytes]], Any]) -> None:
    """Writes a file whole or not at all: if it is interrupted, the old file stays.

    Args:
        path: of the file.
        write: `write(file)` writes its content.
    """
    temporary = Path(f"{os.fspath(path)}{_UNFINISHED}")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_file(path: str | os.PathLike, text: str) -> None:
    """`write_whole` of a text."""
    write_whole(path, lambda file: file.write(text.encode()))


def append_line(path: str | os.PathLike, line: str) -> None:
    """Adds a line to a file, whole or not at all.

    Raises:
        OSError: if there is no room for all of it.
    """
    data = (line + "\n").encode()
    with open(path, "ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            if file.write(data) < len(data):
                raise OSError(
                    f"{os.fspath(path)}: expected room for a line of {len(data)} bytes, found less"
                )
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise


def as_json(data: bytes, path: str | os.PathLike, nan: bool = False) -> Any:
    """The value of strict JSON, read from `path`: each name of an object once, and without NaN and
    Infinity unless `nan`, as of a file whose numbers are looked at with their places.

    Raises:
        ValueError: with the file's name, if it is not strict JSON.
    """
    try:
        constant = None if nan else _no_constant
        return json.loads(
            data.decode(), parse_constant=constant, object_pairs_hook=_without_repeats
        )
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        said = reason if reason.startswith("expected ") else f"expected JSON, found {reason}"
        raise ValueError(f"{os.fspath(path)}: {said}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"expected numbers, found {name}")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"expected each name once, found {shortened(twice)} again")
    return found


def _is_own(name: str, own: Collection[str]) -> bool:
    return name.removesuffix(_UNFINISHED) in own
