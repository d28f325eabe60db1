"""From a `Config` to what a run needs: data, clients, schedule, round function, run folder."""

import dataclasses
import itertools
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from orbax.checkpoint import CheckpointManager

import ccfl_jax as ccfl
from ccfl_jax import record
from ccfl_jax.data import NUM_CLASSES
from ccfl_jax.models import CNN, MLP, Logistic
from ccfl_jax.rounds import RoundFn
from ccfl_jax.simulate import check_schedule
from ccfl_jax.stream import cut
from experiments import devices
from experiments.flags import SERVERS, Config

# What may change between the first part of a run and the next: none of it alters a round.
_FREE_AT_RESUME = (
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
    schedule = _schedule(config)
    train, test = ccfl.load_dataset(config.dataset, config.data_dir)
    clients = _clients(config, train)
    task = ccfl.classification_task(
        _model(config), train["x"].shape[1:], NUM_CLASSES[config.dataset], config.compute_dtype
    )
    round_fn = _round(config, task, mesh)
    key = jax.random.key(config.seed)
    server = _server(config, config.server_lr)
    # As one program, which the compilation cache keeps, and not operation by operation.
    state = jax.jit(partial(ccfl.init_state, task, server, history_length=config.max_delay + 1))(
        key
    )
    ends = np.cumsum([0, *map(len, clients)])
    arrays, test = ({name: part[name] for name in ("x", "y")} for part in (train, test))
    data = ccfl.FederatedData.from_offsets(arrays, np.concatenate(clients), ends)
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


def _schedule(config: Config) -> ccfl.Schedule:
    unit = "local_epochs" if config.local_steps is None else "local_steps"
    local_work = getattr(config, unit)
    if config.schedule_file is None:
        return ccfl.random_schedule(
            config.seed,
            config.rounds,
            config.num_clients,
            buffer_size=config.buffer_size,
            max_delay=config.max_delay,
            local_work=local_work,
            randomness=config.randomness,
        )
    path, schedule = config.schedule_file, ccfl.Schedule.load(config.schedule_file)
    rounds, slots = schedule.client.shape
    if rounds < config.rounds:
        raise ValueError(f"--rounds: found {config.rounds}, legal: 1 to {rounds}, as in {path}")
    if slots != config.buffer_size:
        raise ValueError(f"--buffer_size: found {config.buffer_size}, legal: {slots}, as in {path}")
    schedule = schedule.rounds(0, config.rounds)
    claims = {
        "num_clients": (schedule.client.max() + 1, config.num_clients),
        "max_delay": (schedule.staleness.max(), config.max_delay),
        f"{unit} * randomness": (schedule.work.max(), local_work * config.randomness),
    }
    for name, (least, found) in claims.items():
        if found < least:
            raise ValueError(f"--{name}: found {found:g}, legal: at least {least}, as in {path}")
    check_schedule(schedule, config.num_clients, 0, config.max_delay + 1)
    return schedule


def _clients(config: Config, train: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The row numbers of every client."""
    labels, count, seed = train["y"], config.num_clients, config.seed
    if config.partition == "iid":
        return ccfl.partition_iid(labels, count, seed)
    if config.partition == "natural":
        clients = ccfl.partition_natural(train["client"])
        if len(clients) != count:
            raise ValueError(
                f"--num_clients: found {count} with --partition=natural, legal: {len(clients)}, "
                f"the clients of {config.dataset}"
            )
        return clients
    by = "client" if config.partition == "dirichlet_client" else "label"
    return ccfl.partition_dirichlet(labels, count, config.alpha, seed, by=by)


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


def _model(config: Config) -> nn.Module:
    models = {"cnn": CNN, "mlp": MLP, "logistic": Logistic}
    return models[config.model](num_classes=NUM_CLASSES[config.dataset])


def _round(config: Config, task: ccfl.Task, mesh: jax.sharding.Mesh) -> RoundFn:
    """A round of the run; learning rates are arguments, so that one program serves all of them."""

    def round_at(rates: dict, state: ccfl.State, slots: ccfl.Schedule, data: ccfl.FederatedData):
        round_fn = ccfl.build_round(
            task,
            _server(config, rates["server_lr"]),
            rates["local_lr"],
            batch_size=config.batch_size,
            work_unit="epochs" if config.local_steps is None else "steps",
            normalise=config.normalise,
            lanes=config.lanes,
            mesh=mesh,
        )
        return round_fn(state, slots, data)

    rates = {name: np.float32(getattr(config, name)) for name in ("server_lr", "local_lr")}
    return jax.tree_util.Partial(round_at, rates)


def _server(config: Config, learning_rate: float | jax.Array) -> optax.GradientTransformation:
    if config.server == "cc_fedavg":
        return ccfl.cc_fedavg()
    hyperparameters = {name: getattr(config, name) for name in SERVERS[config.server]}
    return getattr(ccfl, config.server)(learning_rate, **hyperparameters)


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
