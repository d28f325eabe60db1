"""FederatedData and the shared checks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(st.lists(st.lists(st.integers(0, 8)), min_size=1, max_size=6))
def test_any_row_lists_come_back(rows):
    data = build(rows, n=9)
    assert len(data) == len(rows)
    for client, expected in enumerate(rows):
        np.testing.assert_array_equal(data.client(client)["y"], np.array(expected, int) % 3)


def test_many_clients_cost_two_arrays():
    rows = np.split(np.zeros(50_000, np.int64), 25_000)
    data = build(rows)
    assert len(data) == 25_000
    # One leaf per array, then the row numbers and the offsets: no Python object per client.
    assert [leaf.shape for leaf in jax.tree.leaves(data)[2:]] == [(50_000,), (25_001,)]


def test_dtypes_are_kept_or_narrowed():
    given_arrays = {
        "byte": np.zeros(2, np.uint8),
        "flag": np.zeros(2, bool),
        "half": jnp.zeros(2, jnp.bfloat16),
        "double": np.zeros(2, np.float64),
        "long": np.array([2**31 - 1, -(2**31)]),
    }
    data = fd.FederatedData.from_indices(given_arrays, [[0], [1]])
    dtypes = {name: str(array.dtype) for name, array in data.arrays.items()}
    assert dtypes == {
        "byte": "uint8",
        "flag": "bool",
        "half": "bfloat16",
        "double": "float32",
        "long": "int32",
    }
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
        ends = data.offsets[1:]
        assert len(data) == 3
        return data.arrays["x"].astype(jnp.int32).sum(), data.sizes, ends

    data = build(ROWS)
    number, sizes, _ = total(data)
    assert number == np.arange(24).sum()
    np.testing.assert_array_equal(sizes, [2, 0, 3])
    assert isinstance(jax.tree.map(lambda leaf: leaf, data), fd.FederatedData)


@pytest.mark.parametrize("client", [0, 9, np.int32(4)])
def test_first_and_last_client_exist(client):
    data = fd.FederatedData.from_indices({"x": np.arange(10)}, list(np.arange(10)[:, None]))
    assert data.client(client)["x"].tolist() == [client]


@pytest.mark.parametrize("client", [-1, 10, True, 1.0, "1", None])
def test_no_other_client_exists(client):
    data = fd.FederatedData.from_indices({"x": np.arange(10)}, list(np.arange(10)[:, None]))
    with pytest.raises(IndexError, match=r"^client must be an integer in 0\.\.9, found [^\n]*$"):
        data.client(client)


ONE = {"x": np.zeros(3)}


@pytest.mark.parametrize(
    ("bad_arrays", "rows", "message"),
    [
        ({}, [[0]], "at least one array, found an empty one"),
        ([1, 2], [[0]], "found list"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, [[0]], "{'x': 3, 'y': 4}"),
        ({"x": 1.0}, [[0]], "'x' must have a leading sample axis"),
        ({"x": np.zeros((0, 3))}, [[]], "rows, found 0"),
        ({"x": np.array(["a"])}, [[0]], "'x' must hold numbers or bools, found dtype <U1"),
        ({"x": np.array([None])}, [[0]], "found dtype object"),
        ({"x": np.array([1, 2**31])}, [[0]], "1..2147483648; legal: those of int32"),
        ({"x": np.array([2**32], np.uint64)}, [[0]], "those of uint32"),
        (ONE, [], "at least one client, found none"),
        (ONE, [[0], [1, 3]], "client 1: row 3; legal: 0..2"),
        (ONE, [[0], [], [2, -1]], "client 2: row -1; legal: 0..2"),
        (ONE, [[2**62]], f"client 0: row {2**62}"),
        (ONE, [np.array([2**64 - 1], np.uint64), [1]], f"client 0: row {2**64 - 1}"),
        (ONE, [[0], [1.0]], "client 1 must be a 1-D integer array, found shape (1,) and dtype f"),
        (ONE, [[True]], "found shape (1,) and dtype bool"),
        (ONE, [[[0, 1]]], "found shape (1, 2)"),
        (ONE, [0, 1], "found shape ()"),
    ],
)
def test_bad_input_is_refused_in_one_line(bad_arrays, rows, message):
    with pytest.raises(ValueError) as caught:
        fd.FederatedData.from_indices(bad_arrays, rows)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_outside_the_range_are_refused_with_value_and_count():
    fd.check_labels(np.array([0, 9, 3], np.uint8), 10, "toy")
    with pytest.raises(ValueError, match=r"labels of toy: label 11 occurs 3 times; legal: 0\.\.9$"):
        fd.check_labels(np.array([0, 11, 11, 4, 11]), 10, "toy")
    with pytest.raises(ValueError, match=r"label -1 occurs 1 times.*\(1 other values"):
        fd.check_labels(np.array([12, -1]), 10, "toy")
    with pytest.raises(ValueError, match=r"1-D integer array, found shape .* float64"):
        fd.check_labels(np.array([0.0]), 10, "toy")
