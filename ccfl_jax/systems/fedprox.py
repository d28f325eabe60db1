"""FedProx (Li et al., 2020, arXiv:1812.06127)."""

import jax

from ccfl_jax.algorithm.terms import proximal, told
from ccfl_jax.algorithm.types import Rule
from ccfl_jax.checks import check_known


def fedprox(mu: float | jax.Array = 0.01, rule: Rule | None = None) -> Rule:
    r"""Client i descends :math:`f_i(x) + \frac\mu2 |x - x_{t-s}|^2`, with the work that it has.

    With `normalise="none"` and the server `cc_fedavg()`; its uneven local work is the schedule's.

    Args:
        mu: at least 0.
        rule: what is done besides, as `fedavg()` for weights by samples; by default Algorithm 3.

    Raises:
        ValueError: for a negative mu.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.fedprox(0.5)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedavg(), 0.1, normalise="none", rule=rule)
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), (), jax.random.key(0))
        >>> local = rule.local(visit, 1.0)
        >>> update, _ = local.update(x, local.init(x), x + 2)  # two away, without a gradient
        >>> print(update)
        [-1. -1.]
    """
    mu = check_known("mu", mu)
    return told(lambda visit: proximal(mu), rule)
