"""Small random traces in each format that `traces` reads.

A function writes a file that the reader of that name reads, the same for the same seed, and
returns what it holds.
"""

import json
from pathlib import Path
from pickle import dumps  # noqa: S403, which only writes

import numpy as np

from ccfl_jax.clock.availability_windows import Windows, check_windows

HOUR, DAY = 3600, 86400


def write_fedscale(path, seed, num_clients):
    trace = draw_windows(seed, num_clients)
    devices = {
        number: {"inactive": stop, "finish_time": period, "active": start, "model": "a"}
        for number, (start, stop, period) in enumerate(by_client(trace), 1)
    }
    Path(path).write_bytes(dumps(devices, 4))
    return trace


def write_capacity(path, seed, num_clients):
    """Milliseconds a sample and kilobits a second, log-normal with medians of 40 and 5000."""
    rng = np.random.default_rng(seed)
    computation, communication = np.exp(rng.normal(size=(2, num_clients))) * [[40.0], [5000.0]]
    pairs = zip(computation.tolist(), communication.tolist(), strict=True)
    devices = {i + 1: {"computation": a, "communication": b} for i, (a, b) in enumerate(pairs)}
    Path(path).write_bytes(dumps(devices, 4))
    return computation, communication


def write_flash(path, seed, num_clients):
    trace = draw_windows(seed, num_clients)
    ends = ("screen_unlock", "battery_charged_off", "4G", "Unknown")
    users = {}
    for client, (start, stop, period) in enumerate(by_client(trace)):
        lines = [(0, "battery_charged_off"), (0, "screen_on")]
        for k, (a, b) in enumerate(zip(start, stop, strict=True)):
            states = ("screen_off", "screen_lock", "wifi", f"{50 + k}.0%", "battery_charged_on")
            lines += [*((a, state) for state in states), (b, ends[(client + k) % len(ends)])]
        lines.append((period - 1, "screen_on"))
        midnight = np.datetime64("2020-01-31T00:00:00")
        text = "".join(f"{midnight + at}\t{state}\n".replace("T", " ", 1) for at, state in lines)
        users[f"user{client}"] = {"model": "a", "messages": text}
    Path(path).write_text(json.dumps(users))
    return trace


def write_csv(path, seed, num_clients):
    trace = draw_windows(seed, num_clients)
    rows = zip(*(column.tolist() for column in columns(trace)), strict=True)
    lines = [Windows._fields, *(map(repr, row) for row in rows)]
    Path(path).write_text("".join(",".join(line) + "\n" for line in lines))
    return trace


def write_npz(path, seed, num_clients):
    trace = draw_windows(seed, num_clients)
    with open(path, "wb") as file:
        np.savez_compressed(file, **Windows(*columns(trace))._asdict())
    return trace


def draw_windows(seed, num_clients):
    """Two to four days a client; with probability 0.7 a half day has a window of whole seconds."""
    rng = np.random.default_rng(seed)
    halves = 2 * rng.integers(2, 4, num_clients, endpoint=True)
    client = np.repeat(np.arange(num_clients), halves)
    half = np.arange(len(client)) - np.repeat(np.cumsum(halves) - halves, halves)
    start = half * (DAY // 2) + rng.integers(0, 6 * HOUR, len(client))
    stop = start + rng.integers(60, 5 * HOUR, len(client))
    some = rng.random(len(client)) < 0.7
    some[0] = True  # nobody at all would be no trace
    return check_windows(Windows(client[some], start[some], stop[some], halves * (DAY // 2)))


def by_client(trace):
    """Each client's starts, stops and period, as whole numbers."""
    for client, period in enumerate(trace.period):
        times = np.array([trace.start, trace.stop])[:, trace.client == client]
        yield *times.astype(int).tolist(), int(period)


def columns(trace):
    """The columns of our own format, with a line for each client without a window."""
    none = np.setdiff1d(np.arange(len(trace.period)), trace.client)
    client, zeros = np.append(trace.client, none), np.zeros(len(none))
    return client, np.append(trace.start, zeros), np.append(trace.stop, zeros), trace.period[client]
