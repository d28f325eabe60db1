"""FedNova (Wang et al., 2020, arXiv:2007.07481): normalised averaging of uneven local work."""

from typing import Any

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm.types import Aggregate, Arrivals, End, Params, Rule, Visit
from ccfl_jax.checks import check_known


def fednova(momentum: float | jax.Array = 0.0, by_samples: bool = True) -> tuple[Rule, Aggregate]:
    r"""Uploads divided by `|a_i|_1` are averaged, and the mean multiplied by the mean of `|a_i|_1`.

    .. math:: \Delta_t = \tau_{eff} \sum_i p_i \Delta^i / |a_i|_1, \qquad
              \tau_{eff} = \sum_i p_i |a_i|_1

    :math:`|a_i|_1` is K for plain SGD, with momentum rho
    :math:`[K - \rho (1 - \rho^K) / (1 - \rho)] / (1 - \rho)`. With
    `normalise="none"` and the server `cc_fedavg()`. For equal p_i it is CC-FedSGD whose server
    learning rate is tau_eff.

    Args:
        momentum: rho of the local `optax.sgd(local_lr, momentum)`, in [0, 1).
        by_samples: p_i is n_i / sum n; otherwise all are equal.

    Returns:
        The rule, and the aggregator that it needs.

    Raises:
        ValueError: for a momentum outside its range.

    Examples:
        >>> rule, aggregate = ccfl.systems.fednova(by_samples=False)
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), (), jax.random.key(0))
        >>> end = ccfl.End(upload=jnp.array([3.0, -4.0]), info=(), params=x - 1, optimiser=())
        >>> direction, work, _ = rule.finish(visit, end)[0]  # of a client that took 5 steps
        >>> print(direction * work, work)
        [ 3. -4.] 5.0
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> simulation = ccfl.simulation(
        ...     task, ccfl.cc_fedavg(), normalise="none", rule=rule, aggregate=aggregate
        ... )
    """
    momentum = check_known("momentum", momentum, most=1, below=True)

    def finish(visit: Visit, end: End) -> tuple[tuple, Any]:
        steps = jnp.maximum(visit.steps, 1).astype(float)
        norm = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
        p = visit.size.astype(float) if by_samples else jnp.ones((), float)
        direction = jax.tree.map(lambda d: d * (p / norm).astype(d.dtype), end.upload)
        return (direction, p * norm, p), visit.memory

    def average(total: tuple, arrivals: Arrivals, memory: Any) -> tuple[Params, Any]:
        del arrivals
        direction, work, p = total
        p = jnp.where(p > 0, p, 1)
        return jax.tree.map(lambda d: d * (work / p / p).astype(d.dtype), direction), memory

    return Rule(finish=finish), Aggregate(lambda params: (), average)
