"""q-FedAvg (Li et al., 2020, arXiv:1905.10497): clients of large loss count more."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm.terms import before
from ccfl_jax.algorithm.types import Aggregate, Arrivals, End, Params, Rule, Visit
from ccfl_jax.checks import check_known
from ccfl_jax.systems.watching import first_loss


def qfedavg(q: float | jax.Array, local_lr: float | jax.Array) -> tuple[Rule, Aggregate]:
    r""":math:`x_{t+1} = x_t - \sum_i F_i^q \Delta w_i / \sum_i h_i` with

    .. math:: \Delta w_i = L (x - x_i), \qquad
              h_i = q F_i^{q-1} |\Delta w_i|^2 + L F_i^q, \qquad L = 1 / \eta_l

    With `normalise="none"` and the server `cc_fedavg()`; with q = 0 it is FedAvg with equal
    weights. Departure: F_i is the loss of the visit's first batch at the start model, without
    another pass over the samples.

    Args:
        q: at least 0.
        local_lr: eta_l, above 0.

    Returns:
        The rule, and the aggregator that it needs.

    Raises:
        ValueError: for a number outside its range.

    Examples:
        >>> rule, aggregate = ccfl.systems.qfedavg(q=1.0, local_lr=0.1)
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> simulation = ccfl.simulation(
        ...     task, ccfl.cc_fedavg(), local=0.1, normalise="none", rule=rule, aggregate=aggregate
        ... )
        >>> total = jnp.array([6.0, -2.0]), jnp.float32(4.0)  # of F_i^q Delta w_i and h_i
        >>> print(aggregate.finish(total, None, ())[0])
        [ 1.5 -0.5]
    """
    q = check_known("q", q)
    lipschitz = 1 / check_known("local_lr", local_lr, above=True)

    def local(visit: Visit, optimiser: Any) -> optax.GradientTransformation:
        return before(first_loss(), optimiser=optimiser)

    def finish(visit: Visit, end: End) -> tuple[tuple[Params, jax.Array], Any]:
        loss = jnp.maximum(end.optimiser[0].loss, 1e-10)  # as its authors' code: no 0**(q-1)
        square = lipschitz**2 * optax.tree.norm(end.upload, squared=True)
        h = q * loss ** (q - 1) * square + lipschitz * loss**q
        scale = lipschitz * loss**q
        return (jax.tree.map(lambda d: d * scale.astype(d.dtype), end.upload), h), visit.memory

    def average(total: tuple, arrivals: Arrivals, memory: Any) -> tuple[Params, Any]:
        del arrivals
        delta, h = total
        h = jnp.where(h > 0, h, 1)
        return jax.tree.map(lambda d: d / h.astype(d.dtype), delta), memory

    return Rule(local=local, finish=finish), Aggregate(lambda params: (), average)
