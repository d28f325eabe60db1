"""The training of trials that share a program: unfinished ones go on, done ones are recorded."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jax.sharding import Mesh

import ccfl_jax as ccfl
from ccfl_jax.runs import checkpoints as saving
from ccfl_jax.runs import provenance, train_loop
from ccfl_jax.runs.metrics import Row
from ccfl_jax.runs.train_loop import Progress, Watch

from ..config import output
from ..config.command import ERRORS, Stopped
from ..config.run_flags import Config
from ..config.sweep_flags import Trial, Trials, named
from ..training import intervals, journal, parts, run_schedule, tasks
from ..training.journal import Journal
from . import results, trial_checkpoints, trial_group
from .results import Record
from .trial_group import Group, TaskData

Schedules = Callable[[Config], tuple[ccfl.Schedule, int]]


class Material(NamedTuple):
    """What trials of a sweep are made of, in one process.

    Attributes:
        task_data: `task_data(source, model, compute_dtype)`; the last few are kept, for methods
            with the same task.
        schedule: `schedule(config)`: of a trial, and the length of its history; made once for
            `trial_group.data_settings`.
        group: `group(config, history)` of trials like `config`; the last one is kept, with its
            compiled program.
    """

    task_data: Callable[..., TaskData]
    schedule: Schedules
    group: Callable[[Config, int], Group]


class Sweep(NamedTuple):
    """What the training of a sweep's trials has in common.

    Attributes:
        folder: of the sweep.
        begun: the names of unfinished trials, as they trained together.
        memory: bytes of a device for trials that train together, or None.
        watch: of the training loop.
    """

    folder: Path
    begun: list[list[str]]
    memory: float | None
    watch: Watch


def material(mesh: Mesh) -> Material:
    """The material for trials on the devices of `mesh`."""
    task_data = functools.lru_cache(maxsize=4)(functools.partial(trial_group.task_data, mesh))
    made, kept = functools.cache(run_schedule.schedule), {}

    def schedule(config: Config) -> tuple[ccfl.Schedule, int]:
        return made(trial_group.data_settings(config))

    def group(config: Config, history: int) -> Group:
        key = trial_group.shared(config), history
        if key not in kept:
            kept.clear()
            own = task_data(*_source_of(config))
            kept[key] = trial_group.group(config, history, lambda c: schedule(c)[0], own)
        return kept[key]

    return Material(task_data, schedule, group)


def make_schedules(trials: Trials, made: Material) -> None:
    """Makes the schedules of all trials; a ValueError names its trial."""
    for trial in trials.values():
        with named(trial.varied):
            made.schedule(trial.config)


def provenance_of(trials: Trials, made: Material) -> dict[str, str]:
    """The provenance of all trials.

    Data that cannot be read or dealt out are a failure of their trials, unless all share them.
    """
    found, configs = provenance.of_process(), [trial.config for trial in trials.values()]
    if len({parts.source(config) for config in configs}) == 1:
        made.task_data(*_source_of(configs[0]))  # no trial can be trained without data
    for trial in {trial_group.data_settings(one.config): one for one in trials.values()}.values():
        config = trial.config
        of = "".join(f"{n}={v}," for n, v in trial.varied.items() if n in trial_group.DATA)
        with contextlib.suppress(*ERRORS):
            data = made.task_data(*_source_of(config))
            found |= (
                data.digests
                | tasks.digest(config)
                | parts.client_digest(config, data.dealt(config)["train"], of)
            )
        seed = config.seed_of("schedule")
        found[f"schedule[{of}seed={seed}]"] = made.schedule(config)[0].digest()
    return found


def saved_by_the_minute(config: Config) -> Callable[[int, bool], bool]:
    """`is_due(done, over)` of a training loop: by default once a minute."""
    minutes = intervals.Minutes()
    return lambda done, over: not over and minutes.is_checkpoint(config, done)


def cut(names: Sequence[str], begun: list[list[str]], size: int) -> list[list[str]]:
    """The names in parts: unfinished trials as they trained together, the others by `size`."""
    old = [own for own in begun if own[0] in names]
    rest = [name for name in names if not any(name in own for own in old)]
    return [*old, *(rest[k : k + size] for k in range(0, len(rest), size))]


def train(members: Trials, history: int, made: Material, sweep: Sweep) -> Iterator[Record]:
    """Trains trials that share a program, as many together as devices and memory allow.

    Args:
        members: the trials.
        history: the length of each one's history.
        made: what they are made of.
        sweep: their sweep, whose folder has each record before it is yielded.

    Raises:
        Stopped: after `sweep.watch` requested it, when everything is saved.
    """
    for one in _train_all(members, history, made, sweep):
        results.write(sweep.folder, one)
        yield one


def _source_of(config: Config) -> tuple:
    return parts.source(config), config.model, config.compute_dtype


def _train_all(members: Trials, history: int, made: Material, sweep: Sweep) -> Iterator[Record]:
    first = next(iter(members.values())).config
    try:
        group = made.group(first, history)
    except ERRORS as error:
        yield from (results.failed(trial, error) for trial in members.values())
        return
    nbytes, together, budget = trial_group.at_once(group, sweep.memory)
    limit = "" if budget is None else f" of {budget / 1e6:.3g} MB"
    count = group.task_data.mesh.size
    output.say(
        f"program   {first.method or first.server}, {first.rounds} rounds: {len(members)} trials, "
        f"{together} at once on each of {count} devices; {nbytes / 1e6:.3g} MB a trial{limit}"
    )
    for names in cut([*members], sweep.begun, together * count):
        yield from _train(group, {name: members[name] for name in names}, sweep)


def _train(group: Group, members: Trials, sweep: Sweep) -> Iterator[Record]:
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
