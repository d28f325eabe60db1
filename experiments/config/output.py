"""Printing that cannot end a command: after a write that fails, the rest of a stream is dropped."""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any


class _Output:
    """A stream whose writes do not fail, also where there is none (None)."""

    def __init__(self, stream: Any, name: str, warns: bool) -> None:
        self._stream, self._name, self._warns = stream or _closed(), name, warns
        self._open, self._pending = True, False

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        # What the encoding lacks is written as \xfc or \u0301.
        self._attempt("write", text.encode(encoding, "backslashreplace").decode(encoding))
        self._pending = True
        return len(text)

    def flush(self) -> None:
        if self._pending:
            self._attempt("flush")
            self._pending = False

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return self._open and self._stream.isatty()
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, call: str, *args: Any) -> None:
        if not self._open:
            return
        try:
            getattr(self._stream, call)(*args)
        except (OSError, ValueError) as error:  # ValueError: it is closed
            self._open = False
            with contextlib.suppress(OSError, ValueError):  # what is buffered goes there at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if self._warns and self is not sys.stderr:
                warn(f"{self._name}: expected an open stream, found {error}; the rest is dropped")


@contextlib.contextmanager
def steady(warns: bool = True) -> Iterator[None]:
    """In this context printing to the standard streams never raises an error.

    Python's warnings are lines like all others.

    Args:
        warns: whether a line on stderr says that the rest of stdout is dropped.
    """
    _fill_descriptors()
    streams, show = (sys.stdout, sys.stderr), warnings.showwarning
    sys.stdout, sys.stderr = (
        _Output(stream, name, warns)
        for stream, name in zip(streams, ("stdout", "stderr"), strict=True)
    )
    warnings.showwarning = lambda message, *_, **__: warn(" ".join(str(message).split()))
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams
        warnings.showwarning = show


def say(line: str) -> None:
    """Prints a line, above the progress bar where there is one."""
    from tqdm.auto import tqdm

    with tqdm.external_write_mode():
        print(line, flush=True)


def warn(line: str) -> None:
    """Prints a warning in one line."""
    print(f"warning   {line}", file=sys.stderr)


def _closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def _fill_descriptors() -> None:
    """Opens the descriptors 0 to 2 that are closed: a file would get one, and what is printed."""
    while (new := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(new)
