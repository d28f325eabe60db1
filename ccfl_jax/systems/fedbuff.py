"""FedBuff (Nguyen et al., 2022, arXiv:2106.06639): a buffer of stale uploads, weighted by age."""

import jax

from ccfl_jax.algorithm.terms import polynomial, weighted
from ccfl_jax.algorithm.types import Rule


def fedbuff(power: float | jax.Array = 0.5, divide: bool = False, rule: Rule | None = None) -> Rule:
    r""":math:`\Delta_t = \frac1m \sum_i (1 + s_i)^{-a} \Delta^i`.

    With `normalise="none"` and the server `cc_fedsgd(eta)` or `fedavgm(eta, 0.9)`, as its authors'
    simulator. With a = 0 it is CC-FedSGD of undivided uploads.

    Args:
        power: a, at least 0; 0 is no weights, which the paper compares.
        divide: by the sum of the weights instead of m, as FedScale does.
        rule: what is done besides, as clipping by `terms.sending`; by default Algorithm 3.

    Raises:
        ValueError: for a negative power.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.fedbuff(0.5)
        >>> simulation = ccfl.simulation(
        ...     task, ccfl.cc_fedsgd(0.3), 0.1, normalise="none", rule=rule
        ... )
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), (), jax.random.key(0))
        >>> end = ccfl.End(upload=jnp.array([3.0, -4.0]), info=(), params=x - 1, optimiser=())
        >>> upload, _ = rule.finish(visit, end)
        >>> print(upload)  # half of the upload, as it is 3 rounds stale
        [ 1.5 -2. ]
    """
    return weighted(polynomial(power), rule, divide)
