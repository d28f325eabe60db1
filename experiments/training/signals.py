"""Stopping by a signal, after the current piece of training."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

# Of people who end a job, schedulers that do or warn of it, and terminals.
_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
# The others come twice by themselves: SIGXCPU every second, SIGHUP from the shell and the system.
_IMPATIENT = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def on_signals() -> Iterator[Callable[[], bool]]:
    """In this context a signal requests a stop, and a second SIGTERM or SIGINT ends the process.

    SIGHUP stays ignored where `nohup` started the process.

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
    heard = [one for one in _SIGNALS if not _by_nohup(one)]
    before = {number: signal.signal(number, lambda *_: None) for number in heard}
    old = signal.set_wakeup_fd(theirs.fileno())
    threading.Thread(target=_note, args=(ours, got), daemon=True).start()
    try:
        yield lambda: _anywhere(bool(got))
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            # One that comes again by itself does not end what is left to do.
            again = number in got and number not in _IMPATIENT
            signal.signal(number, signal.SIG_IGN if again else handler)
        theirs.close()  # ends the thread


def _by_nohup(number: int) -> bool:
    return number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) == signal.SIG_IGN


def _note(incoming: socket.socket, got: list[int]) -> None:
    while data := incoming.recv(1):
        if data[0] not in _SIGNALS:
            continue
        number = signal.Signals(data[0])
        if number in got and number in _IMPATIENT:
            os._exit(128 + number)
        if number in got:
            continue
        got.append(number)
        again = "; once more ends at once" if number in _IMPATIENT else ""
        line = f"\n{number.name}: stops after this piece of rounds{again}\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode())
    incoming.close()


def _anywhere(here: bool) -> bool:
    """Whether it holds in any process: they would wait for each other otherwise."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return here
    return bool(multihost_utils.process_allgather(np.asarray(here)).any())
