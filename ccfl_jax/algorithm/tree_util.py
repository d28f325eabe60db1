"""The few pytree helpers that `optax.tree` lacks."""

from typing import Any

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm.types import Array


def select(condition: jax.Array, on_true: Any, on_false: Any) -> Any:
    """Takes every leaf of `on_true` where the bool scalar `condition` holds, else of `on_false`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), on_true, on_false)


def read(stack: Any, index: Array) -> Any:
    """Entry `index` >= 0 of a tree whose leaves are stacked along a leading axis `[n, ...]`."""
    # Four operations fewer a leaf than with indices from the end, for the compiler.
    at = {"mode": "clip", "wrap_negative_indices": False}
    return jax.tree.map(lambda a: a.at[index].get(**at), stack)


def write(stack: Any, index: Array, entry: Any) -> Any:
    """The stacked tree `[n, ...]` with entry `index` replaced; unchanged where index >= n."""

    def put(a: jax.Array, b: jax.Array) -> jax.Array:
        return a.at[index].set(b.astype(a.dtype), **at)

    at = {"mode": "drop", "wrap_negative_indices": False}  # the default clamps to the last
    return jax.tree.map(put, stack, entry)


def at_least_float32(dtype: Any) -> Any:
    """float32 for shorter floats, otherwise the dtype itself: moments and sums lose nothing."""
    return jnp.promote_types(dtype, jnp.float32)


def wide(entry: Any) -> Any:
    """The tree with its shorter floats as float32."""
    return jax.tree.map(lambda a: a.astype(at_least_float32(a.dtype)), entry)


def at_least_int32(a: jax.Array) -> jax.Array:
    """Shorter and unsigned integers as int32; larger numbers become its maximum.

    In the array's own dtype 255 and -1, or 256 and 0, may be the same.
    """
    if jnp.issubdtype(a.dtype, jnp.unsignedinteger) and a.dtype.itemsize >= 4:
        a = jnp.minimum(a, jnp.asarray(2**31 - 1, a.dtype))
    elif a.dtype.itemsize >= 4:
        return a
    return a.astype(jnp.int32)


def all_finite(entry: Any) -> jax.Array:
    """bool scalar: whether a tree has finite numbers only."""
    # By the maximum, nan if there is one: XLA for CPUs writes an array of bools otherwise.
    greatest = [jnp.abs(a).max() for a in jax.tree.leaves(entry) if jnp.size(a)]
    # A sort ends XLA's fusion: each leaf that the answer masks would compute all of this anew.
    return jnp.isfinite(jnp.sort(jnp.array([0.0, *greatest]))[-1])


def over(mask: jax.Array, rows: jax.Array) -> jax.Array:
    """`mask` `[n]` with axes of length 1 behind it, as many as `rows` `[n, ...]` has."""
    return mask.reshape(mask.shape + (1,) * (rows.ndim - 1))


def masked(stack: Any, mask: jax.Array) -> Any:
    """The stacked tree `[n, ...]` with zeros where `mask` (bool `[n]`) does not hold.

    Entries are selected, not multiplied by zero, so those left out may hold nan.
    """
    return jax.tree.map(lambda a: jnp.where(over(mask, a), a, jnp.zeros((), a.dtype)), stack)


def masked_sum(stack: Any, mask: jax.Array) -> Any:
    """Sum over the entries of a stacked tree `[n, ...]` where `mask` (bool `[n]`) holds."""
    return jax.tree.map(lambda a: a.sum(axis=0), masked(stack, mask))
