"""Schedules: the paper's random model, files, statistics."""

import io
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ccfl_jax as ccfl
from ccfl_jax import Schedule, npz


def small(**changes):
    arrays = {
        "client": np.array([[0, 1], [2, 2]], np.int32),
        "staleness": np.array([[0, 0], [1, 0]], np.int32),
        "work": np.array([[2, 4], [1, 3]], np.int32),
        "present": np.array([[True, True], [True, False]]),
    }
    return Schedule(**{**arrays, **changes})


@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 30),
    delay=st.integers(0, 8),
    work=st.integers(1, 4),
    randomness=st.integers(1, 3),
    data=st.data(),
)
def test_random_schedule_is_legal(seed, clients, delay, work, randomness, data):
    slots = data.draw(st.integers(1, clients))
    s = ccfl.random_schedule(seed, 15, clients, slots, delay, work, randomness)
    assert s.client.shape == s.staleness.shape == s.work.shape == s.present.shape == (15, slots)
    assert s.client.dtype == s.staleness.dtype == s.work.dtype == np.int32
    assert s.present.all() and s.present.dtype == bool
    assert ((s.client >= 0) & (s.client < clients)).all()
    assert all(len(set(row)) == slots for row in s.client)
    assert ((s.staleness >= 0) & (s.staleness <= np.minimum(np.arange(15), delay)[:, None])).all()
    assert ((s.work >= 1) & (s.work <= work * randomness)).all()


def chi_square(counts, expected):
    return ((counts - expected) ** 2 / expected).sum()


def test_random_schedule_follows_the_papers_distributions():
    """Uniform delays and work, inclusion probability m/n: each chi-square within 5 sigmas."""
    rounds, n, m, tau = 4000, 20, 5, 4
    s = ccfl.random_schedule(0, rounds, n, m, tau, local_work=3, randomness=2)
    late = s.staleness[tau:]
    delays = np.bincount(late.ravel(), minlength=tau + 1)
    assert len(delays) == tau + 1
    assert chi_square(delays, late.size / (tau + 1)) < tau + 5 * np.sqrt(2 * tau)
    work = np.bincount(s.work.ravel(), minlength=7)[1:]
    assert len(work) == 6 and chi_square(work, s.work.size / 6) < 5 + 5 * np.sqrt(10)
    visits = np.bincount(s.client.ravel(), minlength=n)
    spread = np.sqrt(rounds * (m / n) * (1 - m / n))
    assert (abs(visits - rounds * m / n) < 5 * spread).all()
    pairs = sum(1 for row in s.client if {0, 1} <= set(row))
    p = m * (m - 1) / (n * (n - 1))
    assert abs(pairs - rounds * p) < 5 * np.sqrt(rounds * p)


def test_cohorts_change_between_rounds():
    s = ccfl.random_schedule(0, 20, 100, 10)
    assert len(np.unique(s.client)) >= 70


def test_seeds_matter_and_repeat():
    first, same, other = (ccfl.random_schedule(k, 10, 50) for k in (0, 0, 1))
    for a, b in zip(first[:4], same[:4], strict=True):
        np.testing.assert_array_equal(a, b)
    assert (first.client != other.client).any()


def test_one_choice_moves_no_other():
    base = ccfl.random_schedule(7, 30, 50, 5, max_delay=5, local_work=3)
    more_work = ccfl.random_schedule(7, 30, 50, 5, max_delay=5, local_work=6)
    np.testing.assert_array_equal(base.client, more_work.client)
    np.testing.assert_array_equal(base.staleness, more_work.staleness)
    punctual = ccfl.random_schedule(7, 30, 50, 5, max_delay=0, local_work=3)
    np.testing.assert_array_equal(base.client, punctual.client)
    np.testing.assert_array_equal(base.work, punctual.work)


def test_a_longer_schedule_begins_with_the_shorter():
    short, long = ccfl.random_schedule(3, 40, 30), ccfl.random_schedule(3, 100, 30)
    for a, b in zip(short[:4], long.rounds(0, 40)[:4], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"buffer_size": 6, "num_clients": 5},
            "buffer_size: found 6, legal: at most the number of",
        ),
        ({"buffer_size": 0}, "buffer_size: found 0, legal: a whole number from 1 on"),
        ({"max_delay": -1}, "max_delay: found -1, legal: a whole number from 0 on"),
        ({"seed": 2**32}, "seed: found 4294967296, legal: a whole number from 0 to 4294967295"),
        ({"seed": -1}, "seed: found -1"),
        ({"seed": 1.5}, "seed: found 1.5"),
        ({"num_rounds": True}, "num_rounds: found True"),
        (
            {"randomness": 0.5},
            "local_work * randomness: found 3 * 0.5 = 1.5, legal: a whole number",
        ),
        ({"randomness": float("nan")}, "local_work * randomness: found 3 * nan"),
        ({"local_work": 0}, "local_work: found 0"),
    ],
)
def test_random_schedule_refuses(arguments, message):
    settings = {"seed": 0, "num_rounds": 3, "num_clients": 10, **arguments}
    with pytest.raises(ValueError) as error:
        ccfl.random_schedule(**settings)
    assert message in str(error.value)


@pytest.mark.parametrize("time", [None, np.array([0.5, 2.25])])
def test_save_and_load(tmp_path, time):
    path = tmp_path / "a.schedule"
    saved = small(time=time)
    saved.save(path)
    loaded = Schedule.load(path)
    for a, b in zip(saved, loaded, strict=True):
        if a is None:
            assert b is None
        else:
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype


def made(path, compression=zipfile.ZIP_DEFLATED, **members):
    """A file of `small()` with other arrays, or other bytes, for some of its members."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as file:
        warnings.simplefilter("ignore")  # zipfile warns of a name that is there twice
        for name, array in {**small()._asdict(), **members}.items():
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
        ({"client": np.array([[{"a": 1}]], object)}, "client.npy: found no array of numbers"),
        ({"client": npy("|O")}, "client.npy: found no array of numbers"),
        ({"client": npy("<U1")}, "client.npy: found no array of numbers"),
        ({"client": npy()[:5]}, "client.npy: found no array of numbers"),
        ({"client": b"\x93NUMPY\x03" + npy()[7:]}, "client.npy: found no array of numbers"),
        ({"client": npy().replace(b"\x93NUMPY\x01\0", b"\x93NUMPY\x01\0\xff")}, "found no array"),
        ({"work": npy(shape="(-2, -2), ")}, "work.npy: found no array of numbers"),
        ({"work": npy(shape="(2, 3), ")}, "found 16 bytes, legal: as its shape (2, 3) of int32"),
        (
            {"work": npy(shape="(1000000000, 1000000000), ")},
            "found 16 bytes, legal: as its shape (1000000000, 1000000000) of int32",
        ),
        ({"work": npy(shape=f"({'9' * 9000}, 2), ")}, "Exceeds the limit"),
        ({"present": npy("|b1", data=b"\0\1\2\1")}, "found a bool that is neither 0 nor 1"),
        ({"time": np.array(["a", "b"])}, "time.npy: found no array of numbers"),
        ({"time": np.array([1, np.nan])}, "time: found a number that is not finite"),
        ({"time": np.array([True, False])}, "time: found bool (2,), legal: numbers (2,)"),
        ({"a\nb" * 99: npy()}, "missing [], unknown ['a"),
        ({"client": np.full((2, 2), -1)}, "client: found -1 to -1, legal: 0 to"),
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


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_numpys_own_compression_is_unpacked(tmp_path, compression):
    made(tmp_path / "s.npz", compression)
    refused(tmp_path / "s.npz", f"client.npy: found compression {compression}, legal: 0 and 8")


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
    assert peak < 2**20


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
            r"client: found shape \(3,\), legal: \[rounds, slots\]",
        ),
        ({"work": np.zeros((2, 3), np.int32)}, r"work: found int32 \(2, 3\)"),
        ({"present": np.ones((2, 2), np.int32)}, "present: found int32 .*, legal: bool"),
        ({"staleness": np.zeros((2, 2))}, "staleness: found float64 .*, legal: integers"),
        ({"staleness": np.full((2, 2), -1)}, "staleness: found -1 to -1, legal: 0 to"),
        ({"client": np.full((2, 2), 2**40)}, "client: found 1099511627776 to"),
        ({"time": np.zeros(3)}, r"time: found float64 \(3,\), legal: numbers \(2,\)"),
    ],
)
def test_check_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes).check()


def test_rounds_cuts_and_checks():
    piece = small(time=np.array([1.0, 2.0])).rounds(1, 2)
    np.testing.assert_array_equal(piece.client, [[2, 2]])
    np.testing.assert_array_equal(piece.time, [2.0])
    with pytest.raises(ValueError, match="found start 1, stop 3, legal: 0 <= start <= stop <= 2"):
        small().rounds(1, 3)


def test_stats_by_hand():
    """Round 0: K = 2, 4; round 1: K = 1 (the absent slot does not count)."""
    stats = small().stats(num_clients=4)
    np.testing.assert_array_equal(stats["participation"], [1, 1, 1, 0])
    np.testing.assert_array_equal(stats["staleness"], [2, 1])
    assert stats["phi_1"] == pytest.approx(((2 + 4) / 2 + 1) / 2)
    assert stats["phi_2"] == pytest.approx(((4 + 16) / 2 + 1) / 2)
    assert stats["phi_3"] == pytest.approx(((1 / 2 + 1 / 4) / 2 + 1) / 2)


def test_stats_in_local_steps():
    stats = small().stats(num_clients=3, steps=np.array([[20, 40], [0, 9]]))
    np.testing.assert_array_equal(stats["participation"], [1, 1, 0])
    assert stats["phi_1"] == pytest.approx(30)
    with pytest.raises(ValueError, match="steps: found shape"):
        small().stats(num_clients=3, steps=np.ones((1, 2)))


def test_stats_refuses_a_client_there_is_none_of():
    with pytest.raises(ValueError, match=r"found client 2, legal: 0 to 1 \(2 clients\)"):
        small().stats(num_clients=2)
