"""Stopping by SIGTERM or SIGINT, after the current piece of training."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def on_signals() -> Iterator[Callable[[], bool]]:
    """In this context a first signal requests a stop, and a second one ends the process at once.

    A thread waits for them: the main one may be in a compiled program for long, and Python handles
    no signal before that returns.

    Yields:
        `stop_requested()`, whether any process of the run got a signal; all processes have to call
        it the same number of times.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread may handle signals
        return
    got: list[int] = []
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    old = signal.set_wakeup_fd(theirs.fileno())
    threading.Thread(target=_note, args=(ours, got), daemon=True).start()
    try:
        yield lambda: _anywhere(bool(got))
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        theirs.close()  # ends the thread


def _note(incoming: socket.socket, got: list[int]) -> None:
    while data := incoming.recv(1):
        if data[0] not in _SIGNALS:
            continue
        if got:
            os._exit(128 + data[0])
        got.append(data[0])
        name = signal.Signals(data[0]).name
        os.write(
            2, f"\n{name}: stops after this piece of rounds; once more ends at once\n".encode()
        )
    incoming.close()


def _anywhere(here: bool) -> bool:
    """Whether it holds in any process: they would wait for each other otherwise."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return here
    return bool(multihost_utils.process_allgather(np.asarray(here)).any())
