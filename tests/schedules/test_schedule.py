"""Schedules: files, what is refused, statistics, trees."""

import dataclasses
import io
import tracemalloc
import warnings
import zipfile

import jax
import numpy as np
import pytest
from problems import make_schedule

from ccfl_jax import Schedule
from ccfl_jax.io import npz


def small(**changes):
    arrays = {
        "client": np.array([[0, 1], [2, 2]], np.int32),
        "staleness": np.array([[0, 0], [1, 0]], np.int32),
        "work": np.array([[2, 4], [1, 3]], np.int32),
        "present": np.array([[True, True], [True, False]]),
    }
    return Schedule(**{**arrays, **changes})


@pytest.mark.parametrize("time", [None, np.array([0.5, 2.25])])
@pytest.mark.parametrize(
    "made_for", [{}, {"num_clients": 7}, {"work_unit": "steps"}, {"work_unit": "epochs"}]
)
def test_save_and_load(tmp_path, time, made_for):
    path = tmp_path / "a.schedule"
    saved = small(time=time, **made_for)
    saved.save(path)
    loaded = Schedule.load(path)
    assert loaded.work_unit == saved.work_unit and loaded.num_clients == saved.num_clients
    assert type(loaded.num_clients) is type(saved.num_clients)
    for a, b in zip(*map(jax.tree.leaves, (saved, loaded)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_a_plan_stays_out_of_the_file(tmp_path):
    small(num_clients=np.int32(3)).planned().save(tmp_path / "s.npz")
    names = {"client", "staleness", "work", "present", "num_clients"}
    assert {*np.load(tmp_path / "s.npz", allow_pickle=False)} == names
    loaded = Schedule.load(tmp_path / "s.npz")
    assert loaded.read is None and loaded.write is None and loaded.num_clients == 3
    made(tmp_path / "planned.npz", read=np.zeros((2, 2), np.int32), write=np.zeros(2, np.int32))
    refused(tmp_path / "planned.npz", "unknown ['read.npy', 'write.npy']")


def test_what_it_was_made_for_is_no_part_of_the_digest():
    assert small(num_clients=3, work_unit="steps").planned().digest() == small().digest()


def made(path, compression=zipfile.ZIP_DEFLATED, **members):
    """A file of `small()` with other arrays, or other bytes, for some of its members."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as file:
        warnings.simplefilter("ignore")  # zipfile warns of a name that is there twice
        for name, array in {**dataclasses.asdict(small()), **members}.items():
            if array is not None:
                content = io.BytesIO()
                np.save(content, array)
                whole = isinstance(array, bytes)
                file.writestr(f"{name}.npy", array if whole else content.getvalue())


def refused(path, message):
    with pytest.raises(ValueError) as error:
        Schedule.load(path)
    text = str(error.value)
    assert text.startswith(f"schedule file {path}: ") and message in text and "\n" not in text


def npy(dtype="<i4", order=False, shape="(2, 2), ", data=bytes(16)):
    """An array of the npy format, version 1: magic, length of the header, header, numbers."""
    header = f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"client": np.array([[{"a": 1}]], object)}, "npz (Object arrays cannot be loaded when"),
        ({"client": npy("<U1")}, "client: expected booleans, integers or floats, found no numbers"),
        ({"client": npy("<c2")}, "not a readable npz ("),
        ({"client": npy()[:5]}, "client: expected booleans, integers or floats, found no numbers"),
        ({"client": b"\x93NUMPY\x03" + npy()[7:]}, "npz (EOF: reading array header, expected "),
        ({"work": npy(shape="(-2, -2), ")}, "not a readable npz (can only specify one unknown"),
        (
            {"work": npy(shape="(2, 3), ")},
            "npz (EOF: reading array data, expected 24 bytes got 16)",
        ),
        ({"work": npy(shape="(1, 1), ")}, "work: expected integers (2, 2), found int32 (1, 1)"),
        ({"work": npy(shape="(9999999999, 99999999), ")}, "not a readable npz (Unable to allocate"),
        ({"work": npy(shape="(4294967296, 4294967296), ")}, "npz (cannot reshape array of size 0"),
        ({"work": npy(shape=f"({'9' * 9000}, 2), ")}, "not a readable npz (Cannot parse header"),
        ({"present": npy("|b1", data=b"\0\1\2\1")}, "present: found a boolean of another byte, "),
        (
            {"time": np.array(["a", "b"])},
            "time: expected booleans, integers or f, found no numbers",
        ),
        ({"time": np.array([1, np.nan])}, "time: found a number that is not finite"),
        ({"time": np.array([True, False])}, "time: expected numbers (2,), found bool (2,)"),
        ({"a\nb" * 99: npy()}, "missing [], unknown ['a"),
        ({"client": np.full((2, 2), -1)}, "client: expected 0 to, found -1 to -1"),
        ({"num_clients": np.array([3, 3])}, "num_clients: expected one integer, found int64 (2,)"),
        ({"num_clients": np.array(3.0)}, "num_clients: expected one integer, found float64 ()"),
        ({"num_clients": np.array(2)}, "num_clients: expected more than the largest, found 2"),
        (
            {"num_clients": np.array(2**64 - 1)},
            "num_clients: expected a, found 18446744073709551615",
        ),
        ({"epochs": np.array(1)}, "epochs: expected one bool, found int64 ()"),
        ({"epochs": np.array([True])}, "epochs: expected one bool, found bool (1,)"),
    ],
)
def test_load_refuses_what_is_in_a_file(tmp_path, members, message):
    made(tmp_path / "s.npz", **members)
    refused(tmp_path / "s.npz", message)


@pytest.mark.parametrize(
    "array",
    [
        np.array([[0, 1], [2, 2]], np.uint8),
        np.array([[0, 1], [2, 2]], ">i8"),
        np.asfortranarray([[0, 1], [2, 2]]),
        npy(order=True, data=np.array([0, 2, 1, 2], "<i4").tobytes()),
    ],
)
def test_other_integers_become_the_schedules_own(tmp_path, array):
    made(tmp_path / "s.npz", zipfile.ZIP_STORED, client=array)
    loaded = Schedule.load(tmp_path / "s.npz")
    np.testing.assert_array_equal(loaded.client, [[0, 1], [2, 2]])
    assert loaded.client.dtype == np.int32 and loaded.client.flags.writeable


def test_a_name_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "s.npz"
    made(path)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as file:
        warnings.simplefilter("ignore")
        file.writestr("client.npy", npy())
    refused(
        path, "in 5 arrays, legal: ['client', 'staleness', 'work', 'present'] and optionally time"
    )


@pytest.mark.parametrize(("found", "damage"), [(b"<i4", b"<i2"), (bytes([1, 0]), bytes([3, 0]))])
def test_a_changed_byte_is_refused(tmp_path, found, damage):
    """In a header, which says that the array is shorter, or among the numbers."""
    path = tmp_path / "s.npz"
    made(path, zipfile.ZIP_STORED)
    content = path.read_bytes()
    at = content.index(found, content.index(b"NUMPY") + 4)
    path.write_bytes(content[:at] + damage + content[at + len(damage) :])
    refused(path, "not a readable npz (client.npy has another checksum)")


def test_an_encrypted_file_is_refused(tmp_path):
    path = tmp_path / "s.npz"
    made(path)
    content = path.read_bytes()
    for signature, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):  # bit 0 of the flags
        at = content.index(signature) + place
        content = content[:at] + b"\1" + content[at + 1 :]
    path.write_bytes(content)
    refused(path, "is encrypted, password required")


@pytest.mark.parametrize("claims", [True, False], ids=["true", "false"])
def test_a_bomb_takes_no_memory(tmp_path, monkeypatch, claims):
    """50 MB of zeros in 50 kB, called what they are, or 144 bytes: four numbers and a header."""
    path, zeros = tmp_path / "s.npz", npy(data=bytes(50_000_000))
    made(path, client=zeros)
    assert path.stat().st_size < 100_000
    if claims:
        monkeypatch.setattr(npz, "_LARGEST", 40_000_000)
        message = "found arrays of 50000"
    else:
        content = path.read_bytes()
        path.write_bytes(content.replace(len(zeros).to_bytes(4, "little"), bytes([144, 0, 0, 0])))
        message = "client.npy"
    tracemalloc.start()
    try:
        refused(path, message)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**22  # zipfile reads pieces of 1 MiB


def damaged(path, how):
    small().save(path)
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"hello"}[how])


@pytest.mark.parametrize("how", ["cut", "empty", "text"])
def test_damaged_files_are_refused_by_name(tmp_path, how):
    path = tmp_path / "s.npz"
    damaged(path, how)
    with pytest.raises(ValueError, match=r"schedule file .*s\.npz: not a readable npz"):
        Schedule.load(path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"schedule file .*nothing\.npz: No such file"):
        Schedule.load(tmp_path / "nothing.npz")
    with pytest.raises(IsADirectoryError, match=r"schedule file .*: Is a directory"):
        Schedule.load(tmp_path)


def test_missing_and_unknown_arrays_are_named(tmp_path):
    path = tmp_path / "s.npz"
    np.savez(path, client=np.zeros((1, 1), np.int32), extra=np.zeros(1))
    with pytest.raises(ValueError, match=r"missing \['present', 'staleness', 'work'\], unknown"):
        Schedule.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"client": np.zeros(3, np.int32)},
            r"client: expected \[rounds, slots\], found shape \(3,\)",
        ),
        ({"work": np.zeros((2, 3), np.int32)}, r"work: found int32 \(2, 3\)"),
        ({"present": np.ones((2, 2), np.int32)}, "present: expected bool, found int32 .*"),
        ({"staleness": np.zeros((2, 2))}, "staleness: expected integers, found float64 .*"),
        ({"staleness": np.full((2, 2), -1)}, "staleness: expected 0 to, found -1 to -1"),
        ({"client": np.full((2, 2), 2**40)}, "client: found 1099511627776 to"),
        ({"time": np.zeros(3)}, r"time: expected numbers \(2,\), found float64 \(3,\)"),
        ({"num_clients": 0}, "num_clients: expected an integer from 1 to, found 0"),
        ({"num_clients": 2.0}, "num_clients: expected an integer, found 2.0"),
        ({"num_clients": 2}, "num_clients: expected more than the largest client, 2, found 2"),
        ({"work_unit": "batches"}, "work_unit: expected epochs, steps or None, found 'batches'"),
        (
            {"read": np.zeros((2, 2), int)},
            "schedule: expected read and write, or, found read alone",
        ),
        ({"write": np.zeros(2, int)}, "schedule: expected read and write, or, found write alone"),
        (
            {"read": np.zeros((2, 3), int), "write": np.zeros(2, int)},
            r"read: expected integers \(2, 2\), found int64 \(2, 3\)",
        ),
        (
            {"read": np.zeros((2, 2), int), "write": np.zeros((2, 2), int)},
            r"write: expected integers \(2,\), found int64 \(2, 2\)",
        ),
        (
            {"read": np.full((2, 2), -1), "write": np.zeros(2, int)},
            "read: expected 0 to, found -1 to -1",
        ),
    ],
)
def test_check_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes).check()


def test_rounds_cuts_and_checks():
    whole = small(time=np.array([1.0, 2.0]), num_clients=5, work_unit="steps").planned()
    piece = whole.rounds(1, 2)
    np.testing.assert_array_equal(piece.client, [[2, 2]])
    np.testing.assert_array_equal(piece.time, [2.0])
    np.testing.assert_array_equal(piece.read, whole.read[1:])
    np.testing.assert_array_equal(piece.write, whole.write[1:])
    assert (piece.num_clients, piece.work_unit) == (5, "steps")
    with pytest.raises(ValueError, match="expected 0 <= start <= stop <= 2, found start 1, stop 3"):
        small().rounds(1, 3)


def test_stats_by_hand():
    """Round 0: K = 2, 4; round 1: K = 1 (the absent slot does not count)."""
    stats = small().stats(num_clients=4)
    np.testing.assert_array_equal(stats["participation"], [1, 1, 1, 0])
    np.testing.assert_array_equal(stats["staleness"], [2, 1])
    assert stats["tau_max"] == 1 and stats["tau_avg"] == pytest.approx(1 / 3)
    np.testing.assert_allclose(stats["inclusion"], [1 / 2, 1 / 2, 1 / 2, 0])
    assert stats["effective_clients"] == pytest.approx(3)
    assert stats["phi_1"] == pytest.approx(((2 + 4) / 2 + 1) / 2)
    assert stats["phi_2"] == pytest.approx(((4 + 16) / 2 + 1) / 2)
    assert stats["phi_3"] == pytest.approx(((1 / 2 + 1 / 4) / 2 + 1) / 2)


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


def test_stats_in_local_steps():
    stats = small().stats(num_clients=3, steps=np.array([[20, 40], [0, 9]]))
    np.testing.assert_array_equal(stats["participation"], [1, 1, 0])
    assert stats["phi_1"] == pytest.approx(30)
    with pytest.raises(ValueError, match="steps: found shape"):
        small().stats(num_clients=3, steps=np.ones((1, 2)))


def test_stats_refuses_other_clients():
    with pytest.raises(ValueError, match=r"expected 0 to 1 \(2 clients\), found client 2"):
        small().stats(num_clients=2)
    message = "schedule: expected one made for 4, found one made for 10 clients"
    with pytest.raises(ValueError, match=message):
        small(num_clients=10).stats(num_clients=4)


def test_a_tree_of_its_arrays():
    """What it was made for is no leaf: it is kept, and an array may have any other shape."""
    schedule = small(num_clients=5, work_unit="steps").planned()
    row = jax.tree.map(lambda a: a[1], schedule)
    assert (
        (row.num_clients, row.work_unit) == (5, "steps")
        and row.time is None
        and row.write == schedule.write[1]
    )
    np.testing.assert_array_equal(row.client, [2, 2])
    assert len(jax.tree.leaves(schedule)) == 6 and len(jax.tree.leaves(small())) == 4
    stacked = jax.tree.map(lambda *a: np.stack(a), schedule, schedule)
    assert stacked.read.shape == (2, 2, 2)
