"""The few pytree helpers that `optax.tree` lacks."""

from typing import Any

import jax
import jax.numpy as jnp


def select(condition: jax.Array, on_true: Any, on_false: Any) -> Any:
    """Takes every leaf of `on_true` where the bool scalar `condition` holds, else of `on_false`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), on_true, on_false)


def read(stack: Any, index: jax.Array) -> Any:
    """Entry `index` of a tree whose leaves are stacked along a leading axis `[n, ...]`."""
    return jax.tree.map(lambda a: a[index], stack)


def write(stack: Any, index: jax.Array, entry: Any) -> Any:
    """The stacked tree `[n, ...]` with entry `index` replaced."""
    return jax.tree.map(lambda a, b: a.at[index].set(b.astype(a.dtype)), stack, entry)


def at_least_float32(dtype: Any) -> Any:
    """float32 for shorter floats, otherwise the dtype itself: moments and sums lose nothing."""
    return jnp.promote_types(dtype, jnp.float32)


def all_finite(stack: Any) -> jax.Array:
    """bool `[n]`: whether entry i of a stacked tree `[n, ...]` has finite numbers only."""
    finite = [jnp.isfinite(a).reshape(a.shape[0], -1).all(axis=1) for a in jax.tree.leaves(stack)]
    return jnp.stack(finite).all(axis=0)


def masked_mean(stack: Any, mask: jax.Array) -> Any:
    """Mean over the entries of a stacked tree `[n, ...]` where `mask` (bool `[n]`) holds.

    Entries are selected, not multiplied by zero, so what is left out may hold NaN. With an empty
    mask the mean is zero.
    """
    count = jnp.maximum(mask.sum(), 1)

    def mean(a: jax.Array) -> jax.Array:
        kept = jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, jnp.zeros((), a.dtype))
        return kept.sum(axis=0) / count.astype(a.dtype)

    return jax.tree.map(mean, stack)
