"""Traces: each format's writer and reader, hand-made files, and files that say something else."""

import json
from pickle import dumps  # noqa: S403, which only writes

import numpy as np
import pytest
import trace_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from ccfl_jax.clock import traces
from ccfl_jax.clock.availability import windows

COLUMNS = "client,start,stop,period"
DEVICE = {"duration": 5, "inactive": [4, 9], "finish_time": 10, "active": [1, 7], "model": "a"}
FORMATS = {
    "csv": (samples.write_csv, traces.read_windows_csv),
    "npz": (samples.write_npz, traces.read_windows_npz),
    "flash": (samples.write_flash, traces.read_flash),
    "fedscale": (samples.write_fedscale, traces.read_fedscale_availability),
}


def read_speeds(path):
    return traces.read_fedscale_capacity(path, 20, 1e6)


PICKLES = {"availability": traces.read_fedscale_availability, "capacity": read_speeds}
READERS = {**{name: reader for name, (_, reader) in FORMATS.items()}, "capacity": read_speeds}


def refusal(read, path, data):
    """What is said of a file with such bytes: one line that names it."""
    path.write_bytes(data)
    with pytest.raises(ValueError) as refused:
        read(path)
    text = str(refused.value)
    assert text.startswith(f"{path}: ") and "\n" not in text and len(text) < 1000
    return text.removeprefix(f"{path}: ")


def equal(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_read(tmp_path, name):
    write, read = FORMATS[name]
    written = write(tmp_path / "a", 3, 40)
    found = read(tmp_path / "a")
    assert equal(found, written) and len(found.period) == 40 and len({*found.client}) > 30
    assert {*found.period} == {2 * 86400.0, 3 * 86400.0, 4 * 86400.0}
    assert next(iter(windows(*found).changes(0))).time.size > 100


def test_capacities_are_read_as_seconds(tmp_path):
    """3 * 20 rows * ms / 1000 a step; 8 * 10^6 bits / 1000 / (kbit/s) either way."""
    computation, communication = samples.write_capacity(tmp_path / "a", 3, 40)
    devices = read_speeds(tmp_path / "a")
    np.testing.assert_allclose(devices.step, 0.06 * computation, rtol=1e-12)
    np.testing.assert_allclose(devices.download, 8000.0 / communication, rtol=1e-12)
    np.testing.assert_array_equal(devices.upload, devices.download)
    assert devices.task is None and devices.extra is None


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_fedscale_file_by_hand(tmp_path, protocol):
    other = {"active": [0, 0.5, 2], "inactive": [0, 1, 3], "finish_time": 3.0, "model": None}
    devices = {"x": DEVICE, 7: other, 8: {"active": [], "inactive": [], "finish_time": 2}}
    (tmp_path / "a").write_bytes(dumps(devices, protocol))
    trace = traces.read_fedscale_availability(tmp_path / "a")
    expected = ([0, 0, 1, 1], [1, 7, 0.5, 2], [4, 9, 1, 3], [10, 3, 2])
    assert equal(trace, expected)  # the window [0, 0) is none
    block = next(iter(windows(*trace).changes(0)))
    first = [(t, bool(a)) for t, c, a in zip(*block[1:], strict=True) if c == 0][:5]
    assert first == [(1.0, True), (4.0, False), (7.0, True), (9.0, False), (11.0, True)]


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
    hours = (23 + 1 / 3, 25, 27, 29)  # the last one until the last message
    expected = ([0, 0], [hours[0], hours[2]], [hours[1], hours[3]], [48, 24])
    found = traces.read_flash(tmp_path / "a")
    assert equal(found[:1], expected[:1])
    for seconds, hour in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(seconds, np.array(hour) * 3600.0)


@pytest.mark.parametrize("state", ["screen_unlock", "2G", "3g", "4g", "5G", "UNKNOWN",
                                   "battery_charged_off"])  # fmt: skip
def test_every_state_that_ends_readiness(tmp_path, state):
    at = "2020-02-01 0{}:00:00\t{}\n"
    begin = "".join(at.format(1, s) for s in ("wifi", "screen_lock", "battery_charged_on"))
    text = begin + at.format(2, state) + at.format(3, "screen_off")
    (tmp_path / "a").write_text(json.dumps({"u": {"messages": text}}))
    assert equal(traces.read_flash(tmp_path / "a"), ([0], [3600], [7200], [86400]))


def test_our_own_file_by_hand(tmp_path):
    rows = np.array([[2, 1, 3.5, 4], [0, 0, 5, 10], [1, 0, 0, 7], [0, 6, 7, 10]])
    text = "client,start,stop,period\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows)
    (tmp_path / "a").write_text(text)
    np.savez(tmp_path / "a.npz", **dict(zip(("client", "start", "stop", "period"), rows.T)))  # noqa: B905
    for trace in (
        traces.read_windows_csv(tmp_path / "a"),
        traces.read_windows_npz(tmp_path / "a.npz"),
    ):
        assert equal(trace, ([0, 0, 2], [0, 6, 1], [5, 7, 3.5], [10, 7, 4]))


@pytest.mark.parametrize("read", PICKLES.values(), ids=PICKLES)
def test_a_pickle_that_would_run_something_is_refused(tmp_path, read):
    """`test_pickles.py` has all kinds of it."""
    data = f"cos\nsystem\n(S'touch {tmp_path / 'marker'}'\ntR.".encode()
    assert refusal(read, tmp_path / "a", data).startswith("pickle: found the name os.system, legal")
    assert not (tmp_path / "marker").exists()


def test_a_list_that_many_devices_share_is_counted_for_each(tmp_path, monkeypatch):
    shared = list(range(0, 1000, 2))
    device = {"active": shared, "inactive": [t + 1 for t in shared], "finish_time": 1000}
    data = dumps({k: device for k in range(1000)})
    (tmp_path / "a").write_bytes(data)
    assert traces.read_fedscale_availability(tmp_path / "a").start.size == 500_000
    assert traces._MOST_WINDOWS == 2**24 and traces._LARGEST_PICKLE == 2**26
    monkeypatch.setattr(traces, "_MOST_WINDOWS", 400_000)
    text = refusal(traces.read_fedscale_availability, tmp_path / "a", data)
    assert text == "device 800: expected 400000, found 400500 windows up to it"


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_too_large_is_not_read(tmp_path, name):
    path = tmp_path / "a"
    with open(path, "wb") as file:
        file.truncate(2**36)
    with pytest.raises(ValueError) as refused:
        READERS[name](path)
    assert str(refused.value).startswith(f"{path}: ")
    assert name == "npz" or ": size: found more than " in str(refused.value)
    with pytest.raises(FileNotFoundError):
        READERS[name](tmp_path / "none")


@pytest.mark.parametrize("name", READERS)
def test_garbage_and_cut_files_are_refused_in_a_line(tmp_path, name):
    rng = np.random.default_rng([0, 1])
    write = FORMATS[name][0] if name in FORMATS else samples.write_capacity
    write(tmp_path / "a", 1, 3)
    data = (tmp_path / "a").read_bytes()
    read = READERS[name]
    if name != "csv":  # that is whole after any of its lines
        for cut in rng.integers(0, len(data) - 1, 60):
            refusal(read, tmp_path / "b", data[:cut])
    refusal(read, tmp_path / "b", data[: len(data) // 2].rpartition(b",")[0] or b"client")
    for size in (0, 1, 7, 300):
        refusal(read, tmp_path / "b", rng.bytes(size))
    for at in rng.integers(0, len(data), 300):  # one byte wrong: read as something, or refused
        (tmp_path / "b").write_bytes(data[:at] + rng.bytes(1) + data[at + 1 :])
        try:
            read(tmp_path / "b")
        except (ValueError, OSError) as error:
            assert str(error).startswith(f"{tmp_path / 'b'}: ") and "\n" not in str(error)


@given(st.lists(st.sampled_from([bytes([b]) for b in range(256)]), max_size=40))
def test_bytes_at_random_never_get_past_the_readers(tmp_path_factory, parts):
    path = tmp_path_factory.getbasetemp() / "random"
    for read in PICKLES.values():
        refusal(read, path, b"\x80\x04" + b"".join(parts))


def device(**changed):
    return dumps({"d": {**DEVICE, **changed}})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (dumps([DEVICE]), "pickle: expected a dict, id -> device, found list"),
        (dumps({}), "pickle: expected a dict, id -> device, found an empty dict"),
        (dumps({"d": [1]}), "device 'd': expected a dict, found list"),
        (dumps({"d": {}}), "device 'd': expected numbers, found other than numbers as active"),
        (device(active=3), "device 'd': expected numbers, found other than numbers as active"),
        (device(active=["1", "2"]), "device 'd': expected num, found other than numbers as active"),
        (device(active=[True, 7]), "device 'd': expected numb, found other than numbers as active"),
        (device(finish_time=None), "device 'd': found other than numbers as finish_time, legal:"),
        (device(active=[1]), "device 'd': expected as many, found 1 active and 2 inactive times"),
        (device(active=[7, 1]), "window of client 0: found [1.0, 9.0) of a period of 10.0, with"),
        (device(active=[1, 3]), "window of client 0: found [1.0, 4.0) of a period of 10.0, with"),
        (device(inactive=[4, 11]), "window of client 0: found [7.0, 11.0) of a period of 10.0, "),
        (device(active=[-1, 7]), "start: expected 0.0 to, found -1.0"),
        (device(inactive=[4, float("nan")]), "stop: expected 0.0 to, found nan"),
        (device(active=[1, 10**60]), "start: expected 0.0 to, found 1e+60"),
        (device(active=[1, 10**400]), "int too large to convert to float"),
        (device(finish_time=0), "period: expected 0.001 to, found 0.0"),
        (device(active=[11, 7], inactive=[11, 9]), "window of client 0: found 11.0 of a period "),
        (device(active=[], inactive=[]), "client: expected some integers, found int64 (0,)"),
    ],
)  # fmt: skip
def test_a_fedscale_file_that_says_something_else(tmp_path, data, message):
    assert refusal(traces.read_fedscale_availability, tmp_path / "a", data).startswith(message)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"computation": 3.0}, "device 1: found other than numbers as computation and commun"),
        ({"computation": "3", "communication": 1}, "device 1: found other than numbers as comp"),
        ({"computation": 0, "communication": 1}, "computation of client 0: expected ab, found 0.0"),
        ({"computation": 1, "communication": -2.0}, "communication of client 0: found -2.0, leg"),
        ({"computation": float("inf"), "communication": 1}, "computation of client 0: found inf"),
        # Too slow for a float64 of seconds.
        ({"computation": 1, "communication": 5e-324}, "download: expected finite numb, found inf"),
        ({"computation": 1.7e308, "communication": 1}, "step: expected finite numbers, found inf"),
    ],
)
def test_capacities_that_are_none(tmp_path, device, message):
    assert refusal(read_speeds, tmp_path / "a", dumps({1: device})).startswith(message)
    with pytest.raises(ValueError, match="^batch_size: expected , found 0"):
        traces.read_fedscale_capacity(tmp_path / "a", 0, 1.0)
    with pytest.raises(ValueError, match="^model_bytes: expected a finite number >= 0, found -1"):
        traces.read_fedscale_capacity(tmp_path / "a", 1, -1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "users: expected an object, user id -> messages, found an empty list"),
        ('{"u": NaN}', "text: not readable as JSON (expected numbers), found NaN"),
        ('{"u": ' + "[" * 100_000, "text: not readable as JSON ("),
        ('{"u": {"messages": 3}}', "user 'u': expected a text of some lines, found no messages"),
        ('{"u": {"messages": "  "}}', "user 'u': expected a text of some lines, found no messages"),
        ('{"u": {"messages": "now\\twifi"}}', "user 'u': found 'now"),
        ('{"u": {"messages": "2020-01-01 00:00:00 wifi"}}', "user 'u': found '2020-01-01 00:00:0"),
        ('{"u": {"messages": "2020-13-01 00:00:00\\twifi"}}', "Month out of range in datetime"),
        ('{"u": {"messages": "2020-01-01 00:00:00\\twifi"}}', "client: found int64 (0,), legal:"),
    ],
)
def test_a_flash_file_that_says_something_else(tmp_path, text, message):
    assert refusal(traces.read_flash, tmp_path / "a", text.encode()).startswith(message)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["client,start,stop", "0,0,1"],
            "lines: expected 'client, found 'client,start,stop' and 1 more",
        ),
        ([COLUMNS], f"lines: expected '{COLUMNS}' and some, found '{COLUMNS}' and 0 more"),
        ([COLUMNS, "0,0,1"], "lines: expected 4, found 3 columns"),
        ([COLUMNS, "0,0,1,2", "0,1,2"], "the number of columns changed"),
        ([COLUMNS, "0,0,one,2"], "could not convert string 'one' to float64"),
        ([COLUMNS, "0.5,0,1,2"], "client: expected 0 to 0, whole, found 0.5"),
        ([COLUMNS, "1e18,0,1,2"], "client: expected 0 to 0, whole, found 1e+18"),
        ([COLUMNS, "1,0,1,2", "1,1,2,2"], "client: found no line of 0, legal:"),
        ([COLUMNS, "0,0,1,2", "0,1,2,3"], "period of client 0: found 2.0 and 3.0"),
        ([COLUMNS, "0,0,1,nan"], "period of client 0: found nan and nan, legal:"),
        ([COLUMNS, "0,0,3,2"], "window of client 0: found [0.0, 3.0) of a per"),
        ([COLUMNS, "0,3,3,2"], "window of client 0: found 3.0 of a period of 2"),
    ],
)
def test_our_own_files_that_say_something_else(tmp_path, lines, message):
    text = refusal(traces.read_windows_csv, tmp_path / "a", "\n".join(lines).encode())
    assert text.startswith(message)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"start": [[0.0]]}, "arrays: expected [lines], all the same, found shapes [(1,), (1, 1)]"),
        ({"start": [0.0, 1.0]}, "arrays: expected , found shapes [(1,), (2,)]"),
        ({"client": []}, "arrays: expected , found shapes [(0,), (1,)]"),
        ({"extra": [1]}, "expected , found missing [], unknown ['extra.npy'] in 5 arrays"),
        ({"client": np.array([None])}, "not a readable npz (Object arrays cannot be loaded"),
    ],
)
def test_arrays_that_are_no_trace(tmp_path, changed, message):
    arrays = {"client": [0], "start": [0.0], "stop": [1.0], "period": [2.0], **changed}
    np.savez(tmp_path / "a.npz", **arrays)
    data = (tmp_path / "a.npz").read_bytes()
    assert refusal(traces.read_windows_npz, tmp_path / "b", data).startswith(message)
