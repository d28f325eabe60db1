"""From a `Config` to what a run needs: data, clients, schedule, round function, run folder."""

import dataclasses
import itertools
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import CheckpointManager

import ccfl_jax as ccfl
from ccfl_jax import checkpoints as saving
from ccfl_jax import config_file, record
from ccfl_jax import folder as folders
from ccfl_jax.rounds import RoundFn
from ccfl_jax.simulate import check_schedule
from ccfl_jax.stream import cut
from experiments import build, devices
from experiments.flags import Config

# What may change between the first part of a run and the next: none of it alters a round.
_FREE_AT_RESUME = (
    "smoothness",
    "gradient_bound",
    "rounds",
    "eval_every",
    "max_rejected",
    "checkpoint_every",
    "keep_checkpoints",
    "lanes",
    "devices",
    "data_memory",
    "progress",
    "resume",
    "overwrite",
    "out_dir",
    "compilation_cache",
    "coordinator",
    "num_processes",
    "process_id",
)


# What a run writes, and may remove.
_FILES = (config_file.CONFIG, record.METRICS, record.SCHEDULE, saving.CHECKPOINTS, "curves.png")

_UNKNOWN = 2**50  # bytes: a device that tells no limit is given everything


class Job(NamedTuple):
    """A run that is ready to start, or to go on.

    Attributes:
        config: its settings, with `out_dir` resolved.
        schedule: `config.rounds` rounds.
        task: what is learnt.
        round_fn: one round.
        data: the clients' training samples, on the devices or, where they are streamed, here.
        test: the test set, "x" and "y".
        left_out: clients of the data set that have too few samples to be drawn.
        state: where the run stands.
        rows: the rows of its metrics file up to there; none before the first evaluation.
        infos: the rounds since the last of them; None where there are none.
        seconds: how long those rounds took.
        checkpoints: its open Orbax manager.
        lock: on its folder; None in all processes but the first.
        mesh: the devices that clients are spread over.
        memory: bytes of a device for streamed training samples; None where it holds all.
    """

    config: Config
    schedule: ccfl.Schedule
    task: ccfl.Task
    round_fn: RoundFn
    data: ccfl.FederatedData
    test: dict[str, jax.Array]
    left_out: int
    state: ccfl.State
    rows: list[dict[str, Any]]
    infos: ccfl.Info | None
    seconds: float
    checkpoints: CheckpointManager | None
    lock: folders.Lock | None
    mesh: jax.sharding.Mesh
    memory: int | None


def prepare(config: Config) -> Job:
    """Loads and builds everything, then opens the run folder; trains nothing.

    Raises:
        ValueError, OSError, ImportError: for settings, files or a folder that cannot be used.
    """
    mesh = devices.start(config)
    if config.resume:
        config_file.check(config.out_dir, dataclasses.asdict(config), _FREE_AT_RESUME)
    elif config.out_dir is not None and jax.process_index() == 0:
        folders.check_unused(config.out_dir, _FILES if config.overwrite else None)
    schedule = build.schedule(config)
    train, test, left_out = build.load(*build.source(config))
    owners = build.owners(config, train)
    task = build.task(config.dataset, config.model, config.compute_dtype, train)
    rates = build.rates(config)
    round_fn = jax.tree_util.Partial(build.round_at(config, task, mesh), rates)
    # As one program, which the compilation cache keeps, and not operation by operation.
    models = build.history_length(config)
    state = jax.jit(partial(build.first_state, config, task, models))(
        rates, jax.random.key(config.seed)
    )
    arrays, test = ({name: part[name] for name in ("x", "y")} for part in (train, test))
    data = ccfl.FederatedData.from_offsets(arrays, *owners)
    memory = _memory(config, data, mesh)
    if memory is None:
        data = devices.put(data, mesh)
    else:
        _check_pieces(schedule, data, memory)
    state, test = devices.put((state, test), mesh)
    what = config, schedule, task, round_fn, data, test, left_out
    job = Job(*what, state, [], None, 0.0, None, None, mesh, memory)
    return _resume(job) if config.resume else _start(job)


def about(job: Job, rounds: int, rows: int, seconds: float) -> dict[str, Any]:
    """What a checkpoint after so many rounds says besides the state."""
    return {
        "rows": rows,
        "seconds": seconds,
        "settings": config_file.digest(dataclasses.asdict(job.config), _FREE_AT_RESUME),
        "schedule": job.schedule.rounds(0, rounds).digest(),
    }


def is_over(job: Job) -> bool:
    """Whether nothing is left to train: all rounds are done, or the run has come to nothing."""
    if not job.rows:
        return False
    finite = job.rows[-1]["test_loss"] is not None and record.is_finite(job.state.params)
    failed = record.has_failed(job.rows, finite, job.config.max_rejected)
    return job.rows[-1]["round"] >= job.config.rounds or failed


def _memory(config: Config, data: ccfl.FederatedData, mesh: jax.sharding.Mesh) -> int | None:
    """Bytes of each device for training data, or None where the data fit."""
    if config.data_memory is not None:
        megabytes = config.data_memory
    elif mesh.devices.flat[0].platform == "cpu":
        return None
    else:
        stats = [device.memory_stats() or {} for device in mesh.local_devices]
        # The other half is for models, their history and what a step computes.
        half = min(stat.get("bytes_limit", _UNKNOWN) for stat in stats) // 2
        # In all processes the same, for the pieces have to be; whole MB fit the 32 bits sent.
        megabytes = multihost_utils.process_allgather(np.asarray(half // 10**6)).min()
    room = int(megabytes * 1e6)
    return room if sum(leaf.nbytes for leaf in jax.tree.leaves(data)) > room else None


def _check_pieces(schedule: ccfl.Schedule, data: ccfl.FederatedData, memory: int) -> None:
    try:
        cut(schedule, data, memory)
    except ValueError as error:
        raise ValueError(f"--data_{error}") from None  # --data_memory: found ...


def _start(job: Job) -> Job:
    """Makes the folder of a new run; its settings come last, and make it one to go on with."""
    folder = _numbered_folder(job.config) if job.config.out_dir is None else job.config.out_dir
    config = dataclasses.replace(job.config, out_dir=str(folder))
    lock = None
    if jax.process_index() == 0:
        lock = folders.lock(folder)
        try:
            folders.check_unused(folder, _FILES if config.overwrite else None)
            folders.clear(folder, _FILES)
            job.schedule.save(Path(folder) / record.SCHEDULE)
            config_file.write(folder, dataclasses.asdict(config))
        except OSError:
            lock.release()
            raise
    multihost_utils.sync_global_devices("the folder is there")  # and what was in it is gone
    checkpoints = saving.open_checkpoints(folder, config.keep_checkpoints)
    return job._replace(config=config, checkpoints=checkpoints, lock=lock)


def _numbered_folder(config: Config) -> Path:
    """Makes the first of runs/DATASET-SERVER-001, -002, ... that is not there yet."""
    for number in itertools.count(1):
        folder = Path("runs") / f"{config.dataset}-{config.server}-{number:03d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder


def _resume(job: Job) -> Job:
    """Takes up the newest checkpoint that is whole, and cuts off the rows that came after it."""
    folder = Path(job.config.out_dir)
    lock = folders.lock(folder) if jax.process_index() == 0 else None
    if lock and lock.left_by:
        print(f"warning   {folder}: {lock.left_by} ended without letting it go", file=sys.stderr)
    checkpoints = saving.open_checkpoints(folder, job.config.keep_checkpoints)
    job = job._replace(checkpoints=checkpoints, lock=lock)
    try:
        job = _take_up(job)
        if not is_over(job) and jax.process_index() == 0:
            job.schedule.save(folder / record.SCHEDULE)
            config_file.write(folder, dataclasses.asdict(job.config))
    except (ValueError, OSError):
        close(job)
        raise
    return job


def close(job: Job) -> None:
    """Waits for what is being written, and lets the folder go."""
    try:
        saving.close(job.checkpoints)
    finally:
        if job.lock is not None:
            job.lock.release()


def _take_up(job: Job) -> Job:
    config, folder = job.config, Path(job.config.out_dir)
    saved, broken = saving.restore(job.checkpoints, job.state)
    for line in broken:
        print(f"warning   {folder}: {line}", file=sys.stderr)
    if saved is None:  # stopped before the first one
        print(f"warning   {folder}: no checkpoint yet, from the start", file=sys.stderr)
        record.keep_rows(folder, 0)
        return job
    done = int(saved.state.round)
    if done > config.rounds:
        raise ValueError(f"--rounds: found {config.rounds}, legal: at least {done}, done already")
    planned = about(job, done, 0, 0.0)
    if planned["settings"] != saved.about["settings"]:
        raise ValueError(
            f"{folder / config_file.CONFIG}: found other settings than the checkpoint of round "
            f"{done} was made with, legal: the same"
        )
    kept = ccfl.Schedule.load(folder / record.SCHEDULE).rounds(0, done).digest()
    if not kept == planned["schedule"] == saved.about["schedule"]:
        raise ValueError(
            f"{folder / record.SCHEDULE}: found another schedule in the {done} rounds done, "
            "legal: the same as now planned"
        )
    rest = job.schedule.rounds(done, config.rounds)
    check_schedule(rest, config.num_clients, done, np.asarray(saved.state.history.version))
    rows = record.keep_rows(folder, saved.about["rows"])
    seconds = saved.about["seconds"]
    return job._replace(state=saved.state, rows=rows, infos=saved.infos, seconds=seconds)
