"""The event clock: schedules worked out by hand, what holds for all of them, what it refuses."""

import math

import numpy as np
import pytest
from refusal import refused

from ccfl_jax.clock import availability as there
from ccfl_jax.clock import speed
from ccfl_jax.clock.event_clock import Server, clock_schedule
from ccfl_jax.clock.event_log import STALE, TIMED_OUT
from ccfl_jax.clock.task_sampling import Work

ONE = Work(1, 1)  # every task is one unit of work


def devices(*seconds, download=0.0, upload=0.0, **more):
    n = len(seconds)
    return speed.Devices(np.array(seconds, float), np.full(n, download), np.full(n, upload), **more)


def play(rounds, machines, server, availability=None, work=ONE):
    """The schedule and the log of so many rounds, with everybody there unless it is said."""
    machines = machines if isinstance(machines, speed.Devices) else devices(*machines)
    availability = availability or there.always(len(machines.step))
    return clock_schedule(0, rounds, machines, availability, server, work)


def rows(s):
    """The rounds as (time, {(client, staleness), ...}): two of one second have no fixed order."""
    return [
        (time, sorted(zip(s.client[t, s.present[t]], s.staleness[t, s.present[t]], strict=True)))
        for t, time in enumerate(s.time)
    ]


TWO_SPEEDS = devices(1, 4, 4, download=0.25, upload=0.75)


def test_three_clients_of_two_speeds_and_a_buffer_of_two():
    """All three always train, so nothing is left to chance. 0 takes 2 s, 1 and 2 take 5 s.

    | second | arrives (model)  | buffer then | round |
    | ---    | ---              | ---         | ---   |
    | 2      | 0 (x_0)          | 0           |       |
    | 4      | 0 (x_0)          | 0 0         | 0     |
    | 5      | 1, 2 (x_0)       | 1 2         | 1: one version late, both |
    | 6      | 0 (x_1, of 4 s)  | 0           |       |
    | 8      | 0 (x_2, of 6 s)  | 0 0         | 2: one late, none late |
    | 10     | 1, 2 (x_2), 0 (x_3) | 1 2, then 0 | 3: one late, both; 0 started last |
    | 12     | 0 (x_4)          | 0 0         | 4: one late, none late |
    """
    schedule, log = play(5, TWO_SPEEDS, Server(2, 3))
    assert rows(schedule) == [
        (4.0, [(0, 0), (0, 0)]), (5.0, [(1, 1), (2, 1)]), (8.0, [(0, 0), (0, 1)]),
        (10.0, [(1, 1), (2, 1)]), (12.0, [(0, 0), (0, 1)]),
    ]  # fmt: skip
    assert schedule.staleness[2].tolist() == [1, 0]  # slots in the order of arrival
    assert (schedule.num_clients, schedule.work_unit) == (3, "steps")
    assert schedule.work.tolist() == [[1, 1]] * 5
    # At 12 s 0 has brought six uploads, 1 and 2 are on their third task.
    assert np.bincount(log.client).tolist() == [6, 3, 3]
    assert log.counts() == {"used": 10, "stale": 0, "timed out": 0, "under way": 2}


def test_staler_than_allowed_is_dropped():
    """As above with at most 0 versions: what 1 and 2 bring is always one late, 0's every third."""
    schedule, log = play(3, TWO_SPEEDS, Server(2, 3, max_staleness=0))
    # 4: 0 0. 5: 1, 2 dropped. 6, 8: 0 (x_1) twice. 10: 1, 2 (x_1) dropped, 0 (x_2). 12: 0 (x_2).
    assert rows(schedule) == [(t, [(0, 0), (0, 0)]) for t in (4.0, 8.0, 12.0)]
    dropped = log.fate == STALE
    assert sorted(log.client[dropped]) == [1, 1, 2, 2]
    assert (log.round[dropped] == -1).all()


@pytest.mark.parametrize(("seconds", "buffer_size", "rule", "expected", "timed_out"), [
    # A buffer of three; 0 uploads at 2, 4, 6, ... s, 1 at 5, 10, ... s; time-out 3 s.
    # Rounds end at 3 (0), 6 (0, 1, 0: full, as uploads come before the time-out), 9 (0).
    ([2, 5], 3, "fire", [(3, [(0, 0)]), (6, [(0, 0), (0, 1), (1, 1)]), (9, [(0, 0)])], 0),
    # Dropped at 3 (0), full at 6, dropped at 9 (0), full at 12 (0, 1, 0).
    ([2, 5], 3, "skip", [(6, [(0, 0), (0, 0), (1, 0)]), (12, [(0, 0), (0, 0), (1, 1)])], 2),
    # Nothing at 3, 6 and 9 s; then at 15 and 18 s, as the second upload comes at 20 s.
    ([10], 2, "fire", [(12, [(0, 0)]), (21, [(0, 1)])], 0),
])  # fmt: skip
def test_a_time_out(seconds, buffer_size, rule, expected, timed_out):
    server = Server(buffer_size, 2, timeout=3.0, on_timeout=rule)
    schedule, log = play(len(expected), seconds, server)
    assert rows(schedule) == expected
    assert log.counts()["timed out"] == timed_out == (log.fate == TIMED_OUT).sum()


def test_a_task_without_a_duration_arrives_after_the_starts_of_its_second():
    """Two at a time, a buffer of two: both start at 0 s from x_0, both arrive, then two anew from
    x_1, and so on; with four at a time the second pair has started before the first has arrived."""
    both, _ = play(4, [0.0] * 5, Server(2, 2))
    assert both.time.tolist() == [0.0] * 4 and (both.staleness == 0).all()
    four, log = play(4, [0.0] * 5, Server(2, 4))
    assert four.staleness.tolist() == [[0, 0], [1, 1]] * 2
    assert log.version.tolist() == [0] * 4 + [2] * 4


def test_starts_at_a_constant_rate():
    """Two starts a second from 0.5 s on, tasks of 2 s, four at a time: at 0.5, 1, 1.5 and 2 s one
    starts each, at 2.5 s the first is back in time, and so on: none is ever missed. One a second
    and one at a time: of the starts at 1, 2, 3, ... s every second one is missed."""
    schedule, log = play(4, [2.0] * 9, Server(2, 4, "constant", 2.0))
    assert schedule.time.tolist() == [3.0, 4.0, 5.0, 6.0]
    assert log.start.tolist() == [0.5 * k for k in range(1, 12)] and log.missed == 0
    # Versions since: started at 0.5 and 1 (x_0); 1.5 and 2; 2.5 (x_0) and 3 s (x_1); 3.5 and 4 s.
    assert schedule.staleness.tolist() == [[0, 0], [1, 1], [2, 1], [2, 1]]
    _, log = play(4, [2.0] * 9, Server(1, 1, "constant", 1.0))
    assert log.start.tolist() == [1.0, 3.0, 5.0, 7.0] and log.missed == 4


def test_poisson_starts():
    """4,000 gaps are exponential of mean 1 / rate: mean within 5 sigma / sqrt(4000) = 0.04, and
    P(gap > mean) = 1 / e within 5 sigmas of a share."""
    _, log = play(4000, [0.001] * 50, Server(1, 50, "poisson", 2.0))
    gaps = np.diff(log.start)[:4000]
    assert abs(gaps.mean() - 0.5) < 5 * 0.5 / math.sqrt(4000)
    share = math.exp(-1)
    assert abs((gaps > 0.5).mean() - share) < 5 * math.sqrt(share * (1 - share) / 4000)


def test_equal_speed_and_as_many_at_a_time_as_the_buffer_holds_is_synchronous():
    """No staleness, nobody absent; rounds are as long as a task."""
    schedule, _ = play(12, devices(*[0.7] * 7, download=0.1), Server(4, 4))
    assert (schedule.staleness == 0).all() and schedule.present.all()
    assert all(len(set(row)) == 4 for row in schedule.client)
    np.testing.assert_allclose(schedule.time, 0.8 * np.arange(1, 13), rtol=1e-12)
    assert schedule.history_slots() == 1


def test_a_client_starts_only_while_it_is_available():
    """In 24 h, 8 of them for each label."""
    labels = np.arange(12) % 3
    hours = there.by_label(labels, 3, 86_400.0)
    schedule, log = play(200, [600.0] * 12, Server(2, 4), hours)
    np.testing.assert_array_equal(log.start % 86_400 // 28_800, labels[log.client])
    assert len(set(log.client)) == 12 and schedule.time[-1] > 86_400 / 2


def test_a_client_that_leaves_ends_its_task_and_its_upload_counts():
    """Available in the first second of every ten, tasks of five seconds: new ones at 10, 20 s."""
    schedule, log = play(3, [5.0], Server(1, 1), there.cyclic(1, 10.0, 1.0))
    assert schedule.time.tolist() == [5.0, 15.0, 25.0] and log.start.tolist() == [0.0, 10.0, 20.0]
    assert log.counts()["used"] == 3


def test_slow_clients_may_do_more_or_less():
    """The slowest tenth does 10 of 10 or 1 of 10, uncorrelated as much as others (mean 5.5)."""
    machines = speed.draw_devices(0, 40, speed.uniform(0.1, 1.0))
    slowest, found = np.argsort(machines.step)[-4:], []
    for correlation in (-1.0, 0.0, 1.0):
        server = Server(5, 40, "constant", 1.0)
        _, log = play(2000, machines, server, work=Work(5, 2, correlation))
        found.append(np.mean([log.work[log.client == i].mean() for i in slowest]))
        assert log.work.min() == 1 and log.work.max() == 10
    assert found == [1, pytest.approx(5.5, abs=5 * math.sqrt(99 / 12 / (4 * 250))), 10]


RATE = "rate: expected None with replace, a number with constant and poisson, found "


@pytest.mark.parametrize(("change", "message"), [
    ({"seed": -1}, "seed: expected an integer from 0 to 4294967295, found -1"),
    ({"num_rounds": -1}, "num_rounds: expected an integer >= 0, found -1"),
    ({"server": Server(0)}, "buffer_size: expected an integer >= 1, found 0"),
    ({"server": Server(1, 0)}, "concurrency: expected an integer >= 1, found 0"),
    ({"server": Server(start="x")}, "start: expected replace, constant, poisson, found 'x'"),
    ({"server": Server(start="poisson")}, RATE + "None with poisson"),
    ({"server": Server(rate=1.0)}, RATE + "1.0 with replace"),
    ({"server": Server(1, 1, "constant", 0.0)}, "rate: expected ... number > 0, found 0.0"),
    ({"server": Server(timeout=math.inf)}, "timeout: expected a finite number > 0, found inf"),
    ({"server": Server(max_staleness=-1)}, "max_staleness: expected an integer >= 0, found -1"),
    ({"server": Server(on_timeout="x")}, "on_timeout: expected fire, skip, found 'x'"),
    ({"work": Work(0)}, "local_work: expected an integer >= 1, found 0"),
    ({"work": Work(1, 0.5)}, "local_work * randomness: expected ..., found 1 * 0.5 = 0.5"),
    ({"work": Work(correlation=2.0)}, "correlation: expected ... >= -1 and <= 1, found 2.0"),
    ({"work": Work(epoch_steps=np.ones(3))}, "epoch_steps: expected ..., found float64 (3,)"),
    ({"availability": there.always(3)}, "devices: expected 3 clients, ..., found 2"),
    ({"devices": devices(1.0, math.nan)}, "step: expected finite numbers >= 0, found nan"),
    # No buffer is ever full in time.
    ({"server": Server(3, 2, timeout=0.5, on_timeout="skip")},
     "clock: expected a next round with this availability and these limits, found none from "
     "second 0 to 999, with 2 clients training and 0 uploads in the buffer"),
])  # fmt: skip
def test_refusals(change, message, monkeypatch):
    monkeypatch.setattr("ccfl_jax.clock.event_clock._FRUITLESS", 1000)
    usual = {"seed": 0, "num_rounds": 2, "devices": devices(1, 2), "availability": there.always(2)}
    refused(message, clock_schedule, **{**usual, "server": Server(2, 2), "work": ONE, **change})


def test_no_rounds_are_no_tasks():
    schedule, log = clock_schedule(0, 0, devices(1.0), there.always(1))
    assert schedule.client.shape == (0, 5) and len(log.client) == 0
