"""MimeLite (Karimireddy et al., 2021, arXiv:2008.03606): a server's momentum in the local steps."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.terms import before, linear
from ccfl_jax.algorithm.types import Aggregate, Arrivals, End, Params, Rule, Visit
from ccfl_jax.checks import check_known
from ccfl_jax.systems.watching import first_gradient


def mimelite(momentum: float | jax.Array = 0.9) -> tuple[Rule, Aggregate]:
    r"""Local steps :math:`y \leftarrow y - \eta_l [(1 - \beta) g + \beta m]` with a frozen m.

    .. math:: m \leftarrow (1 - \beta) \frac1{|S|} \sum_i \nabla f_i(x) + \beta m

    With SGD and momentum as its base optimiser, `normalise="none"` and the server `cc_fedavg()`. A
    stale client works with the m of the model that it started from. Departure: the gradient at x is
    that of the visit's first batch, without another pass over the samples.

    Args:
        momentum: beta, in [0, 1).

    Returns:
        The rule, and the aggregator that keeps m.

    Raises:
        ValueError: for a momentum outside its range.

    Examples:
        >>> rule, aggregate = ccfl.systems.mimelite(momentum=0.9)
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> simulation = ccfl.simulation(
        ...     task, ccfl.cc_fedavg(), local=0.1, normalise="none", rule=rule, aggregate=aggregate
        ... )
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> jax.tree.map(jnp.shape, state.aggregate)  # m, which is sent with every model
        {'dense': {'bias': (10,), 'kernel': (60, 10)}}
    """
    beta = check_known("momentum", momentum, most=1, below=True)

    def local(visit: Visit, optimiser: Any) -> optax.GradientTransformation:
        slope = jax.tree.map(lambda m: beta * m, visit.message)
        return before(first_gradient(), optax.scale(1 - beta), linear(slope), optimiser=optimiser)

    def finish(visit: Visit, end: End) -> tuple[tuple[Params, Params], Any]:
        return (end.upload, end.optimiser[0].gradient), visit.memory

    def average(total: tuple, arrivals: Arrivals, m: Params) -> tuple[Params, Params]:
        count = jnp.maximum(arrivals.participants, 1)
        delta, gradient = jax.tree.map(lambda a: a / count.astype(a.dtype), total)
        moved = jax.tree.map(lambda g, m: ((1 - beta) * g + beta * m).astype(m.dtype), gradient, m)
        return delta, moved

    def zeros(params: Params) -> Params:
        return jax.tree.map(jnp.zeros_like, tree_util.wide(params))

    rule = Rule(message=lambda mean, state: state.aggregate, local=local, finish=finish)
    return rule, Aggregate(zeros, average)
