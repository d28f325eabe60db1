"""The readers of traces, and of what the clock writes, fed as `fuzzing` says."""

import numpy as np
import pytest
import trace_samples as samples
from fuzzing import SHARES, Reader, check_reader, written

from ccfl_jax import Schedule, clock_schedule
from ccfl_jax.clock import speed, traces
from ccfl_jax.clock.availability import always
from ccfl_jax.clock.availability_windows import check_windows
from ccfl_jax.clock.event_clock import Server
from ccfl_jax.clock.event_log import EventLog
from experiments.schedules.describe import describe


def read_capacity(folder):
    devices = traces.read_fedscale_capacity(folder / "capacity", 20, 1e5)
    devices.check()
    assert (devices.step > 0).all() and (devices.upload == devices.download).all()


def write_clock(folder):
    """Ten rounds, some of them of uploads that others were dropped for."""
    devices = speed.draw_devices(0, 6, speed.log_normal())
    server = Server(2, 4, max_staleness=1)
    schedule, log = clock_schedule(0, 10, devices, always(6), server)
    schedule.save(folder / "a.npz")
    log.save(folder / "a.log.npz")


def read_clock(folder):
    schedule = Schedule.load(folder / "a.npz")
    log = EventLog.load(folder / "a.log.npz")
    log.makes(schedule)
    assert sum(log.counts().values()) == len(log.client)
    clients = schedule.num_clients or int(schedule.client.max(initial=0)) + 1
    if clients < 1000:
        assert describe(schedule, clients, log)


def windows(write, read):
    """What reads a trace that `write` wrote."""

    def judge(folder):
        trace = read(folder / "trace")
        for one, other in zip(trace, check_windows(trace), strict=True):
            np.testing.assert_array_equal(one, other)

    return Reader(written(lambda folder: write(folder / "trace", 0, 4)), judge)


CAPACITY = written(lambda folder: samples.write_capacity(folder / "capacity", 0, 4))
READERS = {
    "fedscale": windows(samples.write_fedscale, traces.read_fedscale_availability),
    "flash": windows(samples.write_flash, traces.read_flash),
    "csv": windows(samples.write_csv, traces.read_windows_csv),
    "npz": windows(samples.write_npz, traces.read_windows_npz),
    "capacity": Reader(CAPACITY, read_capacity),
    "the clock's files": Reader(written(write_clock), read_clock),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("share", SHARES)
def test_a_damaged_file_is_read_or_refused(tmp_path, name, share):
    check_reader(READERS[name], tmp_path, share)
