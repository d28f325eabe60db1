"""Worlds: from flags to devices, availability and a server, and to the schedule they make."""

import os
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from ccfl_jax import availability as models
from ccfl_jax import clock, record, speed, traces
from ccfl_jax.availability import Availability
from ccfl_jax.checks import naming
from ccfl_jax.data import NUM_CLASSES
from ccfl_jax.draws import Work
from ccfl_jax.event_log import FATES, USED, EventLog, made_schedule
from ccfl_jax.folder import write_whole
from ccfl_jax.npz import read_npz
from ccfl_jax.schedule import Schedule
from ccfl_jax.speed import Devices, Distribution
from experiments import build
from experiments.flags import Config
from experiments.schedule_flags import AVAILABILITIES, DISTRIBUTIONS, Asked, expression

# One generator each, named by four letters: of the phases of cyclic and the zones of diurnal.
_PHASE_STREAM, _ZONE_STREAM = 0x50484153, 0x5A4F4E45
_LAWS = ("step", "download", "upload", "task", "extra")
_TRACES = {
    "fedscale": traces.read_fedscale_availability,
    "flash": traces.read_flash,
    "csv": traces.read_windows_csv,
    "npz": traces.read_windows_npz,
}
_LOG_ARRAYS = {
    "client": np.int32,
    "start": np.float64,
    "stop": np.float64,
    "version": np.int32,
    "work": np.int32,
    "fate": np.int8,
    "round": np.int32,
    "missed": np.int64,
}


class Made(NamedTuple):
    """A schedule and what is known of its world.

    Attributes:
        schedule: with `num_clients` and `work_unit`.
        log: every task, of the clock; else None.
        steps: integers `[rounds, slots]`, local steps; 0 without work.
        labels: int64 `[clients]`, each one's main label; None where samples have several.
        model_bytes: of one model.
        notes: lines on what was taken of files.
    """

    schedule: Schedule
    log: EventLog | None
    steps: np.ndarray
    labels: np.ndarray | None
    model_bytes: int
    notes: list[str]


def make(asked: Asked) -> Made:
    """Makes the schedule that was asked for, for the clients of the run it is for.

    Raises:
        ValueError, OSError: for data, traces and numbers that cannot be used.
    """
    config, options = asked.config, asked.options
    train, _, _ = build.load(*build.source(config))
    rows, starts = build.owners(config, train)
    labels = None
    if config.dataset != "stackoverflow":
        labels = main_labels(train["y"][rows], starts, NUM_CLASSES[config.dataset])
    each = np.ones(config.num_clients, np.int64)
    if config.local_steps is None:
        each = -(-np.diff(starts) // config.batch_size)
    model_bytes = _model_bytes(config, train)
    available, notes = None, []
    if options["rule"] != "paper":
        available, notes = availability(options["availability"], config, labels)
    if options["rule"] == "clock":
        machines, of_file = devices(options, config, model_bytes)
        notes += of_file
        schedule, log = clock.clock_schedule(
            config.seed,
            config.rounds,
            machines,
            available,
            server(options, config),
            work(options, config, each),
        )
    else:
        schedule, log = _cohorts(options, config, available), None
    steps = np.where(schedule.working(), schedule.work * each[schedule.client], 0)
    return Made(schedule, log, steps, labels, model_bytes, notes)


def _model_bytes(config: Config, train: dict[str, np.ndarray]) -> int:
    task = build.task(config.dataset, config.model, config.compute_dtype, train)
    return record.model_bytes(jax.eval_shape(task.init, jax.random.key(0)))


def _cohorts(
    options: dict[str, object], config: Config, available: Availability | None
) -> Schedule:
    """The paper's rule, perhaps of those available; round t of `rounds` ends (t + 1) seconds on."""
    masks = seconds = None
    if available is not None:
        seconds = options["round_seconds"]
        masks = models.masks(available, config.seed, config.rounds, seconds)
    time = None if seconds is None else seconds * np.arange(1.0, config.rounds + 1)
    return build.drawn_schedule(config, masks)._replace(time=time)


def distribution(name: str, text: str | None) -> Distribution | None:
    """What the flag `name` says; None where it says nothing."""
    if text is None:
        return None
    place, (law, numbers) = f"--{name}={text}", expression(text, DISTRIBUTIONS)
    if law == "three_classes":
        numbers = numbers[0], tuple(zip(numbers[1::2], numbers[2::2], strict=True))
    try:
        return getattr(speed, law)(*numbers)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def devices(
    options: dict[str, object], config: Config, model_bytes: int
) -> tuple[Devices, list[str]]:
    """Every client's seconds, drawn or of a file, and lines on what of the file was taken.

    Raises:
        ValueError, OSError: for numbers out of range, and a file that cannot be read or has too
            few devices.
    """
    laws = {name: distribution(name, options[name]) for name in _LAWS}
    count, file = config.num_clients, options["capacity"]
    if file is None:
        return speed.draw_devices(config.seed, count, **laws), []
    file = os.path.expanduser(file)
    found = traces.read_fedscale_capacity(file, config.batch_size, model_bytes)
    known = len(found.step)
    if known < count:
        raise ValueError(
            f"--num_clients: found {count}, legal: up to {known}, the devices of {file}"
        )
    first = Devices(*(column[:count] for column in found[:3]), laws["task"], laws["extra"])
    return first, [f"capacity  {file}: the first {count} of {known} devices"]


def server(options: dict[str, object], config: Config) -> clock.Server:
    """The buffer, starts and time-out."""
    names = ("concurrency", "start", "rate", "max_staleness", "timeout", "on_timeout")
    return clock.Server(config.buffer_size, **{name: options[name] for name in names})


def work(options: dict[str, object], config: Config, each: np.ndarray) -> Work:
    """How much a client does; `each` `[clients]` are the steps of one epoch."""
    epochs = config.local_steps is None
    return Work(
        config.local_epochs if epochs else config.local_steps,
        config.randomness,
        options["work_correlation"],
        each if epochs else None,
    )


def availability(
    text: str, config: Config, labels: np.ndarray | None
) -> tuple[Availability, list[str]]:
    """The model that `--availability` names, and lines on what of a trace was taken.

    Args:
        text: the flag's value.
        config: of the run; its seed draws phases (uniform over the period) and zones (uniform over
            0, ..., 23 hours), its number of clients is the model's.
        labels: integers `[clients]`, each one's main label l of L: its part of the period, or its
            zone of 24 l / L hours; None where there are none.

    Raises:
        ValueError, OSError: for numbers out of range, and a trace that cannot be read or has too
            few clients.
    """
    place, (name, numbers) = f"--availability={text}", expression(text, AVAILABILITIES)
    try:
        if name in _TRACES:
            return _trace(name, numbers[0], config.num_clients)
        return _model(name, numbers, config, labels), []
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _model(
    name: str, numbers: tuple[float, ...], config: Config, labels: np.ndarray | None
) -> Availability:
    seed, count = config.seed, config.num_clients
    if name == "label":
        return models.by_label(labels, NUM_CLASSES[config.dataset], *numbers)
    if name == "label_diurnal":
        return models.diurnal(24.0 * labels / NUM_CLASSES[config.dataset], *numbers)
    if name == "diurnal":
        zones = np.random.default_rng([seed, _ZONE_STREAM]).integers(0, 24, count)
        return models.diurnal(zones, *numbers)
    if name == "cyclic":
        into = np.random.default_rng([seed, _PHASE_STREAM]).random(count)
        return models.cyclic(count, *numbers, phase=into * numbers[0])
    return getattr(models, name)(count, *numbers)  # always, bernoulli, markov


def _trace(name: str, path: str, count: int) -> tuple[Availability, list[str]]:
    trace = _TRACES[name](os.path.expanduser(path))
    known = len(trace.period)
    if known < count:
        raise ValueError(f"num_clients: found {count}, legal: up to {known}, those of the trace")
    own = trace.client < count
    if not own.any():
        raise ValueError(f"num_clients: found {count} that are never there, legal: more")
    windows = (column[own] for column in trace[:3])
    note = f"trace     {path}: the first {count} of {known} clients, {own.sum()} windows"
    return models.windows(*windows, trace.period[:count]), [note]


def main_labels(labels: np.ndarray, starts: np.ndarray, num_labels: int) -> np.ndarray:
    """Each client's most frequent label, of several the lowest; int64 `[clients]`.

    Args:
        labels: integers `[rows]`, of the clients' rows one after another.
        starts: integers `[clients + 1]`, where each one's begin. Without rows it is label 0.
        num_labels: L.
    """
    count = len(starts) - 1
    cells = np.repeat(np.arange(count), np.diff(starts)) * num_labels + labels
    return np.bincount(cells, minlength=count * num_labels).reshape(count, -1).argmax(axis=1)


def save_log(log: EventLog, path: str | os.PathLike) -> None:
    """Writes a log as npz: its arrays, and `missed` as an int64."""
    arrays = {name: np.asarray(getattr(log, name), dtype) for name, dtype in _LOG_ARRAYS.items()}
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def load_log(path: str | os.PathLike, schedule: Schedule) -> EventLog | None:
    """What `save_log` wrote; None where there is no such file.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is not such a file, or its tasks do not make this schedule.
    """
    if not Path(path).exists():
        return None
    with naming(path):
        arrays = read_npz(path, [*_LOG_ARRAYS])
    if not _makes(arrays, schedule):
        raise ValueError(f"{path}: found tasks of another schedule, legal: those it came with")
    whole = {name: arrays[name].astype(dtype) for name, dtype in _LOG_ARRAYS.items()}
    return EventLog(**whole)._replace(missed=int(arrays["missed"]))


def _makes(arrays: dict[str, np.ndarray], schedule: Schedule) -> bool:
    """Whether arrays of a file are the log of this schedule."""
    shapes = {array.shape for name, array in arrays.items() if name != "missed"}
    if len(shapes) != 1 or len(*shapes) != 1 or arrays["missed"].shape or schedule.time is None:
        return False
    if any(a.dtype.kind != np.dtype(_LOG_ARRAYS[n]).kind for n, a in arrays.items()):
        return False
    if not (np.isfinite(arrays["start"]).all() and np.isfinite(arrays["stop"]).all()):
        return False
    fate, rounds, (total, slots) = arrays["fate"], arrays["round"], schedule.client.shape
    used = fate == USED
    within = (rounds >= 0) & (rounds < total)
    if not (np.isin(fate, range(len(FATES))).all() and np.array_equal(used, within)):
        return False
    if np.bincount(rounds[used], minlength=1).max() > slots:
        return False
    log = EventLog(**arrays)
    return made_schedule(log, schedule.time, slots).digest() == schedule.digest()
