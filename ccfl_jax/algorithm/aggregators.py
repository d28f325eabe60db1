"""Aggregation: the buffer of m uploads becomes one pseudo-gradient."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Aggregate, Arrivals, Params, Weighted
from ccfl_jax.checks import check_number


def mean(over: float | None = None) -> Aggregate:
    r"""The mean over the uploads that count (Algorithm 2); of `Weighted` ones the weighted mean.

    .. math:: \Delta_t = \frac{1}{|S_t|} \sum_{i \in S_t} \Delta^i_{t-\tau_{t,i}}, \qquad
              \Delta_t = \frac{\sum_i w_i \Delta^i}{\sum_i w_i}

    The paper divides by m because its buffer is always full; here the sum runs over the uploads
    that count (present, with work done, finite throughout) and is divided by their number. Without
    uploads, or where all weights are 0, the pseudo-gradient is zero. It has no state.

    Args:
        over: divide by this number instead, however many uploads there are, as a bound on one
            client's influence needs (`systems.dp_fedavg`).

    Raises:
        ValueError: unless `over` is above 0.

    Examples:
        >>> one = jnp.ones(3, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(3), 0 * one, one, one, one > 0, one.sum())
        >>> delta, _ = ccfl.mean().finish(jnp.float32(6.0), arrivals, ())
        >>> float(delta)  # three uploads had the sum 6
        2.0
        >>> weighted = ccfl.Weighted(value=jnp.float32(6.0), weight=jnp.float32(4.0))
        >>> float(ccfl.mean().finish(weighted, arrivals, ())[0])
        1.5
    """
    if over is not None:
        check_number("over", over, above=True)

    def finish(total: Any, arrivals: Arrivals, memory: Any) -> tuple[Params, Any]:
        divisor = jnp.maximum(arrivals.participants, 1)
        if isinstance(total, Weighted):
            total, divisor = total.value, jnp.where(total.weight > 0, total.weight, 1)
        if over is not None:
            divisor = jnp.asarray(over, float)
        return jax.tree.map(lambda a: a / divisor.astype(a.dtype), total), memory

    return Aggregate(lambda params: (), finish)


def of_all(function: Callable[[Any, jax.Array], Params]) -> Aggregate:
    """An aggregator that needs all uploads at once.

    Args:
        function: `function(uploads, counted) -> delta`; `uploads` are `[slots, ...]`, floats of at
            least 32 bits, zero where `counted`, bool `[slots]`, does not hold.
    """

    def finish(uploads: Any, arrivals: Arrivals, memory: Any) -> tuple[Params, Any]:
        if isinstance(uploads, Weighted):
            raise ValueError(
                "aggregate: expected uploads of equal weight, found weighted ones (the rule's)"
            )
        uploads = tree_util.masked(tree_util.wide(uploads), arrivals.counted)
        return function(uploads, arrivals.counted), memory

    return Aggregate(lambda params: (), finish, stacked=True)
