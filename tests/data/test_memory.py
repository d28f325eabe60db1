"""Memory: how often samples are copied on their way to the devices."""

import tracemalloc
from contextlib import contextmanager

import jax
import numpy as np
import pytest

import ccfl_jax as ccfl
from ccfl_jax.data import arrays
from experiments.training import devices

ROWS, WIDTH = 200_000, 40
NBYTES = ROWS * WIDTH * 4  # 32 MB of float32


@contextmanager
def at_most(nbytes):
    """NumPy's memory within grows by no more; XLA's is not counted."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < nbytes, f"{peak / NBYTES:.2f} times the samples"


def pointers(array):
    return {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}


def test_a_file_is_read_into_one_copy(tmp_path):
    x, y = np.ones((ROWS, WIDTH), np.float32), np.arange(ROWS) % 3
    path = tmp_path / "own.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:5], y_test=y[:5], client_train=np.arange(ROWS))
    with at_most(1.6 * NBYTES):  # and labels and clients, of 64 bits in the file
        train, _, _ = ccfl.data.load_npz(path)
    np.testing.assert_array_equal(train["client"], np.arange(ROWS))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clients_data_are_one_copy_of_the_users(dtype):
    x = np.ones((ROWS, WIDTH), dtype)
    with at_most(1.3 * NBYTES):
        data = ccfl.FederatedData.from_indices({"x": x}, [np.arange(ROWS)])
    x[:] = 2
    assert data.arrays["x"].dtype == np.float32 and data.arrays["x"][-1, -1] == 1


def test_devices_of_a_cpu_read_one_copy():
    mesh, x = devices.mesh(2), np.ones((ROWS, WIDTH), np.float64)
    with at_most(1.1 * NBYTES):
        shared = devices.share({"x": x}, mesh)["x"]
        jax.block_until_ready(shared)
    assert len(shared.addressable_shards) == 2 and len(pointers(shared)) == 1
    x[:] = 2
    assert shared.dtype == np.float32 and float(shared.sum()) == ROWS * WIDTH


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (7, 3)])
@pytest.mark.parametrize("dtype", ["bool", "uint8", ">i4", "<f8", "bfloat16"])
def test_aligned_copies_are_what_jax_makes(shape, dtype):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(np.dtype(dtype))
    found = arrays.aligned(array)
    assert not found.size or found.ctypes.data % 64 == 0
    assert not np.shares_memory(found, array)
    expected = np.asarray(jax.numpy.asarray(array.astype(array.dtype.newbyteorder("="))))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_rows_are_found_in_every_block(monkeypatch):
    monkeypatch.setattr(arrays, "_BLOCK", 5 * 2 * 4)  # five rows
    x = np.zeros((12, 2), np.float32)
    x[[0, 4, 5, 11], [0, 1, 1, 0]] = np.nan
    np.testing.assert_array_equal(arrays.rows_where(np.isnan, x), [0, 4, 5, 11])
    assert (
        arrays.rows_where(np.isnan, x[:0]).size == arrays.rows_where(np.isnan, x[:, :0]).size == 0
    )
