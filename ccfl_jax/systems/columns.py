"""Sorting the uploads of a round in every coordinate."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm.tree_util import over

# Up to so many rows a sorting network is up to a hundred times faster on a CPU than XLA's sort of
# many short columns: 3 against 250 ms for 32 rows of 100,000. For 64 it takes 8 s to compile.
_FEW = 32


def of_ordered(rows: jax.Array, counted: jax.Array, weight: jax.Array) -> jax.Array:
    """The sum over places of `weight` `[slots]` times the rows in order, coordinate by coordinate.

    `rows` `[slots, ...]` are in ascending order, those not counted behind all others; where a
    weight is 0 they take no part.
    """
    rows = jnp.where(over(counted, rows), rows, jnp.inf)
    if len(rows) <= _FEW:
        return _by_network(list(rows), weight)
    ordered = jnp.where(over(weight > 0, rows), jnp.sort(rows, axis=0), 0)
    return _sum(ordered * over(weight, rows).astype(rows.dtype))


def of_nearest(
    rows: jax.Array, counted: jax.Array, center: jax.Array, number: jax.Array
) -> jax.Array:
    """The mean of the `number` rows that are nearest to `center` `[...]`, coordinate by coordinate;
    of all as near as the last of them where there are more."""
    is_last = (jnp.arange(len(rows), dtype=jnp.int32) == number - 1).astype(float)
    if len(rows) > _FEW:
        far = jnp.where(over(counted, rows), jnp.abs(rows - center[None]), jnp.inf)
        near = (far <= of_ordered(far, counted, is_last)[None]) & over(counted, rows)
        share = 1 / jnp.maximum(_sum(near.astype(rows.dtype)), 1)
        return _sum(jnp.where(near, rows * share[None], 0))
    pairs = [*zip(counted, rows, strict=True)]
    far = [jnp.where(own, jnp.abs(row - center), jnp.inf) for own, row in pairs]
    last = _by_network(far, is_last)
    near = [(f <= last) & own for f, own in zip(far, counted, strict=True)]
    share = 1 / jnp.maximum(_sum([one.astype(rows.dtype) for one in near]), 1)
    return _sum([jnp.where(one, a * share, 0) for one, a in zip(near, rows, strict=True)])


def of_the_middle(count: jax.Array, slots: int) -> jax.Array:
    """The weights `[slots]` with which `of_ordered` is the median of `count` rows."""
    place = jnp.arange(slots, dtype=jnp.int32)
    halves = (place == (count - 1) // 2).astype(float) + (place == count // 2).astype(float)
    return jnp.where(count > 0, halves / 2, 0)


def _by_network(rows: list[jax.Array], weight: jax.Array) -> jax.Array:
    own = [*rows]
    for i, j in _network(len(own)):
        own[i], own[j] = jnp.minimum(own[i], own[j]), jnp.maximum(own[i], own[j])
    # Row after row: a network whose rows are stacked takes XLA twenty times as long.
    parts = zip(weight.astype(rows[0].dtype), own, strict=True)
    return _sum([jnp.where(part > 0, part * row, 0) for part, row in parts])


def _sum(rows: jax.Array | list[jax.Array]) -> jax.Array:
    """The sum of rows; XLA for CPUs adds up the columns of an array some ten times slower."""
    if len(rows) > _FEW:
        rows = jnp.asarray(rows)
        return jnp.tensordot(jnp.ones(len(rows), rows.dtype), rows, 1, precision="highest")
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


def _network(count: int) -> Iterator[tuple[int, int]]:
    """The pairs that Batcher's odd-even merge sort puts in order (Knuth, 5.2.2 M)."""
    first = 1 << (count - 1).bit_length() >> 1
    p = first
    while p:
        q, r, d = first, 0, p
        while d:
            yield from ((i, i + d) for i in range(count - d) if i & p == r)
            d, q, r = q - p, q >> 1, p
        p >>= 1
