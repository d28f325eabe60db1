"""Aggregation: the buffer of m uploads becomes one pseudo-gradient."""

from typing import Any

import jax

from ccfl_jax import tree
from ccfl_jax.types import Aggregate, Params


def mean() -> Aggregate:
    r"""The unweighted mean over the slots that hold a finite upload (Algorithm 2).

    .. math:: \Delta_t = \frac{1}{|S_t|} \sum_{i \in S_t} \Delta^i_{t-\tau_{t,i}}

    The paper divides by m because its buffer is always full; here the sum runs over the present
    slots and is divided by their number. Slots are selected, never multiplied by a mask: an absent
    one may hold anything. An upload with a non-finite number anywhere is left out as a whole. With
    nothing to average the pseudo-gradient is zero. Keeps no state.
    """

    def init(params: Params) -> tuple[()]:
        del params
        return ()

    def update(uploads: Params, present: jax.Array, state: Any) -> tuple[Params, jax.Array, Any]:
        counted = present & tree.all_finite(uploads)
        return tree.masked_mean(uploads, counted), counted, state

    return Aggregate(init, update)
