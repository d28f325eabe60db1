"""Random draws of a transformation, on a client or on the server."""

from typing import Any

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm import tree_util


def key_of(extra: dict[str, Any], stream: int) -> jax.Array:
    """A transformation's own key: of the `visit` where a client applies it, else the server's.

    Args:
        extra: the extra arguments of an optax `update`.
        stream: tells kinds of transformation apart, which would draw the same numbers otherwise.

    Raises:
        ValueError: without either.
    """
    if "visit" not in extra and "key" not in extra:
        raise ValueError(
            "key: expected the extra argument visit (terms.sending) or key (a server), found none"
        )
    key = extra["visit"].key if "visit" in extra else extra["key"]
    return jax.random.fold_in(key, stream)


def normal_like(key: jax.Array, tree: Any) -> Any:
    """Standard normal numbers, shaped like the tree's, of at least 32 bits."""
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten(
        jax.random.normal(
            jax.random.fold_in(key, place),
            jnp.shape(leaf),
            tree_util.at_least_float32(jnp.result_type(leaf)),
        )
        for place, leaf in enumerate(leaves)
    )


def noised(updates: Any, key: jax.Array, std: float | jax.Array) -> Any:
    """The tree plus normal numbers of one standard deviation, of at least 32 bits."""
    normal = normal_like(key, updates)
    return jax.tree.map(lambda a, n: (a + std * n).astype(n.dtype), updates, normal)
