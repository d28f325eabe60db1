"""Lengths and distances of uploads, over all their arrays together.

Any finite number may be sent, also 1e20, whose square is infinite in float32: nothing here makes a
nan of it, which would end in the model.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm.tree_util import over


def squared_distances(uploads: Any) -> jax.Array:
    """`[slots, slots]`, from products of pairs: those below some 1e-7 of the squared lengths, of
    float32, are rounding; inf where a length is too large to be squared."""
    leaves = [a.reshape(len(a), -1) for a in jax.tree.leaves(uploads)]
    products = _total([jnp.matmul(a, a.T, precision="highest") for a in leaves])
    squares = jnp.diag(products)
    both = squares[:, None] + squares[None]
    far = jnp.maximum(both - (products + products.T), 0)  # symmetric, so that ties are ties
    return jnp.where(jnp.isfinite(both), far, jnp.inf)


def lengths(uploads: Any) -> jax.Array:
    """`[slots]`: Euclidean norms; of those too large for the numbers the largest number."""
    units, greatest, length = _units(uploads)
    del units
    return jnp.minimum(greatest * length, jnp.finfo(greatest.dtype).max)


def shortened(uploads: Any, radius: float | jax.Array) -> Any:
    """The uploads `[slots, ...]`, the longer ones scaled to length `radius`."""
    units, greatest, length = _units(uploads)
    factor = jnp.minimum(greatest, jnp.asarray(radius, greatest.dtype) / length)
    return jax.tree.map(lambda a: a * over(factor, a).astype(a.dtype), units)


def mean_of(uploads: Any, weight: jax.Array) -> Any:
    """The mean of the uploads `[slots, ...]` with weights `[slots]`; 0 where those are all 0."""
    weight = weight / jnp.maximum(weight.sum(), jnp.finfo(weight.dtype).tiny)

    def mean(a: jax.Array) -> jax.Array:  # a product: of 100 rows a sum takes thirty times as long
        return jnp.tensordot(weight.astype(a.dtype), a, 1, precision="highest")

    return jax.tree.map(mean, uploads)


def _units(uploads: Any) -> tuple[Any, jax.Array, jax.Array]:
    """Uploads over their largest coordinates, those `[slots]`, and what is left as length."""
    # The difference of two finite numbers may be infinite.
    uploads = jax.tree.map(
        lambda a: jnp.clip(a, -jnp.finfo(a.dtype).max, jnp.finfo(a.dtype).max), uploads
    )
    leaves = [a for a in jax.tree.leaves(uploads) if a.size]
    peaks = [jnp.abs(a).reshape(len(a), -1).max(axis=1) for a in leaves]
    greatest = peaks[0]
    for other in peaks[1:]:
        greatest = jnp.maximum(greatest, other)
    divisor = jnp.where(greatest >= jnp.finfo(greatest.dtype).tiny, greatest, 1)
    units = jax.tree.map(lambda a: a / over(divisor, a).astype(a.dtype), uploads)
    squares = [(a**2).reshape(len(a), -1).sum(axis=1) for a in jax.tree.leaves(units)]
    return units, greatest, jnp.sqrt(jnp.maximum(_total(squares), 1))


def _total(parts: list) -> jax.Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
