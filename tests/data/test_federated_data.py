"""FederatedData and the shared checks."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

from ccfl_jax import data as fd

ROWS = [[0, 2], [], [5, 1, 3]]


def arrays(n=6):
    return {"x": np.arange(4 * n, dtype=np.uint8).reshape(n, 2, 2), "y": np.arange(n) % 3}


def build(rows, n=6):
    return fd.FederatedData.from_indices(arrays(n), rows)


def test_clients_hold_their_rows_in_order():
    data = build(ROWS)
    assert len(data) == 3
    np.testing.assert_array_equal(data.sizes, [2, 0, 3])
    np.testing.assert_array_equal(data.indices, [0, 2, 5, 1, 3])
    np.testing.assert_array_equal(data.offsets, [0, 2, 2, 5])
    for client, rows in enumerate(ROWS):
        for name, array in arrays().items():
            np.testing.assert_array_equal(data.client(client)[name], array[np.array(rows, int)])
    assert data.client(1)["x"].shape == (0, 2, 2)


def test_dtypes_are_kept_or_narrowed():
    given_arrays = {
        "byte": np.zeros(2, np.uint8), "flag": np.zeros(2, bool), "double": np.zeros(2),
        "half": jnp.zeros(2, jnp.bfloat16), "long": np.array([2**31 - 1, -(2**31)]),
    }  # fmt: skip
    data = fd.FederatedData.from_indices(given_arrays, [[0], [1]])
    dtypes = [str(array.dtype) for array in data.arrays.values()]
    assert dtypes == ["uint8", "bool", "float32", "bfloat16", "int32"]
    np.testing.assert_array_equal(data.arrays["long"], given_arrays["long"])
    assert data.indices.dtype == data.offsets.dtype == data.sizes.dtype == jnp.int32


def test_64_bit_numbers_are_kept_with_64_bit_jax(x64):
    big = np.array([2**40, -(2**40)])
    data = fd.FederatedData.from_indices({"n": big, "r": np.ones(2) / 3}, [[0], [1]])
    np.testing.assert_array_equal(data.arrays["n"], big)
    assert data.arrays["r"].dtype == jnp.float64
    assert data.indices.dtype == data.offsets.dtype == jnp.int32


def test_later_writes_to_the_input_change_nothing():
    # JAX can share only memory that starts on a multiple of 64 bytes.
    memory = np.zeros(4096 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    source = memory[start : start + 4096].view(np.float32)
    rows = np.zeros(3, np.int32)
    data = fd.FederatedData.from_indices({"x": source}, [rows])
    source[:] = 1
    rows[:] = 7
    assert not data.client(0)["x"].any()


def test_is_an_argument_of_compiled_functions():
    @jax.jit
    def total(data):
        return data, data.arrays["x"].astype(jnp.int32).sum(), data.sizes * len(data)

    data, number, sizes = total(build(ROWS))
    assert isinstance(data, fd.FederatedData) and number == np.arange(24).sum()
    np.testing.assert_array_equal(sizes, [6, 0, 9])


def test_no_other_client_exists():
    data = fd.FederatedData.from_indices({"x": np.arange(10)}, list(np.arange(10)[:, None]))
    for client in (0, 9, np.int32(4)):
        assert data.client(client)["x"].tolist() == [client]
    for client in (-1, 10, True, 1.0, "1", None):
        message = f"client: expected an integer from 0 to 9, found {client!r}"
        refused(message, data.client, client, kind=IndexError)


ONE = {"x": np.zeros(3)}
VECTOR = "expected a 1-D integer array, found"


@pytest.mark.parametrize(("bad_arrays", "rows", "message"), [
    ({}, [[0]], "arrays: expected a dict of at least one array, found an empty one"),
    ([1, 2], [[0]], "arrays: expected a dict of at least one array, found list"),
    ({**ONE, "y": np.zeros(4)}, [[0]], "arrays: expected equal lengths, found {'x': 3, 'y': 4}"),
    ({"x": 1.0}, [[0]], "array 'x': expected a leading sample axis, found a scalar"),
    ({"x": np.zeros((0, 3))}, [[]], "arrays: expected 1 to 2147483647 rows, found 0"),
    ({"x": np.array(["a"])}, [[0]], "array 'x': expected bools ..., found dtype <U1"),
    ({"x": np.array([1, 2**31])}, [[0]],
     "array 'x': expected values of int32 ..., found 1 to 2147483648"),
    (ONE, [], "indices: expected at least one client, found none"),
    (ONE, [[0], [1, 3]], "indices of client 1: expected rows 0 to 2, found 3"),
    (ONE, [[0], [], [2, -1]], "indices of client 2: expected rows 0 to 2, found -1"),
    (ONE, [np.uint64([2**64 - 1])], "... 0: expected rows 0 to 2, found 18446744073709551615"),
    (ONE, [[0], [1.0]], f"indices of client 1: {VECTOR} float64 (1,)"),
    (ONE, [[True]], f"indices of client 0: {VECTOR} bool (1,)"),
    (ONE, [[[0, 1]]], f"indices of client 0: {VECTOR} int64 (1, 2)"),
])  # fmt: skip
def test_bad_input_is_refused_in_one_line(bad_arrays, rows, message):
    refused(message, fd.FederatedData.from_indices, bad_arrays, rows)


def flat(rows):
    return np.concatenate([np.array(own, int) for own in rows]), np.cumsum([0, *map(len, rows)])


def test_from_offsets_is_from_indices_on_the_host():
    source = arrays()
    indices, offsets = (a.astype(np.int32) for a in flat(ROWS))
    data = fd.FederatedData.from_offsets(source, indices, offsets)
    for ours, theirs in zip(*map(jax.tree.leaves, (data, build(ROWS))), strict=True):
        assert type(ours) is np.ndarray
        np.testing.assert_array_equal(ours, theirs)
    assert data.arrays["x"] is source["x"]
    assert data.indices is indices and data.offsets is offsets
    wide = fd.FederatedData.from_offsets(source, *flat(ROWS))
    assert wide.indices.dtype == wide.offsets.dtype == np.int32


ASCENDING = "offsets: expected at least 2, ascending from 0 to {}, the length of indices, found "


@pytest.mark.parametrize(("indices", "offsets", "message"), [
    ([0, 1], [0, 1], ASCENDING.format(2) + "2 numbers, 0 to 1"),
    ([0, 1], [1, 2], ASCENDING.format(2) + "2 numbers, 1 to 2"),
    ([0, 1], [0, 2, 1, 2], ASCENDING.format(2) + "4 numbers, 0 to 2"),
    ([0], [0], ASCENDING.format(1) + "1 numbers, 0 to 0"),
    (np.zeros(0, int), np.zeros(0, int), ASCENDING.format(0) + "0 numbers, nothing"),
    ([0, 1, 3], [0, 1, 1, 3], "indices of client 2: expected rows 0 to 2, found 3"),
    ([-1, 1], [0, 0, 2], "indices of client 1: expected rows 0 to 2, found -1"),
    ([0.0], [0, 1], f"indices: {VECTOR} float64 (1,)"),
    ([0], [[0, 1]], f"offsets: {VECTOR} int64 (1, 2)"),
])  # fmt: skip
def test_offsets_that_do_not_fit_are_refused(indices, offsets, message):
    refused(message, fd.FederatedData.from_offsets, ONE, indices, offsets)


row_lists = st.lists(st.lists(st.integers(0, 8)), min_size=1, max_size=6)


@given(row_lists, st.lists(st.integers(0, 5)), st.integers(0, 4))
def test_only_keeps_these_clients_and_empties_the_others(rows, clients, spare):
    """From data on the host and on a device."""
    clients = np.array([c % len(rows) for c in clients], int)
    host = fd.FederatedData.from_offsets(arrays(9), *flat(rows))
    data = build(rows, 9) if spare % 2 else host
    total = sum(len(rows[c]) for c in set(clients))
    for padded in (None, max(total, 1) + spare):
        piece = data.only(clients, padded)
        assert len(piece) == len(rows)
        assert piece.indices.shape == piece.arrays["y"].shape == (padded or max(total, 1),)
        assert piece.indices.dtype == piece.offsets.dtype == np.int32
        for client, own in enumerate(rows):
            expected = np.array(own if client in clients else [], int)
            for name, array in arrays(9).items():
                np.testing.assert_array_equal(piece.client(client)[name], array[expected])


def test_only_narrows_as_a_device_does():
    source = {"n": np.array([7, 2**40]), "r": np.array([0.1, 0.2])}
    data = fd.FederatedData(source, np.array([0, 1]), np.array([0, 1, 2]))
    piece = data.only([0])
    assert piece.arrays["n"].dtype == np.int32 and piece.arrays["r"].dtype == np.float32
    message = "array 'n': expected values of int32 ..., found 7 to 1099511627776"
    refused(message, data.only, [0, 1])


@pytest.mark.parametrize(("clients", "rows", "message"), [
    ([3], None, "clients: expected 0 to 2, found 3 to 3"),
    ([-1, 1], None, "clients: expected 0 to 2, found -1 to 1"),
    ([0.5], None, f"clients: {VECTOR} float64 (1,)"),
    ([0, 2], 4, "rows: expected 5 (as many as these clients have) to 2147483647, found 4"),
    ([1], 0, "rows: expected 1 ..., found 0"),
    ([1], 2.0, "rows: expected 1 ..., found 2.0"),
])  # fmt: skip
def test_only_refuses(clients, rows, message):
    refused(message, build(ROWS).only, clients, rows)


def test_two_billion_rows_of_350_000_clients_need_no_object_per_client():
    clients, total = 350_000, 2**31 + 5  # offsets of more than 32 bits
    offsets = np.linspace(0, total, clients + 1).astype(np.int64)
    rows = np.broadcast_to(np.int32(2), total)  # as long as the real thing, and 4 bytes
    named = np.arange(0, clients, 5000)
    tracemalloc.start()
    data = fd.FederatedData.from_offsets({"x": np.arange(3)}, rows, offsets)
    _, peak_built = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    piece = data.only(named)
    _, peak_cut = tracemalloc.get_traced_memory()
    objects = sum(stat.count for stat in tracemalloc.take_snapshot().statistics("filename"))
    tracemalloc.stop()
    np.testing.assert_array_equal(data.offsets, offsets)
    assert piece.offsets.dtype == np.int32 and (piece.client(345_000)["x"] == 2).all()
    assert piece.sizes.sum() == np.diff(offsets)[named].sum()
    assert objects < 1000
    # A few arrays as long as the offsets (2.8 MB), and as the rows of 70 clients (3.4 MB).
    assert peak_built < 10e6 and peak_cut < 30e6


def test_labels_outside_the_range_are_refused_with_value_and_count():
    fd.check_labels(np.array([0, 9, 3], np.uint8), 10, "toy")
    expected = "labels of toy: expected 0 to 9, found label "
    refused(expected + "11 (3 times)", fd.check_labels, np.array([0, 11, 11, 4, 11]), 10, "toy")
    two = expected + "-1 (1 times; 1 other values are illegal too)"
    refused(two, fd.check_labels, np.array([12, -1]), 10, "toy")
    refused(f"labels of toy: {VECTOR} float64 (1,)", fd.check_labels, np.array([0.0]), 10, "toy")
