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
    """
    return weighted(polynomial(power), rule, divide)
