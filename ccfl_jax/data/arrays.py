"""A user's arrays are checked and converted here, before any compiled program takes them."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax.checks import unmasked

Array = jax.Array | np.ndarray
# Bytes of an array that are checked at a time: what a check makes of them stays small.
_BLOCK = 2**22
_ALIGNED = 64  # what XLA wants of memory on a CPU, to use it as it is

Labels = Sequence[tuple[str, int, int]]  # name, least and largest integer of arrays of labels


def samples(arrays: Mapping[str, Any], read: bool = True) -> dict[str, Array]:
    """Arrays of samples as JAX can hold them: row n of every array is sample n.

    Args:
        arrays: name -> array [N, ...], or what NumPy makes one of.
        read: whether memory-mapped arrays are read; else they stay as they are, for later.

    Returns:
        The arrays, in this machine's byte order.

    Raises:
        ValueError: with the array's name: there is no array or no row; they differ in N; one holds
            something other than numbers, masked numbers, or a 64-bit number that does not fit in
            32 bits without `jax_enable_x64`.
    """
    found = formed(arrays)
    for name, array in found.items():
        if isinstance(array, jax.Array) or (isinstance(array, np.memmap) and not read):
            continue
        check_range(f"array {name!r}", array)
        found[name] = native(np.asarray(array))
    return found


def formed(arrays: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays as NumPy's or JAX's; ValueError as `samples`, but no number is looked at."""
    if not isinstance(arrays, Mapping) or not arrays:
        found = "an empty one" if isinstance(arrays, Mapping) else type(arrays).__name__
        raise ValueError(f"arrays: expected a dict of at least one array, found {found}")
    found = {
        name: array if isinstance(array, jax.Array) else _of_numbers(f"array {name!r}", array)
        for name, array in arrays.items()
    }
    for name, array in found.items():
        if not array.ndim:
            raise ValueError(f"array {name!r}: expected a leading sample axis, found a scalar")
    lengths = {name: len(array) for name, array in found.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"arrays: expected equal lengths, found {lengths}")
    rows = next(iter(lengths.values()))
    if not 1 <= rows < 2**31:
        raise ValueError(f"arrays: expected 1 to {2**31 - 1} rows, found {rows}")
    return found


def num_rows(arrays: Mapping[str, Array]) -> int:
    """N, the rows that arrays of samples `[N, ...]` share."""
    return len(next(iter(arrays.values())))


def int32_array(name: str, array: Any) -> Array:
    """Integers from 0 on as int32, or ValueError with their name."""
    array = array if isinstance(array, jax.Array) else unmasked(name, array)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected integers, found {array.dtype} {array.shape}")
    if isinstance(array, np.ndarray) and array.size and array.dtype != np.int32:
        lowest, highest = array.min(), array.max()
        if lowest < 0 or highest >= 2**31:
            raise ValueError(f"{name}: expected 0 to {2**31 - 1}, found {lowest} to {highest}")
    # Not unsigned: those wrap around where one is taken from another.
    return array.astype(np.int32, copy=False)


def held(name: str, tree: Any) -> Any:
    """A pytree whose NumPy arrays JAX can hold, in this machine's byte order.

    Raises:
        ValueError: with the name of a leaf that holds something other than numbers, masked ones,
            or a 64-bit number that does not fit in 32 bits without `jax_enable_x64`.
    """

    def leaf(path: tuple, value: Any) -> Any:
        if not isinstance(value, np.ndarray | str | bytes):
            return value
        own = jax.tree_util.keystr(path, simple=True, separator=".")
        own = f"{name}.{own}" if own else name
        value = _of_numbers(own, value)
        check_range(own, value)
        return native(value)

    return jax.tree_util.tree_map_with_path(leaf, tree)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that `jax.device_put` does not copy again on a CPU, in the dtype of a device.

    All devices of the process then read the same memory, so it must not be written to.
    """
    dtype = held_dtype(array)
    nbytes = array.size * dtype.itemsize
    memory = np.empty(nbytes + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    found = memory[start : start + nbytes].view(dtype).reshape(array.shape)
    found[...] = array
    return found


def native(tree: Any) -> Any:
    """A pytree whose NumPy arrays have this machine's byte order: JAX takes no other."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return value.astype(value.dtype.newbyteorder("="), copy=False)

    return jax.tree.map(leaf, tree)


def held_dtype(array: Array) -> np.dtype:
    """The dtype of the array on a device, where 64-bit numbers are 32-bit ones by default."""
    return jax.dtypes.canonicalize_dtype(array.dtype.newbyteorder("="))


def warn_of_faults(arrays: Mapping[str, Array], labels: Labels = (), stacklevel: int = 3) -> None:
    """Warns of each of `faults`."""
    for line in faults(arrays, labels):
        warnings.warn(line, stacklevel=stacklevel)


def faults(arrays: Mapping[str, Array], labels: Labels = ()) -> Iterator[str]:
    """A line, with a count and the first row, for each array with rows that cannot be used.

    Those are rows with nan or inf, and those with labels outside their range, `Task.labels`. An
    array on disk is not read.
    """
    ranges = {name: (least, most) for name, least, most in labels}
    for name, array in arrays.items():
        if isinstance(array, np.memmap):
            continue
        if jnp.issubdtype(array.dtype, jnp.inexact):
            if isinstance(array, jax.Array):
                rows = np.flatnonzero(_not_finite(array))
            else:
                rows = rows_where(lambda own: ~np.isfinite(own), array)
            yield from _faulty(name, rows, "finite numbers", "nan or inf")
        elif name in ranges:
            least, most = ranges[name]
            rows = rows_where(partial(_outside, least, most), np.asarray(array))
            yield from _faulty(name, rows, f"labels from {least} to {most}", "others")


def rows_where(bad: Callable[[np.ndarray], Any], array: np.ndarray) -> np.ndarray:
    """The numbers of rows where `bad(rows)`, bool of the rows' shape, is True of any number."""
    if not array.size:
        return np.zeros(0, np.int64)
    rows = max(1, _BLOCK // (array.nbytes // len(array)))
    found = [np.zeros(0, np.int64)]
    for first in range(0, len(array), rows):
        own = bad(array[first : first + rows])
        found.append(first + np.flatnonzero(own.reshape(len(own), -1).any(axis=1)))
    return np.concatenate(found)


def _outside(least: Any, most: Any, array: np.ndarray) -> np.ndarray:
    return (array < least) | (array > most)


@jax.jit
def _not_finite(array: jax.Array) -> jax.Array:
    """Which rows have nan or inf, bool `[N]`; only this leaves the device."""
    return (~jnp.isfinite(array)).any(axis=tuple(range(1, array.ndim)))


def _faulty(name: str, rows: np.ndarray, expected: str, found: str) -> Iterator[str]:
    """A line where there are any such rows."""
    if rows.size:
        yield (
            f"array {name!r}: expected {expected}, found {rows.size} rows with {found}, the first "
            f"is row {rows[0]}"
        )


def check_range(name: str, array: np.ndarray) -> None:
    """Raises ValueError for numbers that the dtype on a device does not hold."""
    held = held_dtype(array)
    if array.dtype.kind not in "iuf" or held.itemsize == array.dtype.itemsize or not array.size:
        return
    floats = array.dtype.kind == "f"
    bounds = np.finfo(held) if floats else np.iinfo(held)

    def wrong(own: np.ndarray) -> np.ndarray:
        outside = _outside(bounds.min, bounds.max, own)
        return outside & np.isfinite(own) if floats else outside

    if rows_where(wrong, np.atleast_1d(array)).size:
        counted = {"where": np.isfinite(array), "initial": 0.0} if floats else {}
        lowest, highest = array.min(**counted), array.max(**counted)
        raise ValueError(
            f"{name}: expected values of {held} (or jax_enable_x64), found {lowest} to {highest}"
        )


def _of_numbers(name: str, array: Any) -> np.ndarray:
    """What is not on the device as a NumPy array; one on disk stays there."""
    try:
        array = array if isinstance(array, np.memmap) else unmasked(name, array)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise ValueError(f"{name}: expected rows of one shape, found several") from None
    numbers = jnp.issubdtype(array.dtype, jnp.number) and array.dtype.char not in "gGm"
    if not (numbers or array.dtype == np.bool_):  # "g", "G": longer than 64 bits; "m": times
        raise ValueError(
            f"{name}: expected bools or numbers of up to 64 bits, found dtype {array.dtype}"
        )
    return array
