"""A worker of a Ray cluster: a process with devices of its own that trains a sweep's trials.

It trains parts of the trials of one program as `trial_training` does in one process, in the sweep's
folder, which all machines share: it keeps checkpoints there, and writes the records.
"""

import contextlib
import io
import os
import socket
import threading
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

import jax

from ccfl_jax.io.files import LOCK
from ccfl_jax.runs import provenance
from ccfl_jax.runs.train_loop import Watch

from ..config import output
from ..config.command import Stopped
from ..config.run_flags import Config
from ..config.sweep_flags import Trials
from ..training import devices
from . import results, trial_checkpoints, trial_training
from .results import Record
from .trial_training import Sweep

SECONDS = 0.5  # between two reports


class Setting(NamedTuple):
    """What a worker needs to know of the sweep.

    Attributes:
        here: the driver's working folder, which paths of flags are relative to.
        folder: of the sweep.
        owner: what its lock says.
        memory: bytes of a device for trials that train together, or None.
        config: of a trial, with the devices of a worker.
        platform: "CPU" or "GPU".
    """

    here: Path
    folder: Path
    owner: str
    memory: float | None
    config: Config
    platform: str

    def is_held(self) -> bool:
        """Whether the driver has the sweep's folder, and this machine shares it."""
        with contextlib.suppress(OSError):
            return (self.here / self.folder / LOCK).read_text() == self.owner
        return False


class Part(NamedTuple):
    """Trials of one program for a worker: the length of their history, how many it has killed."""

    members: Trials
    history: int
    killed: int = 0


class Report(NamedTuple):
    """Of a worker: the rounds of its part, and at the end its records and warnings, else None."""

    rounds: int
    records: list[Record] | None
    lines: list[str]


class Worker:
    """A process that trains one part after the other, in a thread, and reports in between."""

    def __init__(self) -> None:
        self._rounds, self._stop = 0, threading.Event()
        self._thread = futures.ThreadPoolExecutor(1)

    def start(self, setting: Setting) -> Report:
        """Makes the devices; ValueError where the machine does not share the sweep's folder."""
        host = socket.gethostname()
        if not setting.is_held():
            raise ValueError(
                "--out_dir: expected a folder that all machines of the cluster share, found "
                f"another {setting.here / setting.folder} on {host}"
            )
        os.chdir(setting.here)
        on_cpu = setting.platform == "CPU"
        mesh = (devices.start_worker if on_cpu else devices.start)(setting.config)
        if not on_cpu and jax.default_backend() == "cpu":
            raise ValueError(
                f"--cluster: expected JAX for GPUs, or JAX_PLATFORMS=cpu, found a CPU on {host}"
            )
        self._setting, self._made = setting, trial_training.material(mesh)
        self._is_due = trial_training.saved_by_the_minute(setting.config)
        return Report(0, [], [])

    def train(self, part: Part, stop: bool) -> Report:
        """Begins a part."""
        self._rounds = 0
        self._trained = self._thread.submit(self._train, part)
        return self.report(stop)

    def report(self, stop: bool) -> Report:
        """Waits until the part is done, half a second at most; `stop`: whether to stop and save."""
        if stop:
            self._stop.set()
        done = futures.wait([self._trained], SECONDS).done
        return self._trained.result() if done else Report(self._rounds, None, [])

    def update(self, rounds: int) -> None:
        """Counts rounds of trials, as a progress bar does."""
        self._rounds += rounds

    def _stops(self) -> bool:
        """Whether to stop: the driver says so, or is gone and another has the folder."""
        return self._stop.is_set() or not self._setting.is_held()

    def _train(self, part: Part) -> Report:
        trials, folder = part.members, self._setting.folder
        said, records = io.StringIO(), []
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(said),
            output.steady(),
            contextlib.suppress(Stopped),
        ):
            found = trial_training.provenance_of(trials, self._made)
            provenance.check(folder, found)  # the driver's
            digests = {name: results.digest(trial.config) for name, trial in trials.items()}
            begun = trial_checkpoints.groups(folder, digests)
            watch = Watch(self._stops, self._is_due, self, lambda progress: None)
            sweep = Sweep(folder, begun, self._setting.memory, watch)
            for one in trial_training.train(trials, part.history, self._made, sweep):
                records.append(one)  # also those before a stop
        return Report(self._rounds, records, said.getvalue().splitlines())
