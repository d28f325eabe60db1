"""The event clock: devices, availability and a server's buffer, played through to a `Schedule`.

Who starts when, how long it takes and what the server does with it is decided here, on the host,
before anything is trained; the schedule can then be trained under any server optimiser.
"""

import heapq
import math
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from ccfl_jax.checks import check_number, check_seed, check_whole, check_work
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

_FRUITLESS = 3 * 10**6  # moments without a round, after which none is expected


class Server(NamedTuple):
    """What the server does, and when it lets a client start.

    Attributes:
        buffer_size: m, uploads that make a round.
        concurrency: clients under way at most.
        start: "replace": whenever fewer than `concurrency` are under way and somebody is there;
            "constant", "poisson": `rate` times a second, evenly or as a Poisson process. Such a
            start is lost, and counted as missed, where nobody is there or too many are under way.
        rate: starts a second; None for "replace".
        max_staleness: an upload staler than that is dropped when it arrives; None: none is.
        timeout: seconds after which a round ends without m uploads; None: it waits.
        on_timeout: "fire": a round of those that are there, the other slots stay empty; "skip":
            they are dropped. With an empty buffer the server waits another `timeout`.
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
    r"""Plays client-centric federated learning on a virtual clock.

    A client that starts at second a takes the newest model x_v, works, and uploads at

    .. math:: b = a + \text{download}_i + \text{step}_i \cdot \text{steps} \cdot \text{task}
              + \text{upload}_i + \text{extra}.

    The m-th upload in the buffer makes a round: it is round t, of second b, and its staleness is
    s = t - v. Of what falls on one second, uploads come first, in the order in which they started;
    then a time-out, then who comes and goes, then starts; and then once more from the beginning
    where a start takes no time. So clients of equal speed, as many as the buffer holds, are never
    stale. A client is chosen uniformly among those that are there and not under way; it may fill
    two slots of a buffer one after the other. It ends what it has started even if it is no longer
    available then, and its upload counts.

    A schedule of more rounds begins with that of fewer.

    Args:
        seed: 0..2**32-1, of choices, work, tasks and starts; the availability model's too.
        num_rounds: T, of the schedule.
        devices: seconds that each client takes.
        availability: which clients are there, and when.
        server: buffer, starts, time-out.
        work: how much each client does.

    Returns:
        The schedule with its `time`, and a log of every task.

    Raises:
        ValueError: for a number out of range, arrays of unequal length, or where no round comes
            any more: nobody is available, or everything is dropped.
    """
    _check(seed, num_rounds, devices, availability, server, work)
    pool, task = Pool(availability.changes(seed)), task_sampling.tasks(seed, devices, work)
    course = _Course(seed, num_rounds, server, pool, task)
    while not course.is_over():
        course.go_on()
    log, duration = course.log()
    schedule = made_schedule(log, np.array(course.time), server.buffer_size)
    unit = "steps" if work.epoch_steps is None else "epochs"
    schedule = schedule.replace(num_clients=availability.num_clients, work_unit=unit)
    check_log(log, schedule, server.concurrency, duration)
    return schedule, log


class _Course:
    """Where the clock stands: tasks so far, those under way, the buffer."""

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
        self.under_way: list[tuple[float, int]] = []  # a heap: when it arrives, its number
        self.buffer: list[int] = []
        self.time: list[float] = []  # of each round
        self.missed = self.fruitless = 0
        self.deadline = math.inf if server.timeout is None else server.timeout

    def is_over(self) -> bool:
        """Whether all rounds are made."""
        return len(self.time) == self.num_rounds

    def go_on(self) -> None:
        """To the next second on which anything happens, and all that does."""
        heap, pool = self.under_way, self.pool
        now = heap[0][0] if heap else math.inf
        now = min(now, pool.next, self.deadline if self.buffer else math.inf)
        if self.gap is not None:
            now = min(now, self.next_start)
        self._check_alive(now)
        self.now = now
        if self.deadline < now:  # the buffer is empty: otherwise that would have been the next
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
        if self.server.timeout is not None:
            self.deadline = self.now + self.server.timeout

    def _time_out(self) -> None:
        if self.buffer and self.server.on_timeout == "fire":
            self._fire()
            return
        for number in self.buffer:
            self.fates[number] = TIMED_OUT, -1
        self._wait()

    def _wait_again(self) -> None:
        """The first deadline from now on, the time-outs before it having found nothing."""
        late = math.ceil((self.now - self.deadline) / self.server.timeout)
        self.deadline = max(self.deadline + late * self.server.timeout, self.now)

    def _start(self) -> None:
        pool, most = self.pool, self.server.concurrency
        if self.gap is None:
            while pool.idle and len(self.under_way) < most:
                self._begin()
            return
        while self.next_start <= self.now:
            if pool.idle and len(self.under_way) < most:
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
        heapq.heappush(self.under_way, (self.now + duration, number))

    def _check_alive(self, now: float) -> None:
        self.fruitless += 1
        if now == math.inf or (self.fruitless > _FRUITLESS):
            raise ValueError(
                "clock: expected a next round with this availability and these limits, found none "
                f"from second {self.time[-1] if self.time else 0:g} to {self.now:g}, with "
                f"{len(self.under_way)} clients under way and {len(self.buffer)} uploads in the "
                "buffer"
            )

    def log(self) -> tuple[EventLog, np.ndarray]:
        """The tasks, and how long each takes."""
        columns = zip(*self.tasks, strict=True) if self.tasks else [()] * 5
        client, start, version, work, duration = columns
        fate, rounds = zip(*self.fates, strict=True) if self.fates else [()] * 2
        start, duration = np.array(start, np.float64), np.array(duration, np.float64)
        whole = [np.array(a, np.int32) for a in (client, version, work, rounds)]
        log = EventLog(
            whole[0], start, start + duration, *whole[1:3], np.array(fate, np.int8), whole[3],
            self.missed,
        )  # fmt: skip
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
    steps = np.asarray(epoch_steps)
    if steps.shape != (num_clients,) or steps.dtype.kind not in "iu" or steps.min() < 0:
        raise ValueError(
            f"epoch_steps: expected integers ({num_clients},) >= 0, found {steps.dtype} "
            f"{steps.shape}"
        )
