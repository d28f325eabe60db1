"""A sweep: trials in groups that share a program, each written when it is done."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ccfl_jax as ccfl
from ccfl_jax.io import files as folders
from ccfl_jax.runs import checkpoints as saving
from ccfl_jax.runs import provenance, run_config, train_loop
from ccfl_jax.runs.metrics import Row
from ccfl_jax.runs.train_loop import Progress, Watch

from ..config import output
from ..config.command import DIVERGED, DONE, ERRORS, FAILED, Stopped
from ..config.run_flags import Config
from ..config.sweep_file import SWEEP_FILE
from ..config.sweep_flags import Trial, Trials, named
from ..training import devices, intervals, journal, method, parts, run_schedule, tasks
from ..training.journal import Journal
from ..training.signals import on_signals
from . import results, trial_checkpoints, trial_group
from .results import Record
from .trial_group import Group


class _Sweep(NamedTuple):
    """What all trials of a sweep have in common.

    Attributes:
        folder: of the sweep.
        begun: the names of unfinished trials, as they trained together.
        task_data: `task_data(source, model, compute_dtype)`: a `TaskData`, cached.
        schedule: `schedule(config)`: of a trial, and the length of its history; made once for
            `trial_group.data_settings`.
        memory: bytes of a device for trials that train together, or None.
        watch: of the training loop.
    """

    folder: Path
    begun: list[list[str]]
    task_data: Callable[..., trial_group.TaskData]
    schedule: Callable[[Config], tuple[ccfl.Schedule, int]]
    memory: float | None
    watch: Watch


def exit_code(done: Sequence[Record]) -> int:
    """4 where a trial failed, else 3 where one diverged, else 0."""
    statuses = {one.status for one in done}
    return FAILED if "failed" in statuses else DIVERGED if "diverged" in statuses else DONE


def run(
    trials: Trials,
    folder: str | os.PathLike,
    memory: float | None = None,
    overwrite: bool = False,
    flags: Mapping[str, Any] | None = None,
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

    Raises:
        ValueError, OSError: for a folder in use or with other trials of these names, and for data
            that cannot be read, if all trials share them.
        Stopped: after a signal, when everything is saved.
    """
    configs = [trial.config for trial in trials.values()]
    mesh = devices.start(configs[0])
    for trial in trials.values():
        with named(trial.varied):
            method.check(trial.config)
    # The last few are kept, for methods with the same task.
    task_data = functools.lru_cache(maxsize=4)(functools.partial(trial_group.task_data, mesh))
    lock = journal.lock(folder)
    try:
        if overwrite:
            folders.check_unused(folder, results.FILES)
            folders.clear(folder, results.FILES)
        with on_signals() as stop_requested:
            return _run(trials, Path(folder), task_data, memory, flags, stop_requested)
    finally:
        lock.release()


def _run(
    trials: Trials,
    folder: Path,
    task_data: Callable[..., trial_group.TaskData],
    memory: float | None,
    flags: Mapping[str, Any] | None,
    stop_requested: Callable[[], bool],
) -> list[Record]:
    done = results.read(folder, trials)
    left = {name: trial for name, trial in trials.items() if name not in done}
    digests = {name: results.digest(trial.config) for name, trial in left.items()}
    begun = trial_checkpoints.groups(folder, digests)
    going = f", {sum(map(len, begun))} unfinished" if begun else ""
    print(f"sweep     {folder}: {len(trials)} trials, {len(done)} of them done before{going}")
    schedule, config = _schedules(trials), next(iter(trials.values())).config
    found = _provenance(trials, task_data, schedule)
    provenance.check(folder, found, config.accepted)
    if not left:
        return [done[name] for name in trials]
    provenance.write(folder, found)
    if flags is not None:
        about = {**flags, "environment": run_config.environment()}
        results.write_summary(folder / SWEEP_FILE, about)
    minutes = intervals.Minutes()

    def is_due(done: int, over: bool) -> bool:
        return not over and minutes.is_checkpoint(config, done)

    total = sum(one.config.rounds for one in left.values())
    with train_loop.progress_bar(total, shown=config.progress) as bar:
        watch = Watch(stop_requested, is_due, bar, lambda progress: None)
        sweep = _Sweep(folder, begun, task_data, schedule, memory, watch)
        for members in _alike(trials):
            # Of all of them, so that unfinished ones are resumed with the same length.
            history = max(schedule(trial.config)[1] for trial in members.values())
            own = {name: trial for name, trial in members.items() if name in left}
            for one in _train_alike(own, history, sweep):
                results.write(folder, one)
                done[one.name] = one
                output.say(f"trial     {results.line(one)}")
    return [done[name] for name in trials]


def _provenance(
    trials: Trials,
    task_data: Callable,
    schedule: Callable[[Config], tuple[ccfl.Schedule, int]],
) -> dict[str, str]:
    """The provenance of all trials.

    Data that cannot be read or dealt out are a failure of their trials, unless all share them.
    """
    found, configs = provenance.of_process(), [trial.config for trial in trials.values()]
    if len({parts.source(config) for config in configs}) == 1:
        task_data(*_source_of(configs[0]))  # no trial can be trained without data
    for trial in {trial_group.data_settings(one.config): one for one in trials.values()}.values():
        config = trial.config
        of = "".join(f"{n}={v}," for n, v in trial.varied.items() if n in trial_group.DATA)
        with contextlib.suppress(*ERRORS):
            data = task_data(*_source_of(config))
            found |= (
                data.digests
                | tasks.digest(config)
                | parts.client_digest(config, data.dealt(config)["train"], of)
            )
        seed = config.seed_of("schedule")
        found[f"schedule[{of}seed={seed}]"] = schedule(config)[0].digest()
    return found


def _source_of(config: Config) -> tuple:
    return parts.source(config), config.model, config.compute_dtype


def _schedules(trials: Trials) -> Callable[[Config], tuple[ccfl.Schedule, int]]:
    """`schedule(config)` of a trial; those of all trials are made."""
    made = functools.cache(run_schedule.schedule)
    for trial in trials.values():
        with named(trial.varied):
            made(trial_group.data_settings(trial.config))
    return lambda config: made(trial_group.data_settings(config))


def _alike(trials: Trials) -> list[Trials]:
    """The trials in groups that share a program."""
    found: dict[tuple, Trials] = {}
    for name, trial in trials.items():
        found.setdefault(trial_group.shared(trial.config), {})[name] = trial
    return [*found.values()]


def _train_alike(members: Trials, history: int, sweep: _Sweep) -> Iterator[Record]:
    """Trains trials that share a program, as many together as devices and memory allow."""
    if not members:
        return
    first = next(iter(members.values())).config
    try:
        task_data = sweep.task_data(*_source_of(first))
        group = trial_group.group(first, history, lambda c: sweep.schedule(c)[0], task_data)
    except ERRORS as error:
        yield from (results.failed(trial, error) for trial in members.values())
        return
    nbytes, together, budget = trial_group.at_once(group, sweep.memory)
    limit = "" if budget is None else f" of {budget / 1e6:.3g} MB"
    count = task_data.mesh.size
    output.say(
        f"program   {first.method or first.server}, {first.rounds} rounds: {len(members)} trials, "
        f"{together} at once on each of {count} devices; {nbytes / 1e6:.3g} MB a trial{limit}"
    )
    begun = [names for names in sweep.begun if names[0] in members]
    rest = [name for name in members if not any(name in names for names in begun)]
    size = together * count
    for names in [*begun, *(rest[k : k + size] for k in range(0, len(rest), size))]:
        yield from _train(group, {name: members[name] for name in names}, sweep)


def _train(group: Group, members: Trials, sweep: _Sweep) -> Iterator[Record]:
    """Trains some of them together, resuming unfinished ones."""
    digests = {name: results.digest(trial.config) for name, trial in members.items()}
    place = trial_checkpoints.place(sweep.folder, digests)
    try:
        every = _rows(group, [*members.values()], digests, sweep.watch, place)
    except ERRORS as error:
        trial_checkpoints.remove(place)
        if len(members) == 1:
            yield from (results.failed(trial, error) for trial in members.values())
        else:  # one of them may be the cause: each alone
            for name, trial in members.items():
                yield from _train(group, {name: trial}, sweep)
        return
    for trial, rows in zip(members.values(), every, strict=True):
        yield results.made(trial, rows)
    trial_checkpoints.remove(place)  # after their records are written


def _rows(
    group: Group, trials: list[Trial], digests: dict[str, str], watch: Watch, place: Path
) -> list[list[Row]]:
    """The rows of trials that train together to their end."""
    configs = [trial.config for trial in trials]
    program = trial_group.program(group, configs)
    checkpoints = saving.open_checkpoints(place, group.config.keep_checkpoints)
    own = Journal(place, [*digests], [*digests.values()], program.schedules, checkpoints)
    try:
        progress = _begun(own, group) or trial_group.start(group, configs)
        watch.bar.update(progress.done * len(trials))
        progress = train_loop.train(program, progress, journal.store(own), watch)
    finally:
        saving.close(checkpoints)
    if not program.is_over(progress):
        raise Stopped("the same command continues")
    return progress.rows


def _begun(own: Journal, group: Group) -> Progress | None:
    """The progress of unfinished trials; None without an undamaged checkpoint."""
    try:
        saved = journal.newest(own, functools.partial(trial_group.like, group))
    except OSError as error:
        journal.warn(own.folder, f"{error}; from the start")
        for number in own.checkpoints.all_steps():
            own.checkpoints.delete(number)
        saved = None
    if saved is None:
        (own.folder / "metrics.jsonl").unlink(missing_ok=True)
        return None
    return journal.resumed(own, saved)
