"""The clients' data: arrays shared by all, and each client's list of row numbers."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax.data.checks import is_integer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class FederatedData:
    """Samples of all clients; a pytree, so it is passed to compiled functions as an argument.

    Client i owns the rows `indices[offsets[i] : offsets[i + 1]]` of every array. Nothing is held
    per client beyond its rows' numbers and one offset. `len(data)` is the number of clients.

    Attributes:
        arrays: name -> array [N, ...], any dtype; row n of every array is sample n.
        indices: int32 [total], the clients' row numbers one client after another.
        offsets: int32 [clients + 1], from 0 to total.
    """

    arrays: dict[str, jax.Array]
    indices: jax.Array
    offsets: jax.Array

    @classmethod
    def from_indices(
        cls,
        arrays: dict[str, np.ndarray | jax.Array],
        indices: Sequence[np.ndarray | Sequence[int]],
    ) -> Self:
        """Builds the container from row lists, such as a partitioner returns.

        Args:
            arrays: name -> array [N, ...]. The dtype is kept (uint8 stays uint8), except that
                64-bit numbers become 32-bit ones unless `jax_enable_x64` is set.
            indices: one 1-D integer array per client, with values in 0..N-1. A client may be
                empty, and a row may belong to several clients or to none.

        Raises:
            ValueError: there is no array, client or row; the arrays differ in N or hold something
                other than numbers; an integer does not fit in 32 bits; a list of rows is not 1-D
                or not of integers; a row is outside 0..N-1; all clients together have 2**31 rows
                or more.
        """
        num_rows = _check_arrays(arrays)
        flat, sizes = _flatten(indices, num_rows)
        offsets = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        return cls(
            arrays={name: _on_device(array) for name, array in arrays.items()},
            indices=jnp.asarray(flat.astype(np.int32)),
            offsets=jnp.asarray(offsets),
        )

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def sizes(self) -> jax.Array:
        """Number of samples of each client, int32 [clients]."""
        return self.offsets[1:] - self.offsets[:-1]

    def client(self, i: int) -> dict[str, np.ndarray]:
        """Returns the samples of client `i`, as NumPy arrays [n_i, ...].

        Raises:
            IndexError: `i` is not an integer in 0..clients-1; a negative one does not wrap around.
        """
        if not is_integer(i) or not 0 <= i < len(self):
            raise IndexError(f"client must be an integer in 0..{len(self) - 1}, found {i!r}")
        start, stop = np.asarray(self.offsets)[i : i + 2]
        rows = np.asarray(self.indices)[start:stop]
        return {name: np.asarray(array)[rows] for name, array in self.arrays.items()}


def _on_device(array: np.ndarray | jax.Array) -> jax.Array:
    # jnp.array copies; memory shared with NumPy would let a later write change the data.
    return array if isinstance(array, jax.Array) else jnp.array(array)


def _check_arrays(arrays: dict[str, np.ndarray | jax.Array]) -> int:
    """Returns the number of rows N that all arrays share, or raises ValueError."""
    if not isinstance(arrays, dict) or not arrays:
        found = "an empty one" if isinstance(arrays, dict) else type(arrays).__name__
        raise ValueError(f"arrays must be a dict of at least one array, found {found}")
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    for name, array in arrays.items():
        if not shapes[name]:
            raise ValueError(f"array {name!r} must have a leading sample axis, found a scalar")
        _check_dtype(name, array)
    lengths = {name: shape[0] for name, shape in shapes.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"arrays must have one leading length, found {lengths}")
    num_rows = next(iter(lengths.values()))
    if not 1 <= num_rows < 2**31:
        raise ValueError(f"arrays must have 1..{2**31 - 1} rows, found {num_rows}")
    return num_rows


def _check_dtype(name: str, array: np.ndarray | jax.Array) -> None:
    """Raises ValueError unless JAX can hold the array's numbers."""
    if isinstance(array, jax.Array):
        return
    array = np.asarray(array)
    if not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == np.bool_):
        raise ValueError(f"array {name!r} must hold numbers or bools, found dtype {array.dtype}")
    held = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind not in "iu" or held == array.dtype or not array.size:
        return
    lowest, highest = array.min(), array.max()
    if lowest < np.iinfo(held).min or highest > np.iinfo(held).max:
        raise ValueError(
            f"array {name!r} has values {lowest}..{highest}; legal: those of {held} "
            "(or set jax_enable_x64)"
        )


def _flatten(indices: Sequence, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns all row numbers in one array, and the clients' sizes, or raises ValueError."""
    lists = [np.asarray(rows) for rows in indices]
    if not lists:
        raise ValueError("indices must hold at least one client, found none")
    for client, rows in enumerate(lists):
        # An empty Python list becomes a float array, and holds no float.
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise ValueError(
                f"indices of client {client} must be a 1-D integer array, "
                f"found shape {rows.shape} and dtype {rows.dtype}"
            )
    sizes = np.array([rows.size for rows in lists], np.int64)
    if sizes.sum() >= 2**31:
        raise ValueError(f"all clients together must have fewer than 2**31 rows: {sizes.sum()}")
    # int64 for every list: NumPy would merge int64 and uint64 into floats.
    flat = np.concatenate(lists, dtype=np.int64, casting="unsafe")
    illegal = np.flatnonzero((flat < 0) | (flat >= num_rows))
    if illegal.size:
        ends = np.cumsum(sizes)
        client = int(np.searchsorted(ends, illegal[0], side="right"))
        value = lists[client][illegal[0] - (ends[client] - sizes[client])]
        raise ValueError(f"indices of client {client}: row {value}; legal: 0..{num_rows - 1}")
    return flat, sizes
