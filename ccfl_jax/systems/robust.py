"""Robust aggregation: rules that look at all uploads at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm.aggregators import of_all
from ccfl_jax.algorithm.types import Aggregate, Params


def median() -> Aggregate:
    """The median of every coordinate (Yin et al., 2018)."""

    def middle(rows: jax.Array, counted: jax.Array) -> jax.Array:
        count = counted.sum()
        return (_ranked(rows, counted, (count - 1) // 2) + _ranked(rows, counted, count // 2)) / 2

    return _of_coordinates(middle)


def trimmed_mean(share: float = 0.2) -> Aggregate:
    """The mean of every coordinate without its `share` largest and smallest (Yin et al., 2018)."""

    def inner(rows: jax.Array, counted: jax.Array) -> jax.Array:
        count = counted.sum()
        cut = jnp.floor(share * count + 1e-5).astype(jnp.int32)
        place = jnp.arange(len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
        kept = (place >= cut) & (place < count - cut)
        return jnp.where(kept, _sorted(rows, counted), 0).sum(axis=0) / (count - 2 * cut)

    return _of_coordinates(inner)


def krum(byzantine: int, chosen: int = 1) -> Aggregate:
    """The mean of the `chosen` uploads nearest to their m - byzantine - 2 nearest others
    (Blanchard et al., 2017; more than one is Multi-Krum)."""

    def nearest(uploads: Params, counted: jax.Array) -> Params:
        leaves = [a.reshape(len(a), -1) for a in jax.tree.leaves(uploads)]
        gram = sum(jnp.matmul(a, a.T, precision="highest") for a in leaves)
        squares = jnp.diag(gram)
        far = squares[:, None] + squares[None] - 2 * gram
        others = counted[:, None] & counted[None] & ~jnp.eye(len(counted), dtype=bool)
        far = jnp.sort(jnp.where(others, jnp.maximum(far, 0), jnp.inf), axis=1)
        near = jnp.arange(len(counted)) < jnp.maximum(counted.sum() - byzantine - 2, 1)
        near = near[None] & jnp.isfinite(far)  # an upload may be alone
        score = jnp.where(counted, jnp.where(near, far, 0).sum(axis=1), jnp.inf)
        best = jnp.argsort(score)[:chosen]
        weight = counted[best] / jnp.maximum(counted[best].sum(), 1)
        return jax.tree.map(
            lambda a: jnp.tensordot(weight.astype(a.dtype), a[best], 1, precision="highest"),
            uploads,
        )

    return of_all(nearest)


def _of_coordinates(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Aggregate:
    return of_all(lambda uploads, counted: jax.tree.map(lambda a: function(a, counted), uploads))


def _ranked(rows: jax.Array, counted: jax.Array, rank: jax.Array) -> jax.Array:
    return jnp.where(counted.any(), _sorted(rows, counted)[jnp.maximum(rank, 0)], 0)


def _sorted(rows: jax.Array, counted: jax.Array) -> jax.Array:
    """`rows` `[slots, ...]`, every coordinate in order; those not counted last."""
    shape = [-1] + [1] * (rows.ndim - 1)
    rows = jnp.where(counted.reshape(shape), rows, jnp.inf)
    if len(rows) > 32:
        return jnp.sort(rows, axis=0)
    # XLA's sort of many short columns is some hundred times slower on a CPU: swap neighbours.
    one = list(rows)
    for i in range(len(one)):
        for j in range(i % 2, len(one) - 1, 2):
            a, b = one[j : j + 2]
            one[j : j + 2] = jnp.minimum(a, b), jnp.maximum(a, b)
    return jnp.stack(one)
