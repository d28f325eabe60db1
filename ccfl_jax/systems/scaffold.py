"""SCAFFOLD (Karimireddy et al., 2020, arXiv:1910.06378): control variates against client drift."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm.terms import before, linear
from ccfl_jax.algorithm.types import End, Params, Rule, Visit
from ccfl_jax.checks import check_known, check_whole
from ccfl_jax.systems.watching import first_gradient


def scaffold(local_lr: float | jax.Array, option: int = 2) -> Rule:
    r"""Every local step goes along :math:`g - c_i + c`; c is the mean of all n clients' c_i.

    .. math:: c_i^+ = g_i(x) \quad \text{(option 1)}, \qquad
              c_i^+ = c_i - c + (x - y_K) / (K \eta_l) \quad \text{(option 2)}

    With `normalise="none"`, plain SGD in `local` and the server `cc_fedsgd(eta_g)`, eta_g = 1 in
    its experiments. A stale client works with the c of the model that it started from. Departure:
    option 1 takes the gradient of the visit's first batch, without another pass over the samples.

    Args:
        local_lr: eta_l, that of the round's `local`.
        option: which c_i^+.

    Raises:
        ValueError: for a rate that is not above 0, or another option.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.scaffold(local_lr=0.1)
        >>> simulation = ccfl.simulation(
        ...     task, ccfl.cc_fedsgd(1.0), 0.1, normalise="none", rule=rule
        ... )
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> jax.tree.map(jnp.shape, state.clients)  # c_i of each client
        {'dense': {'bias': (30, 10), 'kernel': (30, 60, 10)}}
    """
    local_lr = check_known("local_lr", local_lr, above=True)
    option = check_whole("option", option, 1, 2)

    def local(visit: Visit, optimiser: Any) -> optax.GradientTransformation:
        slope = jax.tree.map(jnp.subtract, visit.message, visit.memory)
        watched = (first_gradient(),) if option == 1 else ()
        return before(*watched, linear(slope), optimiser=optimiser)

    def finish(visit: Visit, end: End) -> tuple[Params, Params]:
        if option == 1:
            return end.upload, end.optimiser[0].gradient
        scale = 1 / (jnp.maximum(visit.steps, 1) * local_lr)
        trees = visit.memory, visit.message, visit.start, end.params
        variate = jax.tree.map(
            lambda own, c, x, y: own - c + ((x - y) * scale).astype(own.dtype), *trees
        )
        return end.upload, variate

    return Rule(
        memory=lambda params: jax.tree.map(jnp.zeros_like, params),
        shared=lambda memory: memory,
        message=lambda mean, state: mean,
        local=local,
        finish=finish,
    )
