"""FedAsync (Xie et al., 2019, arXiv:1903.03934): the server mixes arriving models into its own."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm.terms import Weight, polynomial, weighted
from ccfl_jax.algorithm.types import End, Rule, Visit
from ccfl_jax.checks import check_kind, check_known


def fedasync(alpha: float | jax.Array = 0.6, staleness: Weight | None = None) -> Rule:
    r""":math:`x_{t+1} = (1 - \alpha_t) x_t + \alpha_t x^i`, :math:`\alpha_t = \alpha\, w(s)`.

    The upload is measured from x_t, not from the model that the client started from. With buffers
    of one upload and the server `cc_fedavg()`; its local problem has a proximal term
    (`terms.proximal` in `local`). Departure: of a larger buffer the mean of the m models is mixed
    in, each with its alpha_t.

    Args:
        alpha: in [0, 1].
        staleness: w, by default `terms.polynomial(0.5)`; also `terms.constant()`, `terms.hinge()`.

    Raises:
        ValueError: for an alpha outside its range, or a weight that is no function.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.fedasync(0.5)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedavg(), 0.1, normalise="none", rule=rule)
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), (), jax.random.key(0))
        >>> end = ccfl.End(upload=jnp.array([3.0, -4.0]), info=(), params=x - 1, optimiser=())
        >>> upload, _ = rule.finish(visit, end)  # 3 rounds stale, so alpha_t is 0.25
        >>> print(visit.current - upload)  # a quarter of the way to the client's model, -1
        [-0.25 -0.25]
    """
    alpha = check_known("alpha", alpha, most=1.0)
    check_kind("staleness", staleness, Callable | None, "a weight, as terms.polynomial(0.5)")
    weight = polynomial(0.5) if staleness is None else staleness

    def finish(visit: Visit, end: End) -> tuple[Any, Any]:
        return jax.tree.map(jnp.subtract, visit.current, end.params), visit.memory

    mixed = Rule(finish=finish)
    return weighted(lambda visit, end: alpha * weight(visit, end), mixed, divide=False)
