"""The lock of a folder that one process writes."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from ccfl_jax.io.files import LOCK

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

# What file systems without locks answer.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class Lock(NamedTuple):
    """A folder held by this process.

    Attributes:
        release: ends that; folders that were made for it and are still empty are removed.
        left_by: the process that ended without releasing it last, or None; where there are no
            locks, one that may still use it.
        is_locked: False where the system or the file system has no locks.
    """

    release: Callable[[], None]
    left_by: str | None
    is_locked: bool


def lock(folder: str | os.PathLike) -> Lock:
    """Makes the folder if it does not exist, and locks it for this process.

    The file `lock` names the process. The lock itself is the operating system's, which ends with
    the process, however that ends; where there is none, the folder is used without.

    Raises:
        OSError: with the process that has the lock, or for a folder that cannot be made.
    """
    path = Path(folder) / LOCK
    made = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = open(path, "a+")  # noqa: SIM115, it stays open as long as the lock is held
        try:
            is_locked = _flock(file)
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

    return Lock(release, left_by, is_locked)


def _flock(file: IO[str]) -> bool:
    """Locks an open file; False where there are no locks, BlockingIOError where another has it."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise OSError(f"{file.name}: expected a lock, found {error}") from None
    return True


def _owner(file: IO[str]) -> str:
    file.seek(0)
    return file.read(200).strip()
