"""The clients' data: arrays shared by all, and each client's list of row numbers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax.checks import integer_vector, is_whole, unmasked
from ccfl_jax.data.arrays import (
    Array,
    aligned,
    formed,
    held_dtype,
    int32_array,
    native,
    num_rows,
    samples,
    warn_of_faults,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class FederatedData:
    """Samples of all clients; a pytree, so it is passed to compiled functions as an argument.

    Client i owns the rows `indices[offsets[i] : offsets[i + 1]]` of every array. Nothing is held
    per client beyond its rows' numbers and one offset. `len(data)` is the number of clients.

    Attributes:
        arrays: name -> array [N, ...], any dtype; row n of every array is sample n.
        indices: int32 [total], the clients' row numbers one client after another.
        offsets: int32 [clients + 1], from 0 to total; int64 from 2**31 rows on, which have to be
            streamed.

    Examples:
        >>> arrays = {"x": np.arange(12.0).reshape(6, 2), "y": np.array([0, 1, 0, 1, 0, 1])}
        >>> data = ccfl.FederatedData.from_indices(arrays, [[0, 1, 2], [3], [4, 5]])
        >>> len(data), data.sizes.tolist()
        (3, [3, 1, 2])
        >>> print(data.client(2)["x"])  # the samples of one client
        [[ 8.  9.]
         [10. 11.]]
    """

    arrays: dict[str, Any]
    indices: jax.Array | np.ndarray
    offsets: jax.Array | np.ndarray

    @classmethod
    def from_indices(
        cls,
        arrays: Mapping[str, Array],
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
                other than numbers; a 64-bit number does not fit in 32 bits; a list of rows is not
                1-D or not of integers; a row is outside 0..N-1; all clients together have 2**31
                rows or more.
        """
        arrays = samples(arrays)
        warn_of_faults(arrays)
        flat, sizes = _flatten(indices, num_rows(arrays))
        offsets = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        return cls(
            arrays={name: _on_device(array) for name, array in arrays.items()},
            indices=jnp.asarray(flat.astype(np.int32)),
            offsets=jnp.asarray(offsets),
        )

    @classmethod
    def from_offsets(
        cls, arrays: Mapping[str, Array], indices: np.ndarray, offsets: np.ndarray
    ) -> Self:
        """Builds the container from all row lists in one array; everything stays on the host.

        For many clients and for memory-mapped arrays: there is no object per client, and arrays are
        neither read nor copied, nor are indices and offsets of the right dtype (`indices` is read
        once). Later writes to them change the data.

        Args:
            arrays: name -> array [N, ...].
            indices: integers [total] in 0..N-1, the clients' rows one client after another.
            offsets: integers [clients + 1], ascending from 0 to total.

        Raises:
            ValueError: for `arrays` as in `from_indices`; indices or offsets are not vectors of
                integers;
                offsets do not ascend from 0 to total; a row is outside 0..N-1.
        """
        arrays = samples(arrays, read=False)
        warn_of_faults(arrays)
        rows = num_rows(arrays)
        indices, offsets = integer_vector("indices", indices), integer_vector("offsets", offsets)
        _check_lists(indices, offsets, rows, len(indices))
        return cls(
            arrays=arrays,
            indices=indices.astype(np.int32, copy=False),
            offsets=offsets.astype(np.int32 if len(indices) < 2**31 else np.int64, copy=False),
        )

    def only(self, clients: np.ndarray | Sequence[int], rows: int | None = None) -> Self:
        """The samples of some clients, gathered in host memory; all others become empty.

        Clients keep their ids, and so their randomness. Of a memory-mapped array only their rows
        are read.

        Args:
            clients: ids to keep, integers in 0..clients-1; duplicates count once.
            rows: rows of the result, so that several results have one shape; by default those of
                these clients, at least one. Further rows repeat row 0 and belong to no client.

        Returns:
            NumPy arrays [rows, ...], row after row in the order of the clients' numbers; indices
            int32 [rows], offsets int32 [clients + 1]. 64-bit numbers become 32-bit ones unless
            `jax_enable_x64` is set.

        Raises:
            ValueError: a client that does not exist, fewer `rows` than the clients have, or a
                number that does not fit in 32 bits.
        """
        kept = np.unique(integer_vector("clients", clients))
        if kept.size and not 0 <= kept[0] <= kept[-1] < len(self):
            raise ValueError(
                f"clients: expected 0 to {len(self) - 1}, found {kept[0]} to {kept[-1]}"
            )
        offsets = np.asarray(self.offsets)
        starts, sizes = offsets[kept], np.zeros(len(self), np.int64)
        sizes[kept] = offsets[kept + 1] - starts
        ends = np.cumsum(sizes[kept])
        total = int(ends[-1]) if kept.size else 0
        rows = max(total, 1) if rows is None else rows
        if not is_whole(rows) or not max(total, 1) <= rows < 2**31:
            raise ValueError(
                f"rows: expected {max(total, 1)} (as many as these clients have) to {2**31 - 1}, "
                f"found {rows!r}"
            )
        places = np.repeat(starts - (ends - sizes[kept]), sizes[kept]) + np.arange(total)
        source = np.zeros(rows, np.int32)
        source[:total] = np.asarray(self.indices)[places]
        whole = formed(self.arrays)
        arrays = samples({name: np.asarray(a)[source] for name, a in whole.items()})
        return type(self)(
            arrays={name: a.astype(held_dtype(a), copy=False) for name, a in arrays.items()},
            indices=np.arange(rows, dtype=np.int32),
            offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        )

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def sizes(self) -> jax.Array | np.ndarray:
        """Number of samples of each client, int32 [clients]."""
        return self.offsets[1:] - self.offsets[:-1]

    def client(self, i: int) -> dict[str, np.ndarray]:
        """Returns the samples of client `i`, as NumPy arrays [n_i, ...].

        Raises:
            IndexError: `i` is not an integer in 0..clients-1; a negative one does not wrap around.
        """
        if not is_whole(i) or not 0 <= i < len(self):
            raise IndexError(f"client: expected an integer from 0 to {len(self) - 1}, found {i!r}")
        start, stop = np.asarray(self.offsets)[i : i + 2]
        rows = np.asarray(self.indices)[start:stop]
        return {name: native(np.asarray(array)[rows]) for name, array in self.arrays.items()}


def converted(data: FederatedData) -> FederatedData:
    """The data as a compiled program takes them, however they were built.

    Raises:
        ValueError: for arrays as in `from_indices`, also those that are on disk; for indices or
            offsets that are no integers or, on the host, outside their range.
    """
    arrays = samples(data.arrays)
    indices, offsets = int32_array("indices", data.indices), int32_array("offsets", data.offsets)
    if isinstance(indices, np.ndarray) and isinstance(offsets, np.ndarray) and indices.ndim == 1:
        _check_lists(indices, offsets, num_rows(arrays))  # of one run, not of trials
    return FederatedData(arrays, indices, offsets)


def _check_lists(indices: np.ndarray, offsets: np.ndarray, rows: int, least_end: int = 0) -> None:
    """Raises ValueError for offsets that do not ascend from 0 to the length of `indices` or, with
    rows that are no client's, `least_end`; and for a row outside 0..rows-1."""
    wide, most = offsets.astype(np.int64), len(indices)
    fits = len(wide) > 1 and wide[0] == 0 and least_end <= wide[-1] <= most
    if not fits or (np.diff(wide) < 0).any():
        ends = f"{wide[0]} to {wide[-1]}" if wide.size else "nothing"
        raise ValueError(
            f"offsets: expected at least 2, ascending from 0 to {most}, the length of indices, "
            f"found {len(wide)} numbers, {ends}"
        )
    if indices.size and not 0 <= indices.min() <= indices.max() < rows:
        place = np.flatnonzero((indices < 0) | (indices >= rows))[0]
        client = np.searchsorted(wide[1:], place, side="right")
        raise ValueError(_no_row(int(client), int(indices[place]), rows))


def _on_device(array: Array) -> jax.Array:
    # A copy: memory shared with the caller would let a later write change the data.
    return array if isinstance(array, jax.Array) else jax.device_put(aligned(array))


def _flatten(indices: Sequence, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns all row numbers in one array, and the clients' sizes, or raises ValueError."""
    lists = [unmasked(f"indices of client {client}", rows) for client, rows in enumerate(indices)]
    if not lists:
        raise ValueError("indices: expected at least one client, found none")
    for client, rows in enumerate(lists):
        # An empty Python list becomes a float array, and holds no float.
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise ValueError(
                f"indices of client {client}: expected a 1-D integer array, found {rows.dtype} "
                f"{rows.shape}"
            )
    sizes = np.array([rows.size for rows in lists], np.int64)
    if sizes.sum() >= 2**31:
        raise ValueError(f"indices: expected fewer than 2**31 rows in all, found {sizes.sum()}")
    # int64 for every list: NumPy would merge int64 and uint64 into floats.
    flat = np.concatenate(lists, dtype=np.int64, casting="unsafe")
    wrong = np.flatnonzero((flat < 0) | (flat >= num_rows))
    if wrong.size:
        ends = np.cumsum(sizes)
        client = int(np.searchsorted(ends, wrong[0], side="right"))
        value = lists[client][wrong[0] - (ends[client] - sizes[client])]
        raise ValueError(_no_row(client, int(value), num_rows))
    return flat, sizes


def _no_row(client: int, row: int, num_rows: int) -> str:
    return f"indices of client {client}: expected rows 0 to {num_rows - 1}, found {row}"
