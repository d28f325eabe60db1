"""Schedules: files, what is refused, statistics, trees."""

import dataclasses
import io
import tracemalloc
import zipfile
from functools import partial

import jax
import numpy as np
import pytest
from problems import assert_trees_equal, make_schedule
from refusal import refused

from ccfl_jax import Schedule
from ccfl_jax.io import npz


def small(**changes):
    """Two rounds of two slots: work 2, 4; 1 and an absent slot."""
    client, staleness, work = [[0, 1], [2, 2]], [[0, 0], [1, 0]], [[2, 4], [1, 3]]
    return make_schedule(client, staleness, work, [[1, 1], [1, 0]]).replace(**changes)


@pytest.mark.parametrize("changes", [
    {}, {"time": np.array([0.5, 2.25]), "num_clients": 7}, {"work_unit": "steps"},
    {"time": np.array([0.5, 2.25]), "work_unit": "epochs"},
])  # fmt: skip
def test_save_and_load(tmp_path, changes):
    saved = small(**changes)
    saved.save(tmp_path / "a.schedule")
    loaded = Schedule.load(tmp_path / "a.schedule")
    assert loaded.work_unit == saved.work_unit and loaded.num_clients == saved.num_clients
    assert type(loaded.num_clients) is type(saved.num_clients)
    assert_trees_equal(loaded, saved)


def test_a_plan_stays_out_of_the_file_and_the_digest(tmp_path):
    small(num_clients=np.int32(3)).planned().save(tmp_path / "s.npz")
    names = {"client", "staleness", "work", "present", "num_clients"}
    assert {*np.load(tmp_path / "s.npz", allow_pickle=False)} == names
    loaded = Schedule.load(tmp_path / "s.npz")
    assert loaded.read is None and loaded.write is None and loaded.num_clients == 3
    assert small(num_clients=3, work_unit="steps").planned().digest() == small().digest()


def made(path, compression=zipfile.ZIP_DEFLATED, **members):
    """A file of `small()` with other arrays, other bytes or None for some of its members."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, array in {**dataclasses.asdict(small()), **members}.items():
            if array is not None:
                content = io.BytesIO()
                np.save(content, array)
                whole = isinstance(array, bytes)
                file.writestr(f"{name}.npy", array if whole else content.getvalue())
    return path


def refused_file(path, message, kind=ValueError):
    refused(f"schedule file {path}: {message}", Schedule.load, path, kind=kind)


def npy(dtype="<i4", order=False, shape="(2, 2), ", data=bytes(16)):
    """An array of the npy format, version 1: magic, length of the header, header, numbers."""
    header = f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + data


NO = "expected an npz file, found "
ARRAYS = "expected ['client', 'staleness', 'work', 'present'] and optionally ..., found missing "


@pytest.mark.parametrize(("members", "message"), [
    ({"client": np.array([[{}]])}, NO + "Object arrays cannot be loaded ..."),
    ({"client": npy("<U1")}, "client: expected booleans, integers or floats, found others"),
    ({"client": npy()[:5]}, "client: expected booleans, integers or floats, found others"),
    ({"client": b"\x93NUMPY\x03" + npy()[7:]}, NO + "EOF: reading array header, ..."),
    ({"work": npy(shape="(2, 3), ")}, NO + "EOF: ... data, expected 24 bytes got 16"),
    ({"work": npy(shape="(9999999999, 99999999), ")}, NO + "Unable to allocate ..."),
    ({"work": npy(shape=f"({'9' * 9000}, 2), ")}, NO + "Cannot parse header..."),
    ({"present": npy("|b1", data=b"\0\1\2\1")}, "present: expected booleans ..., found others"),
    ({"a\nb" * 99: npy()}, ARRAYS + "[], unknown ['a\\nba...b.npy'] in 5 arrays"),
    ({"work": None, "extra": npy()}, ARRAYS + "['work'], unknown ['extra.npy'] in 4 arrays"),
    ({"read": npy(), "write": npy()}, ARRAYS + "[], unknown ['read.npy', 'write.npy'] ..."),
    ({"client": np.full((2, 2), -1)}, "client: expected 0 to 2147483647, found -1 to -1"),
    ({"num_clients": np.array([3, 3])}, "num_clients: expected one integer, found int64 (2,)"),
    ({"num_clients": np.array(3.0)}, "num_clients: expected one integer, found float64 ()"),
    ({"num_clients": np.array(2**64 - 1)}, f"num_clients: expected ..., found {2**64 - 1}"),
    ({"epochs": np.array(1)}, "epochs: expected one bool, found int64 ()"),
    ({"epochs": np.array([True])}, "epochs: expected one bool, found bool (1,)"),
])  # fmt: skip
def test_load_refuses_what_is_in_a_file(tmp_path, members, message):
    refused_file(made(tmp_path / "s.npz", **members), message)


@pytest.mark.parametrize("array", [
    np.array([[0, 1], [2, 2]], np.uint8),
    np.array([[0, 1], [2, 2]], ">i8"),
    np.asfortranarray([[0, 1], [2, 2]]),
    npy(order=True, data=np.array([0, 2, 1, 2], "<i4").tobytes()),
])  # fmt: skip
def test_other_integers_become_the_schedules_own(tmp_path, array):
    loaded = Schedule.load(made(tmp_path / "s.npz", zipfile.ZIP_STORED, client=array))
    np.testing.assert_array_equal(loaded.client, [[0, 1], [2, 2]])
    assert loaded.client.dtype == np.int32 and loaded.client.flags.writeable


def changed(found, damage, content):
    """Other bytes in the first array of a file."""
    at = content.index(found, content.index(b"NUMPY") + 4)
    return content[:at] + damage + content[at + len(damage) :]


def encrypted(content):
    """Says so in bit 0 of the flags, before the first array and in the directory."""
    for signature, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = content.index(signature) + place
        content = content[:at] + b"\1" + content[at + 1 :]
    return content


def doubled(content):
    """The same name twice."""
    whole = io.BytesIO(content)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(whole, "a") as file:
        file.writestr("client.npy", npy())
    return whole.getvalue()


@pytest.mark.parametrize(("damage", "message"), [
    (lambda content: content[: len(content) // 2], NO + "File is not a zip..."),
    (lambda content: b"", NO + "File is not a zip file"),

    # A header that says that the array is shorter; a number.
    (partial(changed, b"<i4", b"<i2"), NO + "client.npy has another checksum"),
    (partial(changed, b"\1\0", b"\3\0"), NO + "client.npy has another checksum"),
    (encrypted, NO + "... is encrypted, password required for extraction"),
    (doubled, ARRAYS + "[], unknown [] in 5 arrays"),
])  # fmt: skip
def test_damaged_files_are_refused_by_name(tmp_path, damage, message):
    path = made(tmp_path / "s.npz", zipfile.ZIP_STORED)
    path.write_bytes(damage(path.read_bytes()))
    refused_file(path, message)


@pytest.mark.parametrize("honest", [True, False])
def test_a_file_that_unpacks_to_much_more_takes_no_memory(tmp_path, monkeypatch, honest):
    """50 MB of zeros in 50 kB, with their size or 144 bytes, four numbers and a header, as size."""
    zeros = npy(data=bytes(50_000_000))
    path = made(tmp_path / "s.npz", client=zeros)
    assert path.stat().st_size < 100_000
    if honest:
        monkeypatch.setattr(npz, "_LARGEST", 40_000_000)
        message = "expected at most 40000000 bytes, found 50000..."
    else:
        content = path.read_bytes()
        path.write_bytes(content.replace(len(zeros).to_bytes(4, "little"), bytes([144, 0, 0, 0])))
        message = NO + "client.npy has another checksum"
    tracemalloc.start()
    refused_file(path, message)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22  # zipfile reads pieces of 1 MiB


def test_missing_file(tmp_path):
    missing = tmp_path / "nothing.npz"
    refused_file(missing, "No such file or directory", FileNotFoundError)
    refused_file(tmp_path, "Is a directory", IsADirectoryError)


WHOLE = np.zeros((2, 2), int)
PLAN = {"read": WHOLE, "write": WHOLE[0]}


@pytest.mark.parametrize(("changes", "message"), [
    ({"client": WHOLE[0]}, "client: expected [rounds, slots], found shape (2,)"),
    ({"work": WHOLE[:1]}, "work: expected integers (2, 2) like client, found int64 (1, 2)"),
    ({"present": WHOLE}, "present: expected bool (2, 2) like client, found int64 (2, 2)"),
    ({"staleness": WHOLE / 2}, "staleness: expected integers (2, 2) ..., found float64 (2, 2)"),
    ({"staleness": WHOLE - 1}, "staleness: expected 0 to 2147483647, found -1 to -1"),
    ({"client": WHOLE + 2**40}, f"client: expected 0 to 2147483647, found {2**40} to {2**40}"),
    ({"time": np.zeros(3)}, "time: expected numbers (2,), found float64 (3,)"),
    ({"time": WHOLE[0] > 0}, "time: expected numbers (2,), found bool (2,)"),
    ({"time": np.array([1, np.nan])}, "time: expected finite numbers, found nan"),
    ({"num_clients": 0}, "num_clients: expected an integer from 1 to 2147483647, found 0"),
    ({"num_clients": 2}, "num_clients: expected more than the largest client, 2, found 2"),
    ({"work_unit": "batches"}, "work_unit: expected epochs, steps or None, found 'batches'"),
    ({"read": WHOLE}, "schedule: expected read and write, or neither, found read alone"),
    ({"write": WHOLE[0]}, "schedule: expected read and write, or neither, found write alone"),
    ({**PLAN, "read": WHOLE[:1]}, "read: expected integers (2, 2) ..., found int64 (1, 2)"),
    ({**PLAN, "write": WHOLE}, "write: expected integers (2,) ..., found int64 (2, 2)"),
    ({**PLAN, "read": WHOLE - 1}, "read: expected 0 to 2147483647, found -1 to -1"),
])  # fmt: skip
def test_check_refuses(changes, message):
    refused(message, small(**changes).check)


def test_rounds_cuts_and_checks():
    whole = small(time=np.array([1.0, 2.0]), num_clients=5, work_unit="steps").planned()
    piece = whole.rounds(1, 2)
    for name in ("client", "staleness", "work", "present", "time", "read", "write"):
        np.testing.assert_array_equal(getattr(piece, name), getattr(whole, name)[1:])
    assert (piece.num_clients, piece.work_unit) == (5, "steps")
    refused("rounds: expected 0 <= start <= stop <= 2, found start 1, stop 3", whole.rounds, 1, 3)


def test_stats_by_hand():
    """Round 0: K = 2, 4; round 1: K = 1 (the absent slot does not count)."""
    stats = small().stats(num_clients=4)
    np.testing.assert_array_equal(stats.pop("participation"), [1, 1, 1, 0])
    np.testing.assert_array_equal(stats.pop("staleness"), [2, 1])
    np.testing.assert_allclose(stats.pop("inclusion"), [1 / 2, 1 / 2, 1 / 2, 0])
    phi = ((2 + 4) / 2 + 1) / 2, ((4 + 16) / 2 + 1) / 2, ((1 / 2 + 1 / 4) / 2 + 1) / 2
    expected = {"tau_max": 1, "tau_avg": 1 / 3, "effective_clients": 3}
    expected |= {f"phi_{k + 1}": value for k, value in enumerate(phi)}
    assert stats == pytest.approx(expected)
    in_steps = small().stats(num_clients=3, steps=np.array([[20, 40], [0, 9]]))
    assert in_steps["participation"].tolist() == [1, 1, 0] and in_steps["phi_1"] == 30


def test_a_client_twice_in_a_round_is_included_once():
    """Client 0 fills three slots in two of four rounds, client 1 one: n_eff = 4^2 / (9 + 1)."""
    s = make_schedule([[0, 0], [0, 1], [1, 1], [2, 2]], work=[[1, 2], [1, 1], [0, 0], [0, 0]])
    stats = s.stats(3)
    np.testing.assert_array_equal(stats["participation"], [3, 1, 0])
    np.testing.assert_array_equal(stats["inclusion"], [2 / 4, 1 / 4, 0])
    assert stats["inclusion"].dtype == np.float64
    assert stats["effective_clients"] == pytest.approx(16 / 10)


@pytest.mark.parametrize("rounds", [0, 2])
def test_stats_of_nothing(rounds):
    stats = make_schedule([[0, 1]] * 2, present=False).rounds(0, rounds).stats(2)
    names = ("tau_avg", "effective_clients", "phi_1", "phi_2", "phi_3")
    assert all(np.isnan(stats[name]) for name in names) and stats["tau_max"] == 0
    np.testing.assert_array_equal(stats["inclusion"], [0, 0] if rounds else [np.nan, np.nan])


def test_stats_refuses():
    refused("steps: expected (2, 2), found shape (1, 2)", small().stats, 3, np.ones((1, 2)))
    refused("schedule: expected clients 0 to 1, found 2", small().stats, 2)
    refused("schedule: expected one of 4 clients, found one of 10", small(num_clients=10).stats, 4)


def test_a_tree_of_its_arrays():
    """What it was made for is no leaf: it is kept, and an array may have any other shape."""
    schedule = small(num_clients=5, work_unit="steps").planned()
    row = jax.tree.map(lambda a: a[1], schedule)
    assert (row.num_clients, row.work_unit, row.time) == (5, "steps", None)
    assert row.client.tolist() == [2, 2] and row.write == schedule.write[1]
    assert len(jax.tree.leaves(schedule)) == 6 and len(jax.tree.leaves(small())) == 4
    stacked = jax.tree.map(lambda *a: np.stack(a), schedule, schedule)
    assert stacked.read.shape == (2, 2, 2)
