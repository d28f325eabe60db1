"""Task sampling: the clock's random numbers, each kind from its own stream, drawn in blocks."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ccfl_jax.checks import check_work
from ccfl_jax.clock.speed import (
    Devices,
    Distribution,
    correlated_work,
    draw,
    exponential,
    slowness,
    uniform,
)

# One generator each: another rule of starts must not change which clients start, or durations.
_CHOICE_STREAM, _WORK_STREAM, _TASK_STREAM, _EXTRA_STREAM, _START_STREAM = range(
    0x434C4B30, 0x434C4B35
)
_AT_ONCE = 4096  # random numbers drawn together: singly they would take most of the time
_OF_A_CLIENT = 16  # amounts of work drawn together for one client


class Work(NamedTuple):
    """The local work of a task.

    Attributes:
        local_work: K, as in `random_schedule`: work is uniform over {1, ..., K R} ...
        randomness: R.
        correlation: ... and over all clients correlated with their slowness, from -1 (the slowest
            do least) to 1 (they do most); `speed.correlated_work`.
        epoch_steps: int `[clients]`, local steps of an epoch, ceil(n_i / B), where work counts
            epochs; None where it counts steps.

    Examples:
        >>> work = ccfl.clock.Work(local_work=2, randomness=1, epoch_steps=np.full(30, 25))
        >>> phones = ccfl.speed.draw_devices(seed=0, num_clients=30, step=ccfl.speed.constant(1.0))
        >>> schedule, log = ccfl.clock_schedule(
        ...     0, 10, phones, ccfl.availability.always(30), ccfl.clock.Server(), work
        ... )
        >>> schedule.work_unit, sorted({*(log.stop - log.start).tolist()})  # 1 or 2 epochs of 25 s
        ('epochs', [25.0, 50.0])
    """

    local_work: int = 3
    randomness: float = 2
    correlation: float = 0.0
    epoch_steps: np.ndarray | None = None


def _numbers(
    seed: int, stream: int, name: str, distribution: Distribution | None, none: float
) -> Iterator[float]:
    """Endless numbers from their own stream; always `none` without a distribution."""
    if distribution is None:
        return itertools.repeat(none)
    rng = np.random.default_rng([seed, stream])
    blocks = (draw(name, distribution, rng, _AT_ONCE).tolist() for _ in itertools.count())
    return itertools.chain.from_iterable(blocks)


def choices(seed: int) -> Iterator[float]:
    """Numbers uniform in [0, 1): which idle client starts."""
    return _numbers(seed, _CHOICE_STREAM, "choice", uniform(0.0, 1.0), 0.0)


def gaps(seed: int, rate: float, start: str) -> Iterator[float]:
    """Seconds from start to start, `rate` a second; "constant" or "poisson"."""
    law = exponential(1.0 / rate) if start == "poisson" else None
    return _numbers(seed, _START_STREAM, "start", law, 1.0 / rate)


def tasks(seed: int, devices: Devices, work: Work) -> Callable[[int], tuple[int, float]]:
    """A client's next task: its work, and the seconds that it takes."""
    each = 1 if work.epoch_steps is None else np.asarray(work.epoch_steps)
    unit = (np.asarray(devices.step, np.float64) * each).tolist()
    sent = (np.asarray(devices.download, np.float64) + devices.upload).tolist()
    amount = _amounts(seed, devices, work)
    factor = _numbers(seed, _TASK_STREAM, "task", devices.task, 1.0)
    extra = _numbers(seed, _EXTRA_STREAM, "extra", devices.extra, 0.0)

    def task(client: int) -> tuple[int, float]:
        units = amount(client)
        return units, sent[client] + unit[client] * units * next(factor) + next(extra)

    return task


def _amounts(seed: int, devices: Devices, work: Work) -> Callable[[int], int]:
    """A client's next work."""
    most, correlation = check_work(work.local_work, work.randomness), work.correlation
    rng = np.random.default_rng([seed, _WORK_STREAM])
    if not correlation:  # the same law for all clients: drawn for many tasks at once
        standing, clients = np.array([[0.0, 1.0]]), np.zeros(_AT_ONCE, int)
        drawn = (
            correlated_work(rng, standing, clients, most, 0.0).tolist() for _ in itertools.count()
        )
        numbers = itertools.chain.from_iterable(drawn)
        return lambda client: next(numbers)
    standing, ahead = slowness(devices.step), defaultdict(list)

    def amount(client: int) -> int:
        own = ahead[client]
        if not own:
            several = np.full(_OF_A_CLIENT, client)
            own += correlated_work(rng, standing, several, most, correlation).tolist()
        return own.pop()

    return amount
