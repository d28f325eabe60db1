"""From a `Config` to what a run needs: data, clients, schedule, round function, run folder."""

import dataclasses
import itertools
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import CheckpointManager

import ccfl_jax as ccfl
from ccfl_jax import record
from ccfl_jax.rounds import RoundFn
from ccfl_jax.stream import cut
from experiments import build, devices
from experiments.flags import Config

# What may change between the first part of a run and the next: none of it alters a round.
_FREE_AT_RESUME = (
    "smoothness",
    "gradient_bound",
    "rounds",
    "eval_every",
    "lanes",
    "devices",
    "data_memory",
    "progress",
    "resume",
    "out_dir",
    "compilation_cache",
    "coordinator",
    "num_processes",
    "process_id",
)


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
        state: where the run stands.
        rows: the rows of its metrics file up to there; none before the first evaluation.
        checkpoints: its open Orbax manager.
        mesh: the devices that clients are spread over.
        memory: bytes of a device for streamed training samples; None where it holds all.
    """

    config: Config
    schedule: ccfl.Schedule
    task: ccfl.Task
    round_fn: RoundFn
    data: ccfl.FederatedData
    test: dict[str, jax.Array]
    state: ccfl.State
    rows: list[dict[str, Any]]
    checkpoints: CheckpointManager | None
    mesh: jax.sharding.Mesh
    memory: int | None


def prepare(config: Config) -> Job:
    """Loads and builds everything, then opens the run folder; trains nothing.

    Raises:
        ValueError, OSError, ImportError: for settings, files or a folder that cannot be used.
    """
    mesh = devices.start(config)
    if config.resume:
        record.check_config(config.out_dir, dataclasses.asdict(config), _FREE_AT_RESUME)
    elif config.out_dir is not None and jax.process_index() == 0:
        record.check_unused(config.out_dir)
    schedule = build.schedule(config)
    train, test = build.load(*build.source(config))
    owners = build.owners(config, train)
    task = build.task(config.dataset, config.model, config.compute_dtype, train)
    rates = build.rates(config)
    round_fn = jax.tree_util.Partial(build.round_at(config, task, mesh), rates)
    # As one program, which the compilation cache keeps, and not operation by operation.
    state = jax.jit(partial(build.first_state, config, task))(rates, jax.random.key(config.seed))
    arrays, test = ({name: part[name] for name in ("x", "y")} for part in (train, test))
    data = ccfl.FederatedData.from_offsets(arrays, *owners)
    memory = _memory(config, data, mesh)
    if memory is None:
        data = devices.put(data, mesh)
    else:
        _check_pieces(schedule, data, memory)
    state, test = devices.put((state, test), mesh)
    job = Job(config, schedule, task, round_fn, data, test, state, [], None, mesh, memory)
    return _resume(job) if config.resume else _start(job)


def is_over(job: Job) -> bool:
    """Whether nothing is left to train: all rounds are done, or the model is not finite."""
    if not job.rows:
        return False
    finite = job.rows[-1]["test_loss"] is not None and record.is_finite(job.state.params)
    return job.rows[-1]["round"] >= job.config.rounds or not finite


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
    """Makes the folder of a new run."""
    folder = _numbered_folder(job.config) if job.config.out_dir is None else job.config.out_dir
    config = dataclasses.replace(job.config, out_dir=str(folder))
    if jax.process_index() == 0:
        Path(folder).mkdir(parents=True, exist_ok=True)
        record.write_config(folder, dataclasses.asdict(config))
        job.schedule.save(Path(folder) / record.SCHEDULE)
    return job._replace(config=config, checkpoints=record.open_checkpoints(folder))


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
    """Takes up the newest checkpoint, and cuts off the rows that came after it."""
    config, folder = job.config, Path(job.config.out_dir)
    checkpoints = record.open_checkpoints(folder)
    state = record.restore_state(checkpoints, job.state)
    done = int(state.round)
    if done > config.rounds:
        raise ValueError(f"--rounds: found {config.rounds}, legal: at least {done}, done already")
    saved = ccfl.Schedule.load(folder / record.SCHEDULE).rounds(0, done)
    planned = job.schedule.rounds(0, done)
    if not all(np.array_equal(a, b) for a, b in zip(saved[:4], planned[:4], strict=True)):
        raise ValueError(
            f"{folder / record.SCHEDULE}: found another schedule in the {done} rounds done, "
            "legal: the same as now planned"
        )
    rows = record.drop_rows_after(folder, done)
    job = job._replace(state=state, rows=rows, checkpoints=checkpoints)
    if not is_over(job) and jax.process_index() == 0:
        record.write_config(folder, dataclasses.asdict(config))
        job.schedule.save(folder / record.SCHEDULE)
    return job
