"""FedDyn (Acar et al., 2021, arXiv:2111.04263): dynamic regularisation."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm.terms import before, linear, proximal
from ccfl_jax.algorithm.types import End, Params, Rule, Visit
from ccfl_jax.checks import check_known


def feddyn(alpha: float | jax.Array = 0.01) -> Rule:
    r"""Client i descends :math:`f_i(x) - \langle g_i, x\rangle + \frac\alpha2 |x - x_{t-s}|^2`.

    .. math:: g_i \leftarrow g_i - \alpha (x_K - x_{t-s}), \qquad
              x_{t+1} = x_t - \Delta_t - h_t / \alpha

    with h_t the mean of all n clients' g_i. With `normalise="none"` and the server `cc_fedavg()`;
    without staleness x_{t+1} is the mean of the buffer's models minus h_t / alpha, as published.
    Departure: the local problem is not solved, but descended as far as the schedule's work goes.

    Args:
        alpha: above 0; the paper tunes 0.001 to 0.1.

    Raises:
        ValueError: for an alpha that is not above 0.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.feddyn(alpha=0.01)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedavg(), 0.1, normalise="none", rule=rule)
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> jax.tree.map(jnp.shape, state.clients)  # g_i of each client
        {'dense': {'bias': (30, 10), 'kernel': (30, 60, 10)}}
    """
    alpha = check_known("alpha", alpha, above=True)

    def local(visit: Visit, optimiser: Any) -> optax.GradientTransformation:
        slope = jax.tree.map(jnp.negative, visit.memory)
        return before(linear(slope), proximal(alpha), optimiser=optimiser)

    def finish(visit: Visit, end: End) -> tuple[Params, Params]:
        trees = visit.memory, visit.start, end.params
        return end.upload, jax.tree.map(
            lambda g, x, y: g + (alpha * (x - y)).astype(g.dtype), *trees
        )

    def combine(delta: Params, h: Params, state: Any) -> Params:
        del state
        return jax.tree.map(lambda d, a: d + (a / alpha).astype(d.dtype), delta, h)

    return Rule(
        memory=lambda params: jax.tree.map(jnp.zeros_like, params),
        shared=lambda memory: memory,
        local=local,
        finish=finish,
        combine=combine,
    )
