"""A sweep: trials in groups that share a program, each written when it is done."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from ccfl_jax.io import files as folders
from ccfl_jax.runs import provenance, run_config, train_loop
from ccfl_jax.runs.train_loop import Watch

from ..config import output
from ..config.command import DIVERGED, DONE, FAILED, Stopped
from ..config.run_flags import Config
from ..config.sweep_file import SWEEP_FILE
from ..config.sweep_flags import Trials, named
from ..training import devices, journal, method
from ..training.signals import on_signals
from . import ray_driver, results, trial_checkpoints, trial_group, trial_training
from .results import Record
from .trial_training import Material, Sweep


def exit_code(done: Sequence[Record]) -> int:
    """4 where a trial failed, else 3 where one diverged, else 0."""
    statuses = {one.status for one in done}
    return FAILED if "failed" in statuses else DIVERGED if "diverged" in statuses else DONE


def start(config: Config, cluster: str | None) -> Mesh:
    """The devices of this process: those that train or, with a cluster, one of a CPU.

    Raises:
        ValueError, OSError, ImportError: for devices or a cluster that cannot be used.
    """
    if cluster is None:
        return devices.start(config)
    ray_driver.connect(cluster, config)  # before JAX has threads: it forks
    return devices.start_driver(config)


def run(
    trials: Trials,
    folder: str | os.PathLike,
    memory: float | None = None,
    overwrite: bool = False,
    flags: Mapping[str, Any] | None = None,
    cluster: str | None = None,
) -> list[Record]:
    """Trains the trials without a record in `folder`; returns the records of all.

    A trial that cannot be trained has a record with the reason, and the others continue.

    Args:
        trials: by name, in the order of training.
        folder: of the sweep.
        memory: bytes of a device for trials that train together; by default a quarter of an
            accelerator's. On a CPU each device trains one at a time.
        overwrite: whether to remove an earlier sweep in `folder` first.
        flags: written to `folder` before training, to resume from; None: nothing is.
        cluster: whose workers train, as the flag `--cluster`; None: this process does.

    Raises:
        ValueError, OSError: for a folder in use or with other trials of these names, and for data
            that cannot be read, if all trials share them.
        ImportError, RuntimeError: for a cluster that cannot be used.
        Stopped: after a signal, when everything is saved.
    """
    configs = [trial.config for trial in trials.values()]
    made = trial_training.material(start(configs[0], cluster))
    for trial in trials.values():
        with named(trial.varied):
            method.check(trial.config)
    lock = journal.lock(folder)
    try:
        if overwrite:
            folders.check_unused(folder, results.FILES)
            folders.clear(folder, results.FILES)
        with on_signals() as stop_requested:
            return _run(trials, Path(folder), made, memory, flags, stop_requested, cluster)
    finally:
        trial_checkpoints.remove_all(folder)
        lock.release()


def _run(
    trials: Trials,
    folder: Path,
    made: Material,
    memory: float | None,
    flags: Mapping[str, Any] | None,
    stop_requested: Callable[[], bool],
    cluster: str | None,
) -> list[Record]:
    done = results.read(folder, trials)
    left = {name: trial for name, trial in trials.items() if name not in done}
    digests = {name: results.digest(trial.config) for name, trial in left.items()}
    begun = trial_checkpoints.groups(folder, digests)
    going = f", {sum(map(len, begun))} unfinished" if begun else ""
    print(f"sweep     {folder}: {len(trials)} trials, {len(done)} of them done before{going}")
    trial_training.make_schedules(trials, made)
    config, found = next(iter(trials.values())).config, trial_training.provenance_of(trials, made)
    provenance.check(folder, found, config.accepted)
    if config.tensorboard:
        for one in done.values():
            results.write_events(folder, one)
    if not left:
        return [done[name] for name in trials]
    provenance.write(folder, found)
    if flags is not None:
        about = {**flags, "environment": run_config.environment()}
        results.write_summary(folder / SWEEP_FILE, about)
    total = sum(one.config.rounds for one in left.values())
    with train_loop.progress_bar(total, shown=config.progress) as bar:
        is_due = trial_training.saved_by_the_minute(config)
        watch = Watch(stop_requested, is_due, bar, lambda progress: None)
        sweep, groups = Sweep(folder, begun, memory, watch), _groups(trials, left, made)
        for one in _train(groups, made, sweep, cluster):
            done[one.name] = one
            if config.tensorboard:
                results.write_events(folder, one)
            output.say(f"trial     {results.line(one)}")
    if len(done) < len(trials):
        raise Stopped("the same command continues")
    return [done[name] for name in trials]


def _groups(trials: Trials, left: Trials, made: Material) -> list[tuple[Trials, int]]:
    """Those that are left in groups that share a program, each with its trials' history."""
    found: dict[tuple, Trials] = {}
    for name, trial in trials.items():
        found.setdefault(trial_group.shared(trial.config), {})[name] = trial
    groups = []
    for every in found.values():
        own = {name: trial for name, trial in every.items() if name in left}
        # Of all of them, so that unfinished ones are resumed with the same length.
        history = max(made.schedule(trial.config)[1] for trial in every.values())
        groups += [(own, history)] if own else []
    return groups


def _train(
    groups: list[tuple[Trials, int]], made: Material, sweep: Sweep, cluster: str | None
) -> Iterator[Record]:
    """Trains in this process or, with a cluster, on its workers."""
    if cluster is not None:
        yield from ray_driver.train(groups, sweep, cluster)
        return
    for members, history in groups:
        yield from trial_training.train(members, history, made, sweep)
