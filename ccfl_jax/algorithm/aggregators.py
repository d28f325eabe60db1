"""Aggregation: the buffer of m uploads becomes one pseudo-gradient."""

from typing import Any

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Aggregate, Params


def mean() -> Aggregate:
    r"""The unweighted mean over the uploads that count (Algorithm 2).

    .. math:: \Delta_t = \frac{1}{|S_t|} \sum_{i \in S_t} \Delta^i_{t-\tau_{t,i}}

    The paper divides by m because its buffer is always full; here the sum runs over the uploads
    that count (present, with work done, finite throughout) and is divided by their number. Without
    uploads the pseudo-gradient is zero. It has no state.
    """

    def init(params: Params) -> tuple[()]:
        del params
        return ()

    def start(params: Params) -> Params:
        return jax.tree.map(
            lambda p: jnp.zeros(p.shape, tree_util.at_least_float32(p.dtype)), params
        )

    def add(total: Params, uploads: Params, counted: jax.Array) -> Params:
        return jax.tree.map(jnp.add, total, tree_util.masked_sum(uploads, counted))

    def finish(total: Params, participants: jax.Array, memory: Any) -> tuple[Params, Any]:
        divisor = jnp.maximum(participants, 1)
        return jax.tree.map(lambda a: a / divisor.astype(a.dtype), total), memory

    return Aggregate(init, start, add, finish)
