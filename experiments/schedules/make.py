"""Schedules from flags: made, written and described."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import ccfl_jax as ccfl
from ccfl_jax.clock import availability, event_clock
from ccfl_jax.clock.availability import Availability
from ccfl_jax.clock.event_log import EventLog

from ..config.datasets import dataset_of
from ..config.run_flags import Config
from ..config.schedule_flags import Options, Request
from ..figures import canvas, schedule_figure
from ..training import parts, run_schedule, tasks
from . import worlds
from .describe import describe


class Made(NamedTuple):
    """A schedule with the clients and the clock that it was made from.

    Attributes:
        schedule: with `num_clients` and `work_unit`.
        log: every task, of the clock; else None.
        steps: integers `[rounds, slots]`, local steps; 0 without work.
        labels: int64 `[clients]`, each one's main label; None where samples have several.
        model_bytes: of one model.
        notes: lines on the files that were used.
    """

    schedule: ccfl.Schedule
    log: EventLog | None
    steps: np.ndarray
    labels: np.ndarray | None
    model_bytes: int
    notes: list[str]


def files(file: Path) -> tuple[Path, Path, Path]:
    """The schedule, its log and its picture."""
    return file, file.with_suffix(".log.npz"), file.with_suffix(".png")


def make(request: Request) -> list[str]:
    """Makes and writes a schedule; returns its description.

    Raises:
        ValueError, OSError: for data, traces and numbers that cannot be used, and for files that
            exist.
    """
    file, log_file, picture = files(request.file)
    found = [path for path in files(file) if path.exists()]
    if found and not request.options.overwrite:
        raise FileExistsError(f"{found[0]}: expected a new name, or --overwrite, found a file")
    made, config = world(request.config, request.options), request.config
    schedule = made.schedule
    lines = describe(schedule, schedule.num_clients, made.log, made.model_bytes, made.steps)
    file.parent.mkdir(parents=True, exist_ok=True)
    schedule.save(file)
    written = [file]
    if made.log is not None:
        made.log.save(log_file)
        written.append(log_file)
    else:
        log_file.unlink(missing_ok=True)  # of an overwritten schedule
    seed = config.seed_of("schedule")
    title = f"{file.name}: {request.options.world}, {config.dataset}, seed {seed}"
    clients = schedule.num_clients
    draw = partial(schedule_figure.draw, schedule, clients, picture, title, made.log, made.labels)
    if canvas.drawn(picture, draw):
        written.append(picture)
    return [*lines, *made.notes, *(f"written   {path}" for path in written)]


def show(request: Request) -> list[str]:
    """The description of a schedule file, and its figure where that does not exist.

    Raises:
        ValueError, OSError: for a file that cannot be read.
    """
    file, log_file, picture = files(request.file)
    schedule = ccfl.Schedule.load(file)
    num_clients = request.num_clients or schedule.num_clients
    if num_clients is None:
        num_clients = int(np.max(schedule.client, initial=0)) + 1
    log = EventLog.load(log_file) if log_file.exists() else None
    if log is not None and not log.makes(schedule):
        raise ValueError(f"{log_file}: expected the tasks of its schedule, found those of another")
    lines = describe(schedule, num_clients, log)
    if picture.exists() and not request.options.overwrite:
        return [*lines, f"picture   {picture} exists; --overwrite draws it anew"]
    schedule_figure.draw(schedule, num_clients, picture, file.name, log)
    return [*lines, f"written   {picture}"]


def world(config: Config, options: Options) -> Made:
    """Makes the schedule of a run, for its clients.

    Raises:
        ValueError, OSError: for data, traces and numbers that cannot be used.
    """
    loaded = parts.load(*parts.source(config))
    train, classes = loaded.train, loaded.num_classes
    rows, starts = parts.dealt(config, train)["train"]
    labels = None
    if dataset_of(config.dataset)[2].one_label and classes is not None:
        labels = main_labels(train["y"][rows], starts, classes)
    each = config.steps_per_work(np.diff(starts))
    model_bytes = parts.model_bytes(
        tasks.task_of(config.dataset, config.model, config.compute_dtype, train, classes)
    )
    available, notes = None, []
    if options.world != "paper":
        available, notes = worlds.availability(options.availability, config, labels, classes)
    if options.world == "clock":
        devices, of_file = worlds.devices(options, config, model_bytes)
        notes += of_file
        server, work = worlds.server(options, config), worlds.work(options, config, each)
        schedule, log = event_clock.clock_schedule(
            config.seed_of("schedule"), config.rounds, devices, available, server, work
        )
    else:
        schedule, log = _cohorts(options, config, available), None
    steps = np.where(schedule.working(), schedule.work * each[schedule.client], 0)
    return Made(schedule, log, steps, labels, model_bytes, notes)


def _cohorts(options: Options, config: Config, available: Availability | None) -> ccfl.Schedule:
    """The paper's rule, with `rounds` of the available clients; round t ends at (t + 1) seconds."""
    if available is None:
        return run_schedule.drawn_schedule(config)
    seconds = options.round_seconds
    masks = availability.masks(available, config.seed_of("schedule"), config.rounds, seconds)
    time = seconds * np.arange(1.0, config.rounds + 1)
    return run_schedule.drawn_schedule(config, masks).replace(time=time)


def main_labels(labels: np.ndarray, starts: np.ndarray, num_labels: int) -> np.ndarray:
    """Each client's most frequent label, of several the lowest; int64 `[clients]`.

    Args:
        labels: integers `[rows]`, of the clients' rows one after another.
        starts: integers `[clients + 1]`, the start of each client's. Without rows it is label 0.
        num_labels: L.
    """
    count = len(starts) - 1
    cells = np.repeat(np.arange(count), np.diff(starts)) * num_labels + labels
    return np.bincount(cells, minlength=count * num_labels).reshape(count, -1).argmax(axis=1)
