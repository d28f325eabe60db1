"""Traces: each format's writer and reader, hand-made files, and files that say something else."""

import io
import json
from pickle import dumps  # noqa: S403, which only writes

import numpy as np
import pytest
import trace_samples as samples
from refusal import refused

from ccfl_jax.clock import traces
from ccfl_jax.clock.availability import windows
from ccfl_jax.clock.availability_windows import Windows

DEVICE = {"duration": 5, "inactive": [4, 9], "finish_time": 10, "active": [1, 7], "model": "a"}
READERS = {
    "csv": traces.read_windows_csv,
    "npz": traces.read_windows_npz,
    "flash": traces.read_flash,
    "fedscale": traces.read_fedscale_availability,
    "capacity": lambda path: traces.read_fedscale_capacity(path, 20, 1e6),
}


def written(name, *arguments):
    return getattr(samples, f"write_{name}")(*arguments)


def refused_file(message, read, path, data=None):
    """A file with such bytes is refused by name."""
    if data is not None:
        path.write_bytes(data)
    assert len(refused(f"{path}: {message}", read, path)) < 1000


def equal(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["csv", "npz", "flash", "fedscale"])
def test_what_is_written_is_read(tmp_path, name):
    trace, found = written(name, tmp_path / "a", 3, 40), READERS[name](tmp_path / "a")
    assert equal(found, trace) and len(found.period) == 40 and len({*found.client}) > 30
    assert {*found.period} == {2 * 86400.0, 3 * 86400.0, 4 * 86400.0}
    assert next(iter(windows(*found).changes(0))).time.size > 100


def test_capacities_are_read_as_seconds(tmp_path):
    """3 * 20 rows * ms / 1000 a step; 8 * 10^6 bits / 1000 / (kbit/s) either way."""
    computation, communication = written("capacity", tmp_path / "a", 3, 40)
    devices = READERS["capacity"](tmp_path / "a")
    np.testing.assert_allclose(devices.step, 0.06 * computation, rtol=1e-12)
    np.testing.assert_allclose(devices.download, 8000.0 / communication, rtol=1e-12)
    np.testing.assert_array_equal(devices.upload, devices.download)
    assert devices.task is None and devices.extra is None
    read = traces.read_fedscale_capacity
    refused("batch_size: expected an integer >= 1, found 0", read, tmp_path / "a", 0, 1.0)
    refused("model_bytes: expected a finite number >= 0, found -1", read, tmp_path / "a", 1, -1)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_fedscale_file_by_hand(tmp_path, protocol):
    other = {"active": [0, 0.5, 2], "inactive": [0, 1, 3], "finish_time": 3.0, "model": None}
    devices = {"x": DEVICE, 7: other, 8: {"active": [], "inactive": [], "finish_time": 2}}
    (tmp_path / "a").write_bytes(dumps(devices, protocol))
    expected = ([0, 0, 1, 1], [1, 7, 0.5, 2], [4, 9, 1, 3], [10, 3, 2])
    assert equal(READERS["fedscale"](tmp_path / "a"), expected)  # the window [0, 0) is none


def test_a_flash_file_by_hand(tmp_path):
    """Ready from the last of the three on, until the first that ends; the period is whole days."""
    first = """2020-02-01 23:00:00\tSCREEN_LOCK\n2020-02-01 23:10:00\tWifi
        2020-02-01 23:20:00\tbattery_charged_on\n2020-02-01 23:30:00\tscreen_on
        2020-02-01 23:30:00\t80.0%\n\n2020-02-02 01:00:00\t4G\n2020-02-02 00:30:00\tnews
        2020-02-02 02:00:00\twifi\n2020-02-02 02:00:00\tscreen_unlock
        2020-02-02 03:00:00\tscreen_lock\n2020-02-02 05:00:00\t79.0%\n"""
    second = "2020-02-05 12:00:00\twifi"
    users = {"u": {"model": "a", "messages": first}, "v": {"messages": second, "guid": 3}}
    (tmp_path / "a").write_text(json.dumps(users))
    hours = np.array([[23 + 1 / 3, 27], [25, 29], [48, 24]])  # until the last message
    assert equal(traces.read_flash(tmp_path / "a"), ([0, 0], *(hours * 3600)))


ENDS = ["screen_unlock", "2G", "3g", "4g", "5G", "UNKNOWN", "battery_charged_off"]


@pytest.mark.parametrize("state", ENDS)
def test_every_state_that_ends_readiness(tmp_path, state):
    at = "2020-02-01 0{}:00:00\t{}\n"
    begin = "".join(at.format(1, s) for s in ("wifi", "screen_lock", "battery_charged_on"))
    text = begin + at.format(2, state) + at.format(3, "screen_off")
    (tmp_path / "a").write_text(json.dumps({"u": {"messages": text}}))
    assert equal(traces.read_flash(tmp_path / "a"), ([0], [3600], [7200], [86400]))


def test_our_own_file_by_hand(tmp_path):
    rows = np.array([[2, 1, 3.5, 4], [0, 0, 5, 10], [1, 0, 0, 7], [0, 6, 7, 10]])
    text = "client,start,stop,period\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows)
    (tmp_path / "csv").write_text(text)
    (tmp_path / "npz").write_bytes(npz(**dict(zip(Windows._fields, rows.T, strict=True))))
    for name in ("csv", "npz"):
        trace = READERS[name](tmp_path / name)
        assert equal(trace, ([0, 0, 2], [0, 6, 1], [5, 7, 3.5], [10, 7, 4]))


def test_a_list_that_many_devices_share_is_counted_for_each(tmp_path, monkeypatch):
    assert traces._MOST_WINDOWS == 2**24 and traces._LARGEST_PICKLE == 2**26
    device = {"active": [0, 2], "inactive": [1, 3], "finish_time": 1000}
    path, read = tmp_path / "a", READERS["fedscale"]
    path.write_bytes(dumps({k: device for k in range(1000)}))
    assert read(path).start.size == 2000
    monkeypatch.setattr(traces, "_MOST_WINDOWS", 1600)
    refused_file("device 800: expected at most 1600 windows in all, found 1602", read, path)


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_too_large_is_not_read(tmp_path, name):
    path = tmp_path / "a"
    with open(path, "wb") as file:
        file.truncate(2**36)
    most = 2**28 if name in ("csv", "flash") else 2**26
    message = f"size: expected at most {most} bytes, found more"
    message = "expected an npz file, found ..." if name == "npz" else message
    refused_file(message, READERS[name], path)
    with pytest.raises(FileNotFoundError):
        READERS[name](tmp_path / "none")


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"csv"}))
def test_noise_and_cut_files_are_refused(tmp_path, name):
    """`test_fuzz_traces.py` has damage of other kinds; a CSV file is whole after any line."""
    rng = np.random.default_rng([0, 1])
    written(name, tmp_path / "a", 1, 3)
    data = (tmp_path / "a").read_bytes()
    cuts = [data[:cut] for cut in rng.integers(0, len(data) - 1, 20)]
    for part in [*cuts, *map(rng.bytes, (0, 1, 7, 300))]:
        refused_file("...", READERS[name], tmp_path / "b", part)


def device(**changed):
    return dumps({"d": {**DEVICE, **changed}})


def capacity(computation, communication):
    return dumps({1: {"computation": computation, "communication": communication}})


def flash(messages):
    return json.dumps({"u": {"messages": messages}}).encode()


def csv(*lines, header="client,start,stop,period"):
    return "\n".join([header, *lines]).encode()


def npz(**changed):
    content = io.BytesIO()
    np.savez(content, **{"client": [0], "start": [0.0], "stop": [1.0], "period": [2.0], **changed})
    return content.getvalue()


SYSTEM = b"cos\nsystem\n(S'true'\ntR."  # `test_plain_pickle.py` has all kinds of it
PICKLE = "pickle: expected dicts, lists, strings and numbers, found the name os.system"
ACTIVE = "device 'd': expected active as a list of numbers, found others"
PAIR = "device 1: expected computation and communication as a list of numbers, found others"
MESSAGES = "user 'u': expected messages as a text of some lines, found none"
LINE = "user 'u': expected YYYY-MM-DD HH:MM:SS, a tab, a state, found "
HEADER = "lines: expected 'client,start,stop,period' and at least one below it, found "
PERIOD = "period of client 0: expected one number, found "
WINDOW = "window of client 0: expected within the period, windows of at least 0.001 s, ..., found "
NO_WINDOW = "client: expected some integers, found int64 (0,)"


@pytest.mark.parametrize(("name", "data", "message"), [
    ("fedscale", SYSTEM, PICKLE),
    ("capacity", SYSTEM, PICKLE),
    ("fedscale", dumps([DEVICE]), "pickle: expected a dict, id -> device, found list"),
    ("fedscale", dumps({}), "pickle: expected a dict, id -> device, found an empty dict"),
    ("fedscale", dumps({"d": [1]}), "device 'd': expected a dict, found list"),
    ("fedscale", dumps({"d": {}}), ACTIVE),
    ("fedscale", device(active=3), ACTIVE),
    ("fedscale", device(active=[True, 7]), ACTIVE),
    ("fedscale", device(finish_time=None), ACTIVE.replace("active", "finish_time")),
    ("fedscale", device(active=[1]), "device 'd': expected as many ..., found 1 and 2"),

    ("fedscale", device(inactive=[4, 11]), WINDOW + "[7.0, 11.0) of a period of 10.0, ..."),
    ("fedscale", device(active=[-1, 7]), "start: expected 0.0 to 1000000000000.0, found -1.0"),
    ("fedscale", device(inactive=[4, np.nan]), "stop: expected 0.0 to ..., found nan"),
    ("fedscale", device(active=[1, 10**400]), "int too large to convert to float"),
    ("fedscale", device(finish_time=0), "period: expected 0.001 to ..., found 0.0"),
    ("fedscale", device(active=[11, 7], inactive=[11, 9]), "window ...: ... 10.0, found 11.0"),
    ("fedscale", device(active=[], inactive=[]), NO_WINDOW),
    ("capacity", capacity(3.0, None), PAIR),
    ("capacity", capacity(0, 1), "computation of client 0: expected > 0, finite, found 0.0"),
    ("capacity", capacity(1, -2.0), "communication of client 0: expected ..., found -2.0"),
    ("capacity", capacity(np.inf, 1), "computation of client 0: expected ..., found inf"),
    # Too slow for a float64 of seconds.
    ("capacity", capacity(1, 5e-324), "download: expected finite numbers >= 0, found inf"),
    ("capacity", capacity(1.7e308, 1), "step: expected finite numbers >= 0, found inf"),
    ("flash", b"[]", "users: expected an object, user id -> messages, found an empty list"),
    ("flash", b'{"u": NaN}', "text: expected numbers, found NaN"),
    ("flash", b'{"u": ' + b"[" * 100_000, "text: expected JSON, found ..."),
    ("flash", flash(3), MESSAGES),
    ("flash", flash("  "), MESSAGES),
    ("flash", flash("now\twifi"), LINE + r"'now\twifi'"),
    ("flash", flash("2020-01-01 00:00:00 wifi"), LINE + "'2020-01-01 00:00:00 wifi'"),
    ("flash", flash("2020-13-01 00:00:00\twifi"), "Month out of range in datetime ..."),
    ("flash", flash("2020-01-01 00:00:00\twifi"), NO_WINDOW),
    ("csv", csv("0,0,1", header="client,stop"), HEADER + "'client,stop' and 1 below it"),
    ("csv", csv(), HEADER + "'client,start,stop,period' and 0 below it"),
    ("csv", b"\xff\0", "'utf-8' codec ..."),
    ("csv", csv("0,0,1"), "lines: expected 4 columns, found 3"),
    ("csv", csv("0,0,1,2", "0,1,2"), "the number of columns changed ..."),
    ("csv", csv("0,0,one,2"), "could not convert string 'one' to float64 ..."),
    ("csv", csv("0.5,0,1,2"), "client: expected integers from 0 to 0, found 0.5"),
    ("csv", csv("1e18,0,1,2"), "client: expected integers from 0 to 0, found 1e+18"),
    ("csv", csv("1,0,1,2", "1,1,2,2"), "client: expected lines of each ..., found none of 0"),
    ("csv", csv("0,0,1,2", "0,1,2,3"), PERIOD + "2.0 and 3.0"),
    ("csv", csv("0,0,1,nan"), PERIOD + "nan and nan"),
    ("csv", csv("0,0,3,2"), WINDOW + "[0.0, 3.0) of a period of 2.0, with -1.0 to the next"),
    ("npz", npz(start=[[0.0]]), "arrays: expected one shape [lines], found [(1,), (1, 1)]"),
    ("npz", npz(start=[0, 1]), "arrays: expected one shape [lines], found [(1,), (2,)]"),
    ("npz", npz(extra=[1]), "expected ['client', ..., unknown ['extra.npy'] in 5 arrays"),
    ("npz", npz(client=np.array([None])), "expected an npz file, found Object ..."),
], ids=lambda value: "" if isinstance(value, bytes) else None)  # fmt: skip
def test_a_file_that_says_something_else(tmp_path, name, data, message):
    refused_file(message, READERS[name], tmp_path / "a", data)
