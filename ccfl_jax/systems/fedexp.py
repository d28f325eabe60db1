"""FedExP (Jhunjhunwala et al., 2023, arXiv:2301.09604): the server's rate from the uploads."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm.types import Aggregate, Arrivals, End, Params, Rule, Visit
from ccfl_jax.checks import check_known


def fedexp(eps: float | jax.Array = 1e-3) -> tuple[Rule, Aggregate]:
    r"""The pseudo-gradient is :math:`\eta_g \bar\Delta`, with the mean upload and

    .. math:: \eta_g = \max\left(1, \frac{\sum_i |\Delta^i|^2}
              {2 m (|\bar\Delta|^2 + \epsilon)}\right)

    With `normalise="none"` and the server `cc_fedavg()`.

    Args:
        eps: at least 0.

    Returns:
        The rule, and the aggregator that it needs.

    Raises:
        ValueError: for a negative eps.

    Examples:
        >>> one = jnp.ones(4, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(4), 0 * one, one, one, one > 0, one.sum())
        >>> rule, aggregate = ccfl.systems.fedexp(eps=0.0)
        >>> total = jnp.ones(4), jnp.float32(4.0)  # of four uploads at right angles, and squares
        >>> print(aggregate.finish(total, arrivals, ())[0])  # twice the mean
        [0.5 0.5 0.5 0.5]
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> simulation = ccfl.simulation(
        ...     task, ccfl.cc_fedavg(), normalise="none", rule=rule, aggregate=aggregate
        ... )
    """
    eps = check_known("eps", eps)

    def finish(visit: Visit, end: End) -> tuple[tuple[Params, jax.Array], Any]:
        return (end.upload, optax.tree.norm(end.upload, squared=True)), visit.memory

    def average(total: tuple, arrivals: Arrivals, memory: Any) -> tuple[Params, Any]:
        count = jnp.maximum(arrivals.participants, 1)
        mean, square = jax.tree.map(lambda a: a / count.astype(a.dtype), total)
        rate = jnp.maximum(1, square / (2 * (optax.tree.norm(mean, squared=True) + eps)))
        return jax.tree.map(lambda d: d * rate.astype(d.dtype), mean), memory

    return Rule(finish=finish), Aggregate(lambda params: (), average)
