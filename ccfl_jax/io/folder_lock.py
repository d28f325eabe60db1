"""The lock of a folder that one process writes."""

import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from ccfl_jax.io.files import LOCK


class Lock(NamedTuple):
    """A folder held by this process.

    Attributes:
        release: ends that; folders that were made for it and are still empty are removed.
        left_by: the process that ended without releasing it last, or None.
    """

    release: Callable[[], None]
    left_by: str | None


def lock(folder: str | os.PathLike) -> Lock:
    """Makes the folder if it does not exist, and locks it for this process.

    The file `lock` names the process. The lock itself is the operating system's, which ends with
    the process, however that ends.

    Raises:
        OSError: with the process that has the lock, or for a folder that cannot be made.
    """
    path = Path(folder) / LOCK
    made = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = open(path, "a+")  # noqa: SIM115, it stays open as long as the lock is held
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(file)
            file.close()
            raise BlockingIOError(
                f"{folder}: expected one process at a time, found in use by {owner}"
            ) from None
        # A process that released the lock in between has removed the file opened here.
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            break
        file.close()
    left_by = _owner(file) or None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()

    def release() -> None:
        if not file.closed:
            path.unlink(missing_ok=True)
            file.close()
            for parent in made:
                if any(parent.iterdir()):
                    break
                parent.rmdir()

    return Lock(release, left_by)


def _owner(file: IO[str]) -> str:
    file.seek(0)
    return file.read(200).strip()
