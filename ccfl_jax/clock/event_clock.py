"""The event clock: devices, availability and a server's buffer, simulated to a `Schedule`.

Which client starts when, how long its task takes and in which round its upload is used is decided
here, on the host, before training; the schedule can then be run with any server optimiser.
"""

import heapq
import math
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from ccfl_jax.checks import check_number, check_seed, check_whole, check_work, unmasked
from ccfl_jax.clock import task_sampling
from ccfl_jax.clock.availability import Availability
from ccfl_jax.clock.event_log import (
    STALE,
    TIMED_OUT,
    UNDERWAY,
    USED,
    EventLog,
    check_log,
    made_schedule,
)
from ccfl_jax.clock.idle_clients import Pool
from ccfl_jax.clock.speed import Devices
from ccfl_jax.clock.task_sampling import Work
from ccfl_jax.schedules.schedule import Schedule

Start = Literal["replace", "constant", "poisson"]
OnTimeout = Literal["fire", "skip"]

_FRUITLESS = 3 * 10**6  # events without a round, after which no more is expected


class Server(NamedTuple):
    """When the server starts clients, and how it makes rounds of their uploads.

    Attributes:
        buffer_size: m, uploads that make a round.
        concurrency: clients that train at the same time, at most.
        start: "replace": whenever fewer than `concurrency` clients train and one is idle;
            "constant", "poisson": `rate` times a second, evenly or as a Poisson process. Such a
            start is lost, and counted as missed, without an idle client or with `concurrency`
            clients training.
        rate: starts a second; None for "replace".
        max_staleness: an upload with a larger staleness is dropped when it arrives; None: no limit.
        timeout: seconds after which a round ends without m uploads; None: no limit.
        on_timeout: "fire": a round of the uploads in the buffer, the other slots stay empty;
            "skip": they are dropped. With an empty buffer the server waits another `timeout`.

    Examples:
        >>> server = ccfl.clock.Server(buffer_size=5, concurrency=20, max_staleness=3)
        >>> phones = ccfl.speed.draw_devices(
        ...     seed=0, num_clients=30, step=ccfl.speed.uniform(1.0, 10.0)
        ... )
        >>> schedule, log = ccfl.clock_schedule(
        ...     0, 100, phones, ccfl.availability.always(30), server
        ... )
        >>> int(schedule.staleness.max()), log.counts()["stale"] > 0
        (3, True)
    """

    buffer_size: int = 5
    concurrency: int = 10
    start: Start = "replace"
    rate: float | None = None
    max_staleness: int | None = None
    timeout: float | None = None
    on_timeout: OnTimeout = "fire"


def clock_schedule(
    seed: int,
    num_rounds: int,
    devices: Devices,
    availability: Availability,
    server: Server = Server(),  # noqa: B008, it cannot be changed
    work: Work = Work(),  # noqa: B008
) -> tuple[Schedule, EventLog]:
    r"""Simulates client-centric federated learning on a virtual clock.

    A client that starts at second a takes the newest model x_v, works, and uploads at

    .. math:: b = a + \text{download}_i + \text{step}_i \cdot \text{steps} \cdot \text{task}
              + \text{upload}_i + \text{extra}.

    The m-th upload in the buffer makes a round: it is round t, of second b, and its staleness is
    s = t - v. Events of one second come in this order: uploads, in the order of their starts; then
    a time-out, then changes of availability, then starts; and again from the beginning where a task
    takes no time. So m clients of equal speed are never stale. A client is chosen uniformly among
    the idle ones, available and not training; it may fill two slots of a buffer one after the
    other. It completes a task even if it becomes unavailable, and its upload counts.

    A longer schedule begins with the shorter one.

    Args:
        seed: 0..2**32-1, of choices, work, tasks and starts; the availability model's too.
        num_rounds: T, of the schedule.
        devices: the seconds of each client's task.
        availability: which clients are available, and when.
        server: buffer, starts, time-out.
        work: the local work of each task.

    Returns:
        The schedule with its `time`, and a log of every task.

    Raises:
        ValueError: for a number out of range, arrays of unequal length, or if no further
            round comes: no client is available, or every upload is dropped.

    Examples:
        >>> phones = ccfl.speed.draw_devices(
        ...     seed=0, num_clients=30, step=ccfl.speed.uniform(1.0, 10.0)
        ... )
        >>> schedule, log = ccfl.clock_schedule(
        ...     seed=0,
        ...     num_rounds=100,
        ...     devices=phones,
        ...     availability=ccfl.availability.always(30),
        ...     server=ccfl.clock.Server(buffer_size=5, concurrency=10),
        ... )
        >>> schedule.client.shape, log.counts()["used"]
        ((100, 5), 500)
        >>> int(schedule.staleness.max()), round(float(schedule.time[-1]))  # rounds, seconds
        (8, 873)
    """
    _check(seed, num_rounds, devices, availability, server, work)
    pool, task = Pool(availability.changes(seed)), task_sampling.tasks(seed, devices, work)
    clock = _Clock(seed, num_rounds, server, pool, task)
    while not clock.is_over():
        clock.advance()
    log, duration = clock.log()
    schedule = made_schedule(log, np.array(clock.time), server.buffer_size)
    unit = "steps" if work.epoch_steps is None else "epochs"
    schedule = schedule.replace(num_clients=availability.num_clients, work_unit=unit)
    check_log(log, schedule, server.concurrency, duration)
    return schedule, log


class _Clock:
    """The state of the simulation: tasks so far, those in training, the buffer."""

    def __init__(
        self,
        seed: int,
        num_rounds: int,
        server: Server,
        pool: Pool,
        task: Callable[[int], tuple[int, float]],
    ) -> None:
        self.num_rounds = num_rounds
        self.server, self.pool, self.task = server, pool, task
        self.choice = task_sampling.choices(seed)
        self.gap = (
            None if server.rate is None else task_sampling.gaps(seed, server.rate, server.start)
        )
        self.now, self.next_start = 0.0, 0.0 if self.gap is None else next(self.gap)
        self.tasks: list[tuple] = []  # client, start, version, work, duration
        self.fates: list[tuple[int, int]] = []  # and the round, of each task
        self.training: list[tuple[float, int]] = []  # a heap: when it arrives, its number
        self.buffer: list[int] = []
        self.time: list[float] = []  # of each round
        self.missed = self.fruitless = 0
        self.timeout = math.inf if server.timeout is None else server.timeout
        self.deadline = self.timeout

    def is_over(self) -> bool:
        """Whether all rounds are made."""
        return len(self.time) == self.num_rounds

    def advance(self) -> None:
        """Goes to the next second with an event, and handles all of that second."""
        heap, pool = self.training, self.pool
        now = heap[0][0] if heap else math.inf
        now = min(now, pool.next, self.deadline if self.buffer else math.inf)
        if self.gap is not None:
            now = min(now, self.next_start)
        self._check_alive(now)
        self.now = now
        if self.deadline < now:  # only with an empty buffer, whose deadline is no event
            self._wait_again()
        while heap and heap[0][0] == now and not self.is_over():
            self._arrive(heapq.heappop(heap)[1])
        if self.deadline <= now:
            self._time_out()
        if self.is_over():
            return
        if pool.next <= now:
            pool.change(now)
        self._start()

    def _arrive(self, number: int) -> None:
        client, _, version, _, _ = self.tasks[number]
        self.pool.give_back(client)
        limit = self.server.max_staleness
        if limit is not None and len(self.time) - version > limit:
            self.fates[number] = STALE, -1
            return
        self.buffer.append(number)
        if len(self.buffer) == self.server.buffer_size:
            self._fire()

    def _fire(self) -> None:
        for number in self.buffer:
            self.fates[number] = USED, len(self.time)
        self.time.append(self.now)
        self.fruitless = 0
        self._wait()

    def _wait(self) -> None:
        self.buffer.clear()
        self.deadline = self.now + self.timeout

    def _time_out(self) -> None:
        if self.buffer and self.server.on_timeout == "fire":
            self._fire()
            return
        for number in self.buffer:
            self.fates[number] = TIMED_OUT, -1
        self._wait()

    def _wait_again(self) -> None:
        """The first deadline from now on: those before it found an empty buffer."""
        late = math.ceil((self.now - self.deadline) / self.timeout)
        self.deadline = max(self.deadline + late * self.timeout, self.now)

    def _start(self) -> None:
        pool, most = self.pool, self.server.concurrency
        if self.gap is None:
            while pool.idle and len(self.training) < most:
                self._begin()
            return
        while self.next_start <= self.now:
            if pool.idle and len(self.training) < most:
                self._begin()
            else:
                self.missed += 1
            self.next_start += next(self.gap)

    def _begin(self) -> None:
        client = self.pool.take(next(self.choice))
        work, duration = self.task(client)
        number = len(self.tasks)
        self.tasks.append((client, self.now, len(self.time), work, duration))
        self.fates.append((UNDERWAY, -1))
        heapq.heappush(self.training, (self.now + duration, number))

    def _check_alive(self, now: float) -> None:
        self.fruitless += 1
        if now == math.inf or (self.fruitless > _FRUITLESS):
            raise ValueError(
                "clock: expected a next round with this availability and these limits, found none "
                f"from second {self.time[-1] if self.time else 0:g} to {self.now:g}, with "
                f"{len(self.training)} clients training and {len(self.buffer)} uploads in the "
                "buffer"
            )

    def log(self) -> tuple[EventLog, np.ndarray]:
        """The log, and the duration of each task, float64 `[tasks]`."""
        columns = zip(*self.tasks, strict=True) if self.tasks else [()] * 5
        client, start, version, work, duration = columns
        fate, rounds = zip(*self.fates, strict=True) if self.fates else [()] * 2
        start, duration = np.array(start, np.float64), np.array(duration, np.float64)
        log = EventLog(
            client=np.array(client, np.int32),
            start=start,
            stop=start + duration,
            version=np.array(version, np.int32),
            work=np.array(work, np.int32),
            fate=np.array(fate, np.int8),
            round=np.array(rounds, np.int32),
            missed=self.missed,
        )
        return log, duration


def _check(
    seed: int,
    num_rounds: int,
    devices: Devices,
    availability: Availability,
    server: Server,
    work: Work,
) -> None:
    check_seed(seed)
    check_whole("num_rounds", num_rounds, 0)
    check_whole("local_work", work.local_work, 1)
    check_work(work.local_work, work.randomness)
    for name in ("buffer_size", "concurrency"):
        check_whole(name, getattr(server, name), 1)
    if server.max_staleness is not None:
        check_whole("max_staleness", server.max_staleness, 0)
    for name, words in (("start", Start), ("on_timeout", OnTimeout)):
        if (value := getattr(server, name)) not in get_args(words):
            raise ValueError(f"{name}: expected {', '.join(get_args(words))}, found {value!r}")
    if (server.rate is None) != (server.start == "replace"):
        raise ValueError(
            "rate: expected None with replace, a number with constant and poisson, found "
            f"{server.rate} with {server.start}"
        )
    for name in ("rate", "timeout"):
        if getattr(server, name) is not None:
            check_number(name, getattr(server, name), above=True)
    check_number("correlation", work.correlation, -1.0, 1.0)
    _check_clients(devices, availability.num_clients, work.epoch_steps)


def _check_clients(devices: Devices, num_clients: int, epoch_steps: np.ndarray | None) -> None:
    devices.check()
    if len(devices.step) != num_clients:
        raise ValueError(
            f"devices: expected {num_clients} clients, as in availability, found "
            f"{len(devices.step)}"
        )
    if epoch_steps is None:
        return
    steps = unmasked("epoch_steps", epoch_steps)
    if steps.shape != (num_clients,) or steps.dtype.kind not in "iu" or steps.min() < 0:
        raise ValueError(
            f"epoch_steps: expected integers ({num_clients},) >= 0, found {steps.dtype} "
            f"{steps.shape}"
        )
