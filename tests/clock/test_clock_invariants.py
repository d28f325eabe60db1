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

CLIENTS = np.arange(15)
MODELS = {
    "always": there.always(15),
    "bernoulli": there.bernoulli(15, np.linspace(0.1, 0.9, 15), 3.0),
    "cyclic": there.cyclic(15, 10.0, 4.0, CLIENTS % 10.0),
    "diurnal": there.diurnal(CLIENTS),
    "markov": there.markov(15, 5.0, 7.0),
    "by_label": there.by_label(CLIENTS % 3, 3, 12.0),
    "windows": there.windows(CLIENTS, CLIENTS % 4.0, CLIENTS % 4.0 + 2.5, [7.0] * 15),
}
SPEEDS = [
    speed.constant(0.0), speed.constant(0.5), speed.uniform(0.1, 2.0), speed.exponential(0.5),
    speed.log_normal(0.0, 1.0, 0.5), speed.half_normal(1.0, 0.1), speed.pareto(1.0, 0.1, 60.0),
    speed.three_classes(),
]  # fmt: skip


starts = st.sampled_from([("replace", None), ("constant", 1.5), ("poisson", 1.5)])
servers = st.builds(
    lambda buffer, most, start, *limits: Server(buffer, most, *start, *limits),
    st.integers(1, 6), st.integers(1, 12), starts, st.none() | st.integers(0, 5),
    st.none() | st.floats(2.0, 100.0), st.sampled_from(["fire", "skip"]),
)  # fmt: skip
seeds, models = st.integers(0, 2**32 - 1), st.sampled_from(sorted(MODELS))
laws, per_tasks = st.sampled_from(SPEEDS), st.sampled_from([None, *SPEEDS])
uploads = st.sampled_from([speed.constant(0.0), speed.constant(0.25)])
works = st.sampled_from([Work(2, 2, correlation, CLIENTS + 1) for correlation in (0.0, -1.0, 0.6)])


@settings(max_examples=100)
@given(seeds, models, laws, per_tasks, uploads, servers, works)
def test_what_holds_for_every_combination(seed, model, law, per_task, upload, server, work):
    """`check_log` looks at each; here the schedule is held to the log by loops."""
    machines = speed.draw_devices(seed, 15, law, upload=upload, task=per_task)
    try:
        with mock.patch.object(event_clock, "_FRUITLESS", 30_000):
            schedule, log = clock_schedule(seed, 12, machines, MODELS[model], server, work)
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
        return clock_schedule(seed, rounds, machines, MODELS[model], Server(3, 6))[0]

    short, long, other = made(0, 10), made(0, 30), made(1, 10)
    assert_trees_equal(short, long.rounds(0, 10))
    assert (short.client != other.client).any() and (short.work != other.work).any()
