"""The event clock: what holds for every combination of devices, availability and server."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import assert_trees_equal

from ccfl_jax.clock import availability as there
from ccfl_jax.clock import event_clock, speed
from ccfl_jax.clock.event_clock import Server, clock_schedule
from ccfl_jax.clock.event_log import TIMED_OUT, UNDERWAY, USED
from ccfl_jax.clock.task_sampling import Work

MODELS = {
    "always": lambda n: there.always(n),
    "bernoulli": lambda n: there.bernoulli(n, np.linspace(0.1, 0.9, n), 3.0),
    "cyclic": lambda n: there.cyclic(n, 10.0, 4.0, np.arange(n) % 10.0),
    "diurnal": lambda n: there.diurnal(np.arange(n) % 24),
    "markov": lambda n: there.markov(n, 5.0, 7.0),
    "by_label": lambda n: there.by_label(np.arange(n) % 3, 3, 12.0),
    "windows": lambda n: there.windows(
        np.arange(n), np.arange(n) % 4.0, np.arange(n) % 4.0 + 2.5, np.full(n, 7.0)
    ),
}
SPEEDS = {
    "none": speed.constant(0.0),
    "constant": speed.constant(0.5),
    "uniform": speed.uniform(0.1, 2.0),
    "exponential": speed.exponential(0.5),
    "log_normal": speed.log_normal(0.0, 1.0, 0.5),
    "half_normal": speed.half_normal(1.0, 0.1),
    "pareto": speed.pareto(1.0, 0.1, 60.0),
    "three_classes": speed.three_classes(),
}


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    model=st.sampled_from(sorted(MODELS)),
    law=st.sampled_from(sorted(SPEEDS)),
    per_task=st.sampled_from([None, *sorted(SPEEDS)]),
    server=st.builds(
        Server,
        buffer_size=st.integers(1, 6),
        concurrency=st.integers(1, 12),
        max_staleness=st.none() | st.integers(0, 5),
        timeout=st.none() | st.floats(2.0, 100.0),
        on_timeout=st.sampled_from(["fire", "skip"]),
    ),
    start=st.sampled_from(["replace", "constant", "poisson"]),
    upload=st.sampled_from([0.0, 0.25]),
    correlation=st.sampled_from([0.0, -1.0, 0.6]),
)
def test_what_holds_for_every_combination(
    seed, model, law, per_task, server, start, upload, correlation
):
    """`check_log` looks at each; here the schedule is held to the log by loops."""
    server = server._replace(start=start, rate=None if start == "replace" else 1.5)
    machines = speed.draw_devices(
        seed, 15, SPEEDS[law], upload=speed.constant(upload), task=per_task and SPEEDS[per_task]
    )
    work = Work(2, 2, correlation, np.arange(1, 16))
    try:
        with mock.patch.object(event_clock, "_FRUITLESS", 30_000):
            schedule, log = clock_schedule(seed, 12, machines, MODELS[model](15), server, work)
    except ValueError as error:  # a buffer may never be full in time
        assert "found none from second" in str(error)
        assert server.on_timeout == "skip" and server.timeout
        return
    schedule.check()
    assert schedule.client.shape == (12, server.buffer_size)
    assert (schedule.staleness <= np.arange(12)[:, None]).all()
    assert server.max_staleness is None or schedule.staleness.max() <= server.max_staleness
    tasks = list(zip(*log[:-1], strict=True))
    for t in range(12):
        own = [task for task in tasks if task[6] == t]
        p = schedule.present[t]
        assert len(own) == p.sum() >= 1
        columns = schedule.client[t], schedule.staleness[t], schedule.work[t]
        found = sorted(zip(*(a[p].tolist() for a in columns), strict=True))
        assert found == sorted((c, t - v, w) for c, _, _, v, w, _, _ in own)
        last = max(stop for _, _, stop, *_ in own)
        full = len(own) == server.buffer_size
        assert schedule.time[t] == last if full else schedule.time[t] >= last
    for second in log.start:
        assert ((log.start <= second) & (second < log.stop)).sum() <= server.concurrency
    assert sum(log.counts().values()) == len(tasks) and (log.round[log.fate == USED] >= 0).all()
    assert (log.fate == UNDERWAY).sum() <= server.concurrency + server.buffer_size
    assert server.on_timeout == "skip" or not (log.fate == TIMED_OUT).any()


@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_longer_schedule_begins_with_the_shorter_and_seeds_matter(model):
    def made(seed, rounds):
        machines = speed.draw_devices(1, 15, speed.log_normal())
        return clock_schedule(seed, rounds, machines, MODELS[model](15), Server(3, 6))[0]

    short, long, other = made(0, 10), made(0, 30), made(1, 10)
    assert_trees_equal(short, long.rounds(0, 10))
    assert (short.client != other.client).any() and (short.work != other.work).any()
