"""Availability: models of when each client is available, on a virtual clock in seconds.

A model is a function from a seed to blocks of changes, each of all clients.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ccfl_jax.checks import check_number, check_seed, check_whole, unmasked
from ccfl_jax.clock.availability_events import (
    BLOCK,
    DAY,
    LONGEST,
    SHORTEST,
    Changes,
    PerClient,
    block_length,
    in_order,
    per_client,
    replay,
)
from ccfl_jax.clock.availability_windows import Windows, check_windows, repeating

# One generator each, the ASCII codes of four letters: no other part of a run draws from them.
_BERNOULLI_STREAM, _MARKOV_STREAM = 0x4245524E, 0x4D41524B
_HOUR = 3600.0
_INSTANT = 1e-6


class Availability(NamedTuple):
    """A model of when each client is available.

    Attributes:
        num_clients: n; clients are 0..n-1.
        changes: of a seed, 0..2**32-1: endless consecutive blocks from time 0 on. Before 0 no
            client is available, so those available at 0 have a change at 0.

    Examples:
        >>> model = ccfl.availability.cyclic(
        ...     num_clients=3, period=60.0, on=20.0, phase=[0.0, 20.0, 40.0]
        ... )
        >>> model.num_clients
        3
        >>> block = next(model.changes(0))  # of the seed 0: who comes and goes in the first seconds
        >>> print(block.time[:4], block.client[:4], block.available[:4])
        [ 0. 20. 20. 40.] [0 0 2 1] [ True False  True  True]
    """

    num_clients: int
    changes: Callable[[int], Iterator[Changes]]


def always(num_clients: int) -> Availability:
    """All clients, from 0 on; FedAvg's setting, and the paper's.

    Examples:
        >>> phones = ccfl.speed.draw_devices(seed=0, num_clients=5, step=ccfl.speed.constant(1.0))
        >>> server = ccfl.clock.Server(buffer_size=5, concurrency=5)
        >>> schedule, _ = ccfl.clock_schedule(0, 10, phones, ccfl.availability.always(5), server)
        >>> bool(schedule.present.all()), int(schedule.staleness.max())  # synchronous rounds
        (True, 2)
    """
    check_whole("num_clients", num_clients, 1, 2**31 - 1)
    none = np.zeros(0)
    return _replay(np.ones(num_clients, np.bool_), (none.astype(int), none, none > 0), none)


def bernoulli(num_clients: int, p: PerClient, period: float) -> Availability:
    """In [k period, (k + 1) period) client c is available with probability p[c], drawn anew each k.

    All draws are independent. MIFA's participation (`gen_avail_prob.py`), where a period is a round
    and p[c] is uniform over [p_min, p_max], or grows with the label that a client holds.

    Args:
        num_clients: n.
        p: [clients] or one for all, 0 to 1, above 0 for at least one.
        period: seconds, 0.001 to 1e12.

    Raises:
        ValueError: an argument is not as described.

    Examples:
        >>> half = ccfl.availability.bernoulli(num_clients=1000, p=0.5, period=60.0)
        >>> [
        ...     int(mask.sum())
        ...     for mask in ccfl.availability.masks(half, seed=0, rounds=3, seconds=60.0)
        ... ]
        [489, 523, 498]
    """
    num_clients = check_whole("num_clients", num_clients, 1, 2**31 - 1)
    p = per_client("p", p, num_clients, 0.0, 1.0)
    if not p.any():
        raise ValueError("p: expected a number > 0 for at least one client, found none")
    check_number("period", period, SHORTEST, LONGEST)

    def blocks(seed: int) -> Iterator[Changes]:
        rng = np.random.default_rng([seed, _BERNOULLI_STREAM])
        before = np.zeros((1, num_clients), np.bool_)
        rows = max(1, BLOCK // num_clients)  # periods in a block
        for first in itertools.count(0, rows):
            drawn = rng.random((rows, num_clients)) < p
            row, client = np.nonzero(drawn != np.concatenate([before, drawn[:-1]]))
            time, end = (first + row) * float(period), (first + rows) * float(period)
            yield Changes(end, time, client.astype(np.int32), drawn[row, client])
            before = drawn[-1:]

    return _seeded(num_clients, blocks)


def cyclic(
    num_clients: int, period: PerClient, on: PerClient, phase: PerClient = 0.0
) -> Availability:
    """Client c is available at t if (t + phase[c]) mod period[c] < on[c].

    Args:
        num_clients: n.
        period: [clients] or one for all, seconds, 0.001 to 1e12.
        on: the same, 0.001 to period; the rest of the period is 0 or at least 0.001.
        phase: the same, -1e12 to 1e12: a client's place in its cycle at 0.

    Raises:
        ValueError: an argument is not as described.

    Examples:
        >>> turns = ccfl.availability.cyclic(
        ...     num_clients=3, period=60.0, on=20.0, phase=[0.0, 20.0, 40.0]
        ... )
        >>> for mask in ccfl.availability.masks(turns, seed=0, rounds=3, seconds=20.0):
        ...     print(mask.astype(int))
        [1 0 0]
        [0 0 1]
        [0 1 0]
    """
    check_whole("num_clients", num_clients, 1, 2**31 - 1)
    period = per_client("period", period, num_clients, SHORTEST, LONGEST)
    on = per_client("on", on, num_clients, SHORTEST, LONGEST)
    phase = per_client("phase", phase, num_clients, -LONGEST, LONGEST)
    wrong = np.flatnonzero((on != period) & (period - on < SHORTEST))
    if wrong.size:
        raise ValueError(
            f"on: expected the period, or at least {SHORTEST} s less, found {on[wrong[0]]} of a "
            f"period of {period[wrong[0]]}"
        )
    into = np.mod(phase, period)
    into[into == period] = 0.0  # the rounded value for a phase just below 0
    client = np.flatnonzero(on < period)
    comes = (period - into)[client]
    goes = np.where(into < on, on - into, period - (into - on))[client]
    rows = (np.tile(client, 2), np.append(comes, goes), np.repeat([True, False], client.size))
    return _replay(into < on, rows, period)


def diurnal(zones: np.ndarray, start: PerClient = 22.0, hours: PerClient = 8.0) -> Availability:
    """Once a day: client c is available if (t / 3600 + zones[c] - start[c]) mod 24 < hours[c].

    t / 3600 + zone is the local hour; time 0 is midnight UTC. The defaults, 22 to 6 o'clock, are
    from no paper: when phones meet FLASH's condition of charging, locked, and on wifi.

    Args:
        zones: [clients], hours ahead of UTC, -24 to 24.
        start: [clients] or one for all, local hour, 0 to 24.
        hours: the same, above 0 to 24.

    Raises:
        ValueError: an argument is not as described.

    Examples:
        >>> nights = ccfl.availability.diurnal(zones=np.array([0, 6, 12, 18]), start=22, hours=8)
        >>> for mask in ccfl.availability.masks(nights, seed=0, rounds=4, seconds=6 * 3600):
        ...     print(mask.astype(int))  # at 0, 6, 12 and 18 o'clock UTC
        [1 0 0 0]
        [0 0 0 1]
        [0 0 1 0]
        [0 1 0 0]
    """
    if np.ndim(zones) != 1 or not np.size(zones):
        raise ValueError(f"zones: expected [clients], at least one, found shape {np.shape(zones)}")
    zones = per_client("zones", zones, len(zones), -24.0, 24.0)
    start = per_client("start", start, len(zones), 0.0, 24.0)
    hours = per_client("hours", hours, len(zones), SHORTEST, 24.0)
    return cyclic(len(zones), DAY, hours * _HOUR, (zones - start) * _HOUR)


def markov(num_clients: int, mean_on: PerClient, mean_off: PerClient) -> Availability:
    """Two states, held for exponentially distributed times: a client stays mean_on, away mean_off.

    It starts in its stationary law: at every t it is available with probability q = mean_on /
    (mean_on + mean_off), and the covariance of its availability at s and at t is
    `q (1 - q) exp(-|t - s| (1 / mean_on + 1 / mean_off))`. The simplest model with correlation in
    time, from no paper. Departure: a microsecond is added to each holding time, so that no two
    changes of a client coincide.

    Args:
        num_clients: n.
        mean_on: [clients] or one for all, seconds, 0.001 to 1e12.
        mean_off: the same.

    Raises:
        ValueError: an argument is not as described.

    Examples:
        >>> phones = ccfl.availability.markov(num_clients=1000, mean_on=600.0, mean_off=1800.0)
        >>> [
        ...     int(mask.sum())
        ...     for mask in ccfl.availability.masks(phones, seed=0, rounds=3, seconds=60.0)
        ... ]
        [255, 244, 238]
    """
    check_whole("num_clients", num_clients, 1, 2**31 - 1)
    on = per_client("mean_on", mean_on, num_clients, SHORTEST, LONGEST)
    off = per_client("mean_off", mean_off, num_clients, SHORTEST, LONGEST)
    cycle = on + off
    length = block_length(2.0 / cycle, cycle)

    def blocks(seed: int) -> Iterator[Changes]:
        rng = np.random.default_rng([seed, _MARKOV_STREAM])
        state = rng.random(num_clients) * cycle < on
        parts = [(np.zeros(state.sum()), np.flatnonzero(state), state[state])]
        for number in itertools.count():
            begin, end = number * length, (number + 1) * length
            # The exponential law is memoryless: the rest of a holding time is drawn anew.
            parts += _holding_times(rng, state, begin, end, np.array([on, off]))
            yield in_order(end, *map(np.concatenate, zip(*parts, strict=True)))
            parts = []

    return _seeded(num_clients, blocks)


def windows(
    client: np.ndarray, start: np.ndarray, stop: np.ndarray, period: np.ndarray
) -> Availability:
    """A trace, each client's replayed modulo its own period; arguments as in `Windows`.

    FedScale replays its devices' charging hours in this way, modulo their `finish_time`.

    Raises:
        ValueError: as `check_windows`.

    Examples:
        >>> trace = ccfl.availability.windows(
        ...     client=np.array([0, 0, 1]),
        ...     start=np.array([0.0, 50.0, 10.0]),
        ...     stop=np.array([10.0, 60.0, 20.0]),
        ...     period=np.array([60.0, 60.0]),
        ... )
        >>> for mask in ccfl.availability.masks(trace, seed=0, rounds=2, seconds=55.0):
        ...     print(mask.astype(int))
        [1 0]
        [1 0]
    """
    trace = check_windows(Windows(client, start, stop, period))
    return _replay(*repeating(trace), trace.period)


def by_label(labels: np.ndarray, num_labels: int, period: float) -> Availability:
    """The labels take turns: each has one part of the period.

    Client c is available if floor(L (t mod period) / period) = labels[c], L = `num_labels`:
    availability and data change together, as where both depend on the time zone. From no paper:
    like MIFA's probabilities that grow with the label, but in time.

    Args:
        labels: integers [clients], 0 to L - 1: each client's main label.
        num_labels: L, with parts of at least 0.001 s.
        period: seconds, 0.001 to 1e12; a day makes it a diurnal model.

    Raises:
        ValueError: an argument is not as described.

    Examples:
        >>> turns = ccfl.availability.by_label(
        ...     labels=np.array([0, 0, 1, 2]), num_labels=3, period=30.0
        ... )
        >>> for mask in ccfl.availability.masks(turns, seed=0, rounds=3, seconds=10.0):
        ...     print(mask.astype(int))
        [1 1 0 0]
        [0 0 1 0]
        [0 0 0 1]
    """
    check_whole("num_labels", num_labels, 1, 2**31 - 1)
    check_number("period", period, SHORTEST, LONGEST)
    labels = unmasked("labels", labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size:
        raise ValueError(
            f"labels: expected integers [clients], found {labels.dtype} {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= num_labels:
        raise ValueError(
            f"labels: expected 0 to {num_labels - 1}, found {labels.min()} to {labels.max()}"
        )
    part = period / num_labels
    return cyclic(len(labels), period, part, -part * labels.astype(np.float64))


def masks(
    availability: Availability, seed: int, rounds: int, seconds: float
) -> Iterator[np.ndarray]:
    """The clients available at 0, seconds, 2 seconds, ...: a new bool [clients] for each round.

    Raises:
        ValueError: for a seed outside 0..2**32-1, a negative number of rounds, or seconds that are
            not finite and above 0.

    Examples:
        >>> nights = ccfl.availability.diurnal(zones=np.arange(24))
        >>> masks = [*ccfl.availability.masks(nights, seed=0, rounds=48, seconds=1800.0)]  # a day
        >>> len(masks), [int(mask.sum()) for mask in masks[:3]]
        (48, [8, 8, 8])
    """
    check_whole("rounds", rounds, 0, 2**31 - 1)
    check_number("seconds", seconds, 0.0, LONGEST, above=True)
    return _masks(availability.num_clients, availability.changes(seed), rounds, float(seconds))


def _masks(
    num_clients: int, blocks: Iterator[Changes], rounds: int, seconds: float
) -> Iterator[np.ndarray]:
    state = np.zeros(num_clients, np.bool_)
    block, at = Changes(0.0, np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.bool_)), 0
    for t in range(rounds):
        now = t * seconds
        while block.end <= now:
            state[block.client[at:]] = block.available[at:]
            block, at = next(blocks), 0
        until = np.searchsorted(block.time, now, side="right")
        # A client's last change holds, as NumPy assigns in order.
        state[block.client[at:until]] = block.available[at:until]
        at = until
        yield state.copy()


def _holding_times(
    rng: np.random.Generator, state: np.ndarray, begin: float, end: float, mean: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Times, clients and new states in [begin, end), in parts; `state` is updated in place."""
    now, due, count = np.full(len(state), begin), np.arange(len(state)), 4
    while due.size:  # twice as many draws each time, for clients that have not reached the end
        held = state[due] ^ (np.arange(count) % 2 == 1)[:, None]  # states follow each other
        draws = rng.exponential(np.where(held, *mean[:, due]))
        times = now[due] + np.cumsum(draws + _INSTANT, axis=0)
        row, column = np.nonzero(times < end)
        yield times[row, column], due[column], ~held[row, column]
        state[due] ^= (times < end).sum(axis=0) % 2 == 1
        now[due] = times[-1]
        due, count = due[times[-1] < end], 2 * count


def _replay(
    initially: np.ndarray, rows: tuple[np.ndarray, np.ndarray, np.ndarray], period: np.ndarray
) -> Availability:
    return _seeded(len(initially), lambda _: replay(initially, rows, period))


def _seeded(num_clients: int, blocks: Callable[[int], Iterator[Changes]]) -> Availability:
    def changes(seed: int) -> Iterator[Changes]:
        check_seed(seed)
        return blocks(seed)

    return Availability(num_clients, changes)
