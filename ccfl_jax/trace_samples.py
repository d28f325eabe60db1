"""Small random traces in each format that `traces` reads, for tests and demonstrations.

Each function writes a file, the same for the same seed, and returns what it holds.
"""

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pickle import dumps  # noqa: S403, which only writes

import numpy as np

from ccfl_jax.checks import check_seed, check_whole
from ccfl_jax.folder import replace_file, write_whole
from ccfl_jax.windows import Windows, check_windows

# One generator for each kind of file.
_CSV_STREAM, _NPZ_STREAM, _FLASH_STREAM, _FEDSCALE_STREAM, _SPEED_STREAM = range(
    0x54524330, 0x54524335
)
_HOUR, _DAY = 3600, 86400


def write_random_fedscale_availability(
    path: str | os.PathLike, seed: int, num_clients: int
) -> Windows:
    """A random file for `traces.read_fedscale_availability`; returns what that reads from it."""
    trace = _draw_windows(seed, _FEDSCALE_STREAM, num_clients)
    devices = {}
    for client, (start, stop) in enumerate(_by_client(trace)):
        devices[client + 1] = {
            "duration": sum(stop) - sum(start),
            "inactive": stop,
            "finish_time": int(trace.period[client]),
            "active": start,
            "model": f"model {client % 5}",
        }
    write_whole(path, lambda file: file.write(dumps(devices, 4)))
    return trace


def write_random_fedscale_capacity(
    path: str | os.PathLike, seed: int, num_clients: int
) -> tuple[np.ndarray, np.ndarray]:
    """A random file for `traces.read_fedscale_capacity`; returns its milliseconds and kilobits/s.

    Both are log-normal, with medians of 40 ms a sample and 5000 kbit/s: nobody's measurement.
    """
    check_seed(seed)
    check_whole("num_clients", num_clients, 1)
    rng = np.random.default_rng([seed, _SPEED_STREAM])
    computation, communication = np.exp(rng.normal(size=(2, num_clients))) * [[40.0], [5000.0]]
    pairs = zip(computation.tolist(), communication.tolist(), strict=True)
    devices = {i + 1: {"computation": a, "communication": b} for i, (a, b) in enumerate(pairs)}
    write_whole(path, lambda file: file.write(dumps(devices, 4)))
    return computation, communication


def write_random_flash(path: str | os.PathLike, seed: int, num_clients: int) -> Windows:
    """A random file for `traces.read_flash`; returns what that reads from it."""
    trace = _draw_windows(seed, _FLASH_STREAM, num_clients)
    ends = ("screen_unlock", "battery_charged_off", "4G", "Unknown")
    users = {}
    for client, (start, stop) in enumerate(_by_client(trace)):
        lines = [(0, "battery_charged_off"), (0, "screen_on")]
        for k, (a, b) in enumerate(zip(start, stop, strict=True)):
            states = ("screen_off", "screen_lock", "wifi", f"{50 + k}.0%", "battery_charged_on")
            lines += [*((a, state) for state in states), (b, ends[(client + k) % len(ends)])]
        lines.append((int(trace.period[client]) - 1, "screen_on"))
        text = "".join(f"{_stamp(at)}\t{state}\n" for at, state in lines)
        users[f"user{client}"] = {"model": f"model {client % 5}", "messages": text}
    replace_file(path, json.dumps(users))
    return trace


def write_random_csv(path: str | os.PathLike, seed: int, num_clients: int) -> Windows:
    """A random file for `traces.read_windows_csv`; returns what that reads from it."""
    trace = _draw_windows(seed, _CSV_STREAM, num_clients)
    rows = zip(*(column.tolist() for column in _rows(trace)), strict=True)
    replace_file(
        path, "\n".join([",".join(Windows._fields), *(",".join(map(repr, r)) for r in rows), ""])
    )
    return trace


def write_random_npz(path: str | os.PathLike, seed: int, num_clients: int) -> Windows:
    """A random file for `traces.read_windows_npz`; returns what that reads from it."""
    trace = _draw_windows(seed, _NPZ_STREAM, num_clients)
    columns = dict(zip(Windows._fields, _rows(trace), strict=True))
    write_whole(path, lambda file: np.savez_compressed(file, **columns))
    return trace


def _draw_windows(seed: int, stream: int, num_clients: int) -> Windows:
    """Two to four days a client; with probability 0.7 a half day has a window of whole seconds."""
    check_seed(seed)
    check_whole("num_clients", num_clients, 1)
    rng = np.random.default_rng([seed, stream])
    halves = 2 * rng.integers(2, 4, num_clients, endpoint=True)
    client = np.repeat(np.arange(num_clients), halves)
    half = np.arange(len(client)) - np.repeat(np.cumsum(halves) - halves, halves)
    start = half * (_DAY // 2) + rng.integers(0, 6 * _HOUR, len(client))
    stop = start + rng.integers(60, 5 * _HOUR, len(client))
    some = rng.random(len(client)) < 0.7
    some[0] = True  # nobody at all would be no trace
    period = halves * (_DAY // 2)
    return check_windows(Windows(client[some], start[some], stop[some], period))


def _by_client(trace: Windows) -> Iterator[tuple[list[int], list[int]]]:
    """Each client's starts and stops, as whole numbers."""
    edges = np.searchsorted(trace.client, np.arange(len(trace.period) + 1))
    for a, b in pairwise(edges):
        yield trace.start[a:b].astype(int).tolist(), trace.stop[a:b].astype(int).tolist()


def _rows(trace: Windows) -> list[np.ndarray]:
    """The columns of our own format, with a line for each client without a window."""
    none = np.setdiff1d(np.arange(len(trace.period)), trace.client)
    client = np.append(trace.client, none)
    zeros = np.zeros(len(none))
    return [
        client,
        np.append(trace.start, zeros),
        np.append(trace.stop, zeros),
        trace.period[client],
    ]


def _stamp(seconds: int) -> str:
    return str(np.datetime64("2020-01-31T00:00:00") + seconds).replace("T", " ")
