"""The setup of a run, from its `Config`: data, clients, schedule, program, folder."""

import dataclasses
import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

import ccfl_jax as ccfl
from ccfl_jax.engine import run, streaming
from ccfl_jax.io import files as folders
from ccfl_jax.io import folder_lock
from ccfl_jax.io.files import replace_file
from ccfl_jax.models import by_name
from ccfl_jax.runs import callbacks, metrics, provenance, run_config, train_loop
from ccfl_jax.runs import checkpoints as saving
from ccfl_jax.runs.train_loop import Part, Program, Progress

from ..config.datasets import dataset_of
from ..config.run_flags import Config
from ..config.settings import free
from . import (
    client_scores,
    data_memory,
    devices,
    intervals,
    journal,
    method,
    parts,
    personal,
    privacy,
    run_schedule,
    tasks,
)
from .journal import Journal

# What a start writes; with the settings, written last, the run can be resumed.
_FIRST = (run_config.CONFIG, provenance.PROVENANCE, metrics.SCHEDULE, by_name.RECORD)
# The files of a run, which `--overwrite` removes.
_LAST = ("curves.png", client_scores.CLIENTS, callbacks.EVENTS)  # at its end, or if wanted
_FILES = (*_FIRST, metrics.METRICS, saving.CHECKPOINTS, saving.PARAMS, *_LAST)


class Problem(NamedTuple):
    """What is learnt from what, and where, before anything is known of a folder.

    Attributes:
        schedule: `config.rounds` rounds.
        task: what is learnt.
        record: of the task, as `models.by_name` takes it.
        data: the clients' training samples, on the devices or, where they are streamed, here.
        scored: "x" and "y" of the test set and, where samples are held out, of those.
        tested: rows that single clients are scored on, as `client_scores.tested`.
        left_out: clients of the data set that have too few samples to be drawn.
        num_classes: of the labels.
        state: before the first round.
        memory: bytes of a device for streamed training samples; None where it holds all.
        mesh: the devices.
        provenance: of the result, as `provenance.check` takes it.
    """

    schedule: ccfl.Schedule
    task: ccfl.Task
    record: dict[str, Any]
    data: ccfl.FederatedData
    scored: list[dict[str, jax.Array]]
    tested: dict[str, ccfl.FederatedData]
    left_out: int
    num_classes: int | None
    state: ccfl.State
    memory: int | None
    mesh: jax.sharding.Mesh
    provenance: dict[str, str]


class Job(NamedTuple):
    """A run that is ready to start, or to be resumed.

    Attributes:
        config: its settings, with `out_dir` resolved.
        problem: what is learnt.
        pieces: how what is left is streamed; None where a device holds all training samples.
        program: that trains it.
        progress: how far it is.
        journal: its folder.
        lock: on the folder; None in all processes but the first.
    """

    config: Config
    problem: Problem
    pieces: streaming.Pieces | None
    program: Program
    progress: Progress
    journal: Journal
    lock: folder_lock.Lock | None


def prepare(config: Config) -> Job:
    """Loads and builds everything, then opens the run folder; does not train.

    Raises:
        ValueError, OSError, ImportError: for settings, files or a folder that cannot be used.
    """
    mesh = devices.start(config)
    method.check(config)
    if config.resume == "auto" and _has_run(config):
        config = dataclasses.replace(config, resume=True)
    if config.resume is True:
        settings = dataclasses.asdict(config)
        run_config.check(config.out_dir, settings, privacy.may_differ(config))
    elif config.out_dir is not None and jax.process_index() == 0:
        folders.check_unused(config.out_dir, _replaced(config))
    problem = _problem(config, mesh)
    return _resume(config, problem) if config.resume is True else _start(config, problem)


def _has_run(config: Config) -> bool:
    """Whether the folder has a run that can be resumed; the same in all processes."""
    there = np.asarray((Path(config.out_dir) / run_config.CONFIG).is_file())
    if jax.process_count() > 1:
        there = multihost_utils.broadcast_one_to_all(there)
    return bool(there)


def _replaced(config: Config) -> tuple[str, ...] | None:
    """The files that a new run may replace in its folder; None: it has to be empty."""
    if config.overwrite:
        return _FILES
    # A start that was killed before the run could be resumed has left these.
    return _FIRST if config.resume == "auto" else None


def close(job: Job) -> None:
    """Waits for checkpoints that are being written, and releases the folder."""
    _close(job.journal, job.lock)


def _problem(config: Config, mesh: jax.sharding.Mesh) -> Problem:
    schedule, history = run_schedule.schedule(config)
    train, validation, test, left_out, classes = parts.load(*parts.source(config))
    lists = parts.dealt(config, train)
    owners = lists.pop("train")
    own = config.dataset, config.model, config.compute_dtype, train, classes
    task, record = personal.task_of(config, tasks.task_of(*own)), tasks.record(*own)
    tasks.check_samples(config.dataset, task, train, test, validation)
    tasks.check_labels(config, classes)
    # As one program, which the compilation cache keeps, and not op by op.
    first_state = devices.compiled_quickly(partial(parts.first_state, config, task, history))
    keys = map(jax.random.key, (config.seed, config.seed_of("init")))
    state = first_state(method.numbers(config), *keys)
    intervals.check_target(config, task, test)
    origin = provenance.of_process() | parts.client_digest(config, owners)
    origin |= parts.data_digests(parts.source(config), train, test) | tasks.digest(config)
    arrays = parts.arrays_of(train)
    scored = [parts.arrays_of(part) for part in (test, validation) if part is not None]
    data = ccfl.FederatedData.from_offsets(arrays, *owners)
    tested = client_scores.tested(arrays, lists)
    memory = data_memory.memory(config, data, mesh)
    if memory is None:
        data = devices.share(data, mesh)
    state, (scored, tested) = devices.put(state, mesh), devices.share((scored, tested), mesh)
    told = left_out, classes, state, memory, mesh, origin
    return Problem(schedule, task, record, data, scored, tested, *told)


def _program(config: Config, problem: Problem, pieces: streaming.Pieces | None) -> Program:
    schedule, task, numbers = problem.schedule, problem.task, method.numbers(config)
    round_at = parts.round_at(config, task, problem.num_classes, problem.mesh)
    round_fn = jax.tree_util.Partial(round_at, numbers)
    own_model = method.own_model(config, task)

    def rest(first: int) -> list[Part]:
        left = schedule.rounds(first, config.rounds)
        if pieces is None:
            return [([left], problem.data)]
        put = partial(devices.share, mesh=problem.mesh)
        streamed = streaming.send(pieces, left, problem.data, put)
        return (([piece], samples) for piece, samples in streamed)

    def advance(state: ccfl.State, own: list[ccfl.Schedule], data: ccfl.FederatedData) -> tuple:
        state, infos = ccfl.run_rounds(round_fn, state, own[0], data, donate=True)
        return state, jax.tree.map(lambda a: a[None], infos)

    floor = method.floor(config, numbers)

    def evaluate(state: ccfl.State) -> list:
        test, *held = (ccfl.evaluate(task, state.params, own) for own in problem.scored)
        share = float(parts.adaptive_share(state.server, floor))
        given_away = privacy.columns(config, schedule.rounds(0, int(state.round)))
        theirs = client_scores.columns(task, state.params, state.clients, problem.tested, own_model)
        return [(test, parts.further(held, share) | theirs | given_away)]

    sent, times = method.sent_bytes(config, task), intervals.times(config)
    ends = config.max_rejected, intervals.target(config)
    return Program(times, [schedule], sent, rest, advance, evaluate, *ends)


def _cut(problem: Problem, done: int) -> streaming.Pieces | None:
    """The pieces of the rounds from `done` on, where they are streamed."""
    left = problem.schedule.rounds(done, problem.schedule.num_rounds)
    return data_memory.cut(left, problem.data, problem.memory)


def _open(config: Config, problem: Problem) -> Journal:
    settings = run_config.digest(dataclasses.asdict(config), free(a_run=True))
    checkpoints = saving.open_checkpoints(config.out_dir, config.keep_checkpoints)
    return Journal(Path(config.out_dir), ("",), [settings], [problem.schedule], checkpoints)


def _start(config: Config, problem: Problem) -> Job:
    """Makes the folder of a new run; its settings, written last, make it resumable."""
    pieces = _cut(problem, 0)
    folder = _numbered_folder(config) if config.out_dir is None else config.out_dir
    config = dataclasses.replace(config, out_dir=str(folder))
    lock = None
    if jax.process_index() == 0:
        lock = journal.lock(folder)
        try:
            folders.check_unused(folder, _replaced(config))
            folders.clear(folder, _FILES)
            provenance.write(folder, problem.provenance)
            problem.schedule.save(Path(folder) / metrics.SCHEDULE)
            replace_file(Path(folder) / by_name.RECORD, json.dumps(problem.record))
            run_config.write(folder, dataclasses.asdict(config))
        except OSError:
            lock.release()
            raise
    multihost_utils.sync_global_devices("the folder is ready")
    progress = train_loop.start(problem.state, 1)
    program = _program(config, problem, pieces)
    return Job(config, problem, pieces, program, progress, _open(config, problem), lock)


def _numbered_folder(config: Config) -> Path:
    """Makes the first of runs/DATASET-SERVER-001, -002, ... that does not exist."""
    name = f"{dataset_of(config.dataset)[0]}-{config.method or config.server}"
    for number in itertools.count(1):
        folder = Path("runs") / f"{name}-{number:03d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder


def _resume(config: Config, problem: Problem) -> Job:
    """Resumes from the newest undamaged checkpoint, and removes the rows after it."""
    folder = Path(config.out_dir)
    lock = journal.lock(folder) if jax.process_index() == 0 else None
    own = _open(config, problem)
    try:
        provenance.check(folder, problem.provenance, config.accepted)
        saved = journal.newest(own, problem.state)
        if saved is not None:
            _check(config, problem, saved)
        pieces = _cut(problem, 0 if saved is None else int(saved.state.round))
        if saved is None:  # stopped before the first checkpoint
            journal.warn(folder, "no checkpoint yet, from the start")
            metrics.keep_rows(folder, {"": 0})
            progress = train_loop.start(problem.state, 1)
        else:
            progress = journal.resumed(own, saved)
        program = _program(config, problem, pieces)
        if not program.is_over(progress) and jax.process_index() == 0:
            problem.schedule.save(folder / metrics.SCHEDULE)
            provenance.write(folder, problem.provenance)
            run_config.write(folder, dataclasses.asdict(config))
    except (ValueError, OSError):
        _close(own, lock)
        raise
    return Job(config, problem, pieces, program, progress, own, lock)


def _check(config: Config, problem: Problem, saved: saving.Saved) -> None:
    """Raises ValueError for a checkpoint that this run cannot be resumed from."""
    done, path = int(saved.state.round), Path(config.out_dir) / metrics.SCHEDULE
    if done > config.rounds:
        raise ValueError(
            f"--rounds: expected at least {done}, the rounds done, found {config.rounds}"
        )
    kept, planned = (s.rounds(0, done) for s in (ccfl.Schedule.load(path), problem.schedule))
    if kept.digest() != planned.digest():
        raise ValueError(
            f"{path}: expected the {done} rounds done as these settings plan them, found others"
        )
    rest = problem.schedule.rounds(done, config.rounds)
    run.check_schedule(rest, config.num_clients, done, np.asarray(saved.state.history.version))


def _close(own: Journal, lock: folder_lock.Lock | None) -> None:
    try:
        saving.close(own.checkpoints)
    finally:
        if lock is not None:
            lock.release()
