"""The parts of the clock from flags: devices, availability and the server's buffer."""

import os

import numpy as np

from ccfl_jax.clock import availability as models
from ccfl_jax.clock import event_clock, speed, traces
from ccfl_jax.clock.availability import Availability
from ccfl_jax.clock.speed import Devices, Distribution
from ccfl_jax.clock.task_sampling import Work

from ..config.expression import AVAILABILITIES, DISTRIBUTIONS, expression
from ..config.run_flags import Config
from ..config.schedule_flags import Options

# One generator each, the ASCII codes of four letters: phases of cyclic, zones of diurnal.
_PHASE_STREAM, _ZONE_STREAM = 0x50484153, 0x5A4F4E45
# The argument of `draw_devices` -> the flag of its distribution.
_LAWS = {
    "step": "step",
    "download": "download_time",
    "upload": "upload_time",
    "task": "task_factor",
    "extra": "extra",
}
_TRACES = {
    "fedscale": traces.read_fedscale_availability,
    "flash": traces.read_flash,
    "csv": traces.read_windows_csv,
    "npz": traces.read_windows_npz,
}


def distribution(name: str, text: str | None) -> Distribution | None:
    """The distribution of the flag `name`; None without one."""
    if text is None:
        return None
    place, (law, numbers) = f"--{name}={text}", expression(text, DISTRIBUTIONS)
    if law == "three_classes":
        numbers = numbers[0], tuple(zip(numbers[1::2], numbers[2::2], strict=True))
    try:
        return getattr(speed, law)(*numbers)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def devices(options: Options, config: Config, model_bytes: int) -> tuple[Devices, list[str]]:
    """Every client's seconds, drawn or from a file, and lines on the file.

    Raises:
        ValueError, OSError: for numbers out of range, and a file that cannot be read or has too
            few devices.
    """
    laws = {name: distribution(flag, getattr(options, flag)) for name, flag in _LAWS.items()}
    count, file = config.num_clients, options.capacity
    if file is None:
        return speed.draw_devices(config.seed_of("schedule"), count, **laws), []
    file = os.path.expanduser(file)
    found = traces.read_fedscale_capacity(file, config.batch_size, model_bytes)
    known = len(found.step)
    if known < count:
        raise ValueError(
            f"--num_clients: expected at most {known}, the devices of {file}, found {count}"
        )
    first = Devices(*(column[:count] for column in found[:3]), laws["task"], laws["extra"])
    return first, [f"capacity  {file}: the first {count} of {known} devices"]


def server(options: Options, config: Config) -> event_clock.Server:
    """The buffer, starts and time-out."""
    names = ("concurrency", "start", "rate", "max_staleness", "timeout", "on_timeout")
    return event_clock.Server(
        config.buffer_size, **{name: getattr(options, name) for name in names}
    )


def work(options: Options, config: Config, each: np.ndarray) -> Work:
    """The local work of a task; `each` `[clients]` are the steps of one epoch."""
    epoch_steps = each if config.work_unit == "epochs" else None
    return Work(config.local_work, config.randomness, options.work_correlation, epoch_steps)


def availability(
    text: str, config: Config, labels: np.ndarray | None, num_labels: int
) -> tuple[Availability, list[str]]:
    """The model of `--availability`, and lines on its trace.

    Args:
        text: the flag's value.
        config: of the run; its seed draws phases (uniform over the period) and zones (uniform over
            0, ..., 23 hours), its number of clients is the model's.
        labels: integers `[clients]`, each one's main label l of L: its part of the period, or its
            zone of 24 l / L hours; or None.
        num_labels: L.

    Raises:
        ValueError, OSError: for numbers out of range, and a trace that cannot be read or has too
            few clients.
    """
    place, (name, numbers) = f"--availability={text}", expression(text, AVAILABILITIES)
    try:
        if name in _TRACES:
            return _trace(name, numbers[0], config.num_clients)
        return _model(name, numbers, config, labels, num_labels), []
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _model(
    name: str,
    numbers: tuple[float, ...],
    config: Config,
    labels: np.ndarray | None,
    num_labels: int,
) -> Availability:
    seed, count = config.seed_of("schedule"), config.num_clients
    if name == "label":
        return models.by_label(labels, num_labels, *numbers)
    if name == "label_diurnal":
        return models.diurnal(24.0 * labels / num_labels, *numbers)
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
        raise ValueError(
            f"num_clients: expected at most {known}, the clients of the trace, found {count}"
        )
    own = trace.client < count
    if not own.any():
        raise ValueError(
            f"num_clients: expected one that is ever available, found none in the first {count}"
        )
    windows = (column[own] for column in trace[:3])
    note = f"trace     {path}: the first {count} of {known} clients, {own.sum()} windows"
    return models.windows(*windows, trace.period[:count]), [note]
