"""Traces of real devices: FedScale's and FLASH's files, and a format of our own as CSV or npz.

A reader returns `Windows`, for `availability.windows(*trace)`, or `speed.Devices`. A file is not
trusted: its size is bounded, nothing in it runs, and the fields that are used are checked; others
are ignored.

All readers raise OSError for a file that cannot be read, and ValueError, one line that names the
file, for one that is not as described.
"""

import os
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from ccfl_jax.checks import check_number, check_whole, naming
from ccfl_jax.clock.availability_windows import Windows, check_windows
from ccfl_jax.clock.speed import Devices
from ccfl_jax.io.files import as_json
from ccfl_jax.io.npz import read_npz
from ccfl_jax.io.plain_pickle import read_plain

# FedScale's files have 25.6 and 39.4 MB; a FLASH file in memory is a few times what it is on disk.
_LARGEST_PICKLE, _LARGEST_TEXT = 1 << 26, 1 << 28
_MOST_WINDOWS = _LARGEST_PICKLE // 4  # two numbers of two bytes each
_DAY = 86400

# FLASH's states, in small letters: which of the three conditions, and whether it holds.
_LOCKED, _WIFI, _CHARGING = range(3)
_STATES = {
    "screen_lock": (_LOCKED, True),
    "screen_unlock": (_LOCKED, False),
    "wifi": (_WIFI, True),
    **dict.fromkeys(("2g", "3g", "4g", "5g", "unknown"), (_WIFI, False)),
    "battery_charged_on": (_CHARGING, True),
    "battery_charged_off": (_CHARGING, False),
}
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.ASCII)


def read_fedscale_availability(path: str | os.PathLike) -> Windows:
    """FedScale's device availability: when each device was on its charger.

    A pickled dict of devices, id -> {"active": [...], "inactive": [...], "finish_time", ...}, in
    seconds: available in [active[k], inactive[k]), replayed modulo finish_time. Client c is the
    file's c-th device. From FedScale's `client_metadata.py`; the published file has 107,749
    devices, made from FLASH's traces. Departures: a window is half-open, where FedScale includes
    inactive[k]; so a window with active[k] = inactive[k] is empty.

    Examples:
        >>> import pathlib, pickle
        >>> device = {"active": [0, 7200], "inactive": [3600, 9000], "finish_time": 86400}
        >>> _ = pathlib.Path("client_behave_trace").write_bytes(pickle.dumps({1: device}))
        >>> trace = ccfl.traces.read_fedscale_availability("client_behave_trace")
        >>> trace.start.tolist(), trace.stop.tolist()
        ([0.0, 7200.0], [3600.0, 9000.0])
    """
    with naming(path):
        client, start, stop, period = [], [], [], []
        for name, device in _devices(path):
            active, inactive = (
                _numbers(name, key, device.get(key)) for key in ("active", "inactive")
            )
            if len(active) != len(inactive):
                raise ValueError(
                    f"device {name!r:.40}: expected as many active as inactive times, found "
                    f"{len(active)} and {len(inactive)}"
                )
            # Many devices may share one list of the file, so its size is no bound.
            if len(start) + len(active) > _MOST_WINDOWS:
                raise ValueError(
                    f"device {name!r:.40}: expected at most {_MOST_WINDOWS} windows in all, found "
                    f"{len(start) + len(active)}"
                )
            client.append(len(active))
            start += active
            stop += inactive
            period += _numbers(name, "finish_time", [device.get("finish_time")])
        client = np.repeat(np.arange(len(client)), client)
        return _without_empty(client, *(np.array(a, np.float64) for a in (start, stop, period)))


def read_fedscale_capacity(path: str | os.PathLike, batch_size: int, model_bytes: float) -> Devices:
    """FedScale's device capacity: the speed of each device's computation and network.

    A pickled dict of devices, id -> {"computation": milliseconds for the inference of one sample,
    "communication": kilobits a second}. Client c is the file's c-th device; it takes

        3 * batch_size * computation / 1000      seconds a local step, and
        8 * model_bytes / 1000 / communication   seconds to download the model, and to upload it.

    The factor 3 counts the backward pass as two forward ones.
    From FedScale's `get_completion_time` (the published file has 500,000 devices). Departure: a
    kilobit is 1000 bits, where FedScale's model size is in 1024 of them.

    Args:
        path: the file.
        batch_size: rows of a batch, >= 1.
        model_bytes: size of the model as it is sent, >= 0.

    Raises:
        ValueError: also for another batch size or model size.

    Examples:
        >>> import pathlib, pickle
        >>> devices = {1: {"computation": 40.0, "communication": 8000.0}}
        >>> _ = pathlib.Path("client_device_capacity").write_bytes(pickle.dumps(devices))
        >>> phones = ccfl.traces.read_fedscale_capacity(
        ...     "client_device_capacity", batch_size=20, model_bytes=10**6
        ... )
        >>> phones.step.tolist(), phones.upload.tolist()  # 3 * 20 * 0.04 s, and 8 Mbit at 8 Mbit/s
        ([2.4], [1.0])
    """
    check_whole("batch_size", batch_size, 1)
    check_number("model_bytes", model_bytes)
    with naming(path):
        keys = ("computation", "communication")
        rows = [
            _numbers(name, " and ".join(keys), [device.get(key) for key in keys])
            for name, device in _devices(path)
        ]
        computation, communication = np.array(rows, np.float64).reshape(-1, 2).T
        for key, array in zip(keys, (computation, communication), strict=True):
            wrong = np.flatnonzero(~((array > 0) & np.isfinite(array)))
            if wrong.size:
                raise ValueError(
                    f"{key} of client {wrong[0]}: expected > 0, finite, found {array[wrong[0]]}"
                )
        with np.errstate(over="ignore"):  # the check refuses what is no number
            step = 3.0 * batch_size * computation / 1000.0
            seconds = 8.0 * model_bytes / 1000.0 / communication
        devices = Devices(step, seconds, seconds.copy())
        devices.check()
    return devices


def read_flash(path: str | os.PathLike) -> Windows:
    r"""FLASH's state traces: a phone is available while it is locked, on wifi and charging.

    A JSON object, user id -> {"messages": text, ...}. A line of the text is "YYYY-MM-DD HH:MM:SS",
    a tab, and a state in upper or lower case. screen_lock and screen_unlock say whether the phone
    is locked; wifi, or 2g, 3g, 4g, 5g and unknown, whether it is on wifi; battery_charged_on and
    _off whether it charges. At first none of these holds. Other states (screen_on, screen_off,
    "57.0%", ...) are ignored. Messages are sorted by time, those of one second in the file's order.
    Client c is the file's c-th user. The file has no time zones.

    From FLASH's `timer.py`. Departures: a client's time 0 is the midnight before its first message,
    and its period whole days, up to the midnight after its last one, so that hours of the day stay
    the same (there all users share one calendar, and a trace repeats right after its last message);
    a phone that is available at its last message stays so until then (there that window is
    dropped); 5g is no wifi (there it is no state).

    Examples:
        >>> import json, pathlib
        >>> times = "22:00:00", "22:30:00", "23:00:00", "23:30:00"
        >>> states = "screen_lock", "wifi", "battery_charged_on", "screen_unlock"
        >>> lines = [f"2020-01-01 {time}{chr(9)}{state}" for time, state in zip(times, states)]
        >>> messages = {"user": {"messages": chr(10).join(lines)}}
        >>> _ = pathlib.Path("flash.json").write_text(json.dumps(messages))
        >>> trace = ccfl.traces.read_flash("flash.json")
        >>> print(trace.start / 3600, trace.stop / 3600, trace.period / 3600)
        [23.] [23.5] [24.]
    """
    with naming(path):
        users = as_json(_read(path, _LARGEST_TEXT), "text")
        if not isinstance(users, dict) or not users:
            raise ValueError(
                f"users: expected an object, user id -> messages, found {_kind(users)}"
            )
        parts = [_ready(name, user) for name, user in users.items()]
        counts = [len(found) for found, _ in parts]
        found = np.array(list(chain.from_iterable(found for found, _ in parts)), np.float64)
        start, stop = found.reshape(-1, 2).T
        period = np.array([period for _, period in parts], np.float64)
        return _without_empty(np.repeat(np.arange(len(parts)), counts), start, stop, period)


def read_windows_csv(path: str | os.PathLike) -> Windows:
    """Our own format as text: the header client,start,stop,period, then a line for each window.

    Client c is available in [start, stop), replayed modulo period, all in seconds. The period is
    the same in all lines of a client. Clients are 0..n-1 and each has a line; one with start = stop
    is no window, for clients without any.

    Examples:
        >>> import pathlib
        >>> lines = "client,start,stop,period", "0,0,600,3600", "1,600,1200,3600"
        >>> _ = pathlib.Path("trace.csv").write_text("".join(line + chr(10) for line in lines))
        >>> trace = ccfl.traces.read_windows_csv("trace.csv")
        >>> next(
        ...     ccfl.availability.masks(
        ...         ccfl.availability.windows(*trace), seed=0, rounds=1, seconds=60.0
        ...     )
        ... )
        array([ True, False])
    """
    with naming(path):
        header, *lines = _read(path, _LARGEST_TEXT).decode().splitlines() or [""]
        if header != ",".join(Windows._fields) or not lines:
            raise ValueError(
                f"lines: expected {','.join(Windows._fields)!r} and at least one below it, found "
                f"{header!r:.80} and {len(lines)} below it"
            )
        table = np.loadtxt(lines, delimiter=",", comments=None, ndmin=2)
        if table.shape[-1] != len(Windows._fields):
            raise ValueError(
                f"lines: expected {len(Windows._fields)} columns, found {table.shape[-1]}"
            )
        return _from_rows(*table.T)


def read_windows_npz(path: str | os.PathLike) -> Windows:
    """Our own format as npz: arrays client, start, stop and period [lines], as in the CSV.

    Examples:
        >>> np.savez(
        ...     "trace.npz",
        ...     client=[0, 1],
        ...     start=[0.0, 600.0],
        ...     stop=[600.0, 1200.0],
        ...     period=[3600.0, 3600.0],
        ... )
        >>> trace = ccfl.traces.read_windows_npz("trace.npz")
        >>> trace.client.tolist(), trace.stop.tolist()
        ([0, 1], [600.0, 1200.0])
    """
    with naming(path):
        arrays = read_npz(path, Windows._fields)
        shapes = {array.shape for array in arrays.values()}
        if len(shapes) > 1 or any(array.ndim != 1 or not array.size for array in arrays.values()):
            raise ValueError(f"arrays: expected one shape [lines], found {sorted(shapes)}")
        return _from_rows(*(arrays[name] for name in Windows._fields))


def _read(path: str | os.PathLike, most: int) -> bytes:
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"size: expected at most {most} bytes, found more")
    return data


def _kind(value: Any) -> str:
    return f"an empty {type(value).__name__}" if value in ({}, []) else type(value).__name__


def _devices(path: str | os.PathLike) -> Iterator[tuple[Any, dict]]:
    """The devices of a pickled dict, id -> dict."""
    devices = read_plain(_read(path, _LARGEST_PICKLE))
    if type(devices) is not dict or not devices:
        raise ValueError(f"pickle: expected a dict, id -> device, found {_kind(devices)}")
    for name, device in devices.items():
        if type(device) is not dict:
            raise ValueError(f"device {name!r:.40}: expected a dict, found {_kind(device)}")
        yield name, device


def _numbers(name: Any, key: str, values: Any) -> list:
    if type(values) is not list or not {*map(type, values)} <= {int, float}:
        raise ValueError(f"device {name!r:.40}: expected {key} as a list of numbers, found others")
    return values


def _ready(name: str, user: Any) -> tuple[list[tuple[int, int]], int]:
    """When a FLASH user is available, from the midnight before the first message; the period."""
    text = user.get("messages") if isinstance(user, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ValueError(
            f"user {name!r:.40}: expected messages as a text of some lines, found none"
        )
    stamps, states = [], []
    for line in filter(str.strip, text.split("\n")):
        stamp, _, state = map(str.strip, line.partition("\t"))
        if not _STAMP.fullmatch(stamp) or not state:
            raise ValueError(
                f"user {name!r:.40}: expected YYYY-MM-DD HH:MM:SS, a tab, a state, found "
                f"{line!r:.60}"
            )
        stamps.append(stamp)
        states.append(state.lower())
    times = np.array(stamps, "datetime64[s]").astype(np.int64)
    times -= times.min() // _DAY * _DAY
    holds, since, found = [False] * 3, None, []
    order = np.argsort(times, kind="stable")
    for at, state in zip(times[order].tolist(), (states[k] for k in order), strict=True):
        if state in _STATES:
            condition, value = _STATES[state]
            holds[condition] = value
        if all(holds) and since is None:
            since = at
        elif since is not None and not all(holds):
            found.append((since, at))
            since = None
    last = int(times.max())
    found += [] if since is None else [(since, last)]
    return found, (last // _DAY + 1) * _DAY


def _from_rows(
    client: np.ndarray, start: np.ndarray, stop: np.ndarray, period: np.ndarray
) -> Windows:
    whole = (client >= 0) & (client < len(client)) & (client == np.floor(client))
    if not whole.all():
        raise ValueError(
            f"client: expected integers from 0 to {len(client) - 1}, found {client[~whole][0]}"
        )
    client = client.astype(np.int64)
    missing = np.flatnonzero(np.bincount(client) == 0)
    if missing.size:
        raise ValueError(
            f"client: expected lines of each up to {client.max()}, found none of {missing[0]}"
        )
    periods = np.zeros(client.max() + 1)
    periods[client] = period
    wrong = np.flatnonzero(periods[client] != period)
    if wrong.size:
        k = wrong[0]
        raise ValueError(
            f"period of client {client[k]}: expected one number, found {period[k]} and "
            f"{periods[client[k]]}"
        )
    return _without_empty(client, start, stop, periods)


def _without_empty(
    client: np.ndarray, start: np.ndarray, stop: np.ndarray, period: np.ndarray
) -> Windows:
    """The checked trace without empty windows, which must be within the period too."""
    wrong = np.flatnonzero((start == stop) & ~((start >= 0) & (start <= period[client])))
    if wrong.size:
        k = wrong[0]
        raise ValueError(
            f"window of client {client[k]}: expected within 0 to the period, {period[client[k]]}, "
            f"found {start[k]}"
        )
    some = start != stop
    return check_windows(Windows(client[some], start[some], stop[some], period))
