"""FedPD (Zhang et al., 2021, arXiv:2005.11418): a primal-dual method that may skip averaging."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.terms import before, linear, proximal
from ccfl_jax.algorithm.types import End, Params, Rule, Visit
from ccfl_jax.checks import check_known, check_number, check_seed


class Primal(NamedTuple):
    """What a client of FedPD keeps.

    Attributes:
        dual: lambda_i, like the parameters.
        copy: x_{0,i}, its own copy of the global model.
    """

    dual: Params
    copy: Params


def fedpd(step: float | jax.Array, skip: float = 0.0, seed: int = 0) -> Rule:
    r"""Client i descends :math:`f_i(x) + \langle\lambda_i, x - x_{0,i}\rangle + \frac1{2s}
    |x - x_{0,i}|^2`.

    .. math:: \lambda_i \leftarrow \lambda_i + (x_i - x_{0,i}) / s, \qquad
              x_{0,i} = x_i + s \lambda_i

    Then x is the mean of all n clients' x_{0,i}; or, with probability `skip`, every client goes on
    from its own. The paper has all clients in every round: with others absent, their last copies
    stay in the mean, and after a skipped round a client goes on from its last copy, however old;
    a stale one as it was when its work began. With `normalise="none"` and the server `cc_fedavg()`.

    Args:
        step: s, above 0 (the paper's eta).
        skip: the probability of no averaging, in [0, 1], one draw a round for all.
        seed: of those draws.

    Raises:
        ValueError: for a number outside its range.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.fedpd(step=0.1)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedavg(), 0.1, normalise="none", rule=rule)
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> jax.tree.map(jnp.shape, state.clients.dual)  # lambda_i of each client
        {'dense': {'bias': (30, 10), 'kernel': (30, 60, 10)}}
    """
    step = check_known("step", step, above=True)
    check_number("skip", skip, most=1.0)
    check_seed(seed)

    def alone(t: jax.Array) -> jax.Array:
        """Whether nothing is averaged at the end of round t."""
        key = jax.random.fold_in(jax.random.key(seed), t)
        return jax.random.uniform(key, dtype=jnp.float32) < skip  # the same with 64 bits

    def begin(visit: Visit) -> Params:
        since = visit.round - visit.staleness  # when it downloaded, and went on from its own or not
        own = (since > 0) & alone(since - 1)
        return tree_util.select(own, visit.memory.copy, visit.start)

    def local(visit: Visit, optimiser: Any) -> optax.GradientTransformation:
        return before(linear(visit.memory.dual), proximal(1 / step), optimiser=optimiser)

    def finish(visit: Visit, end: End) -> tuple[tuple[()], Primal]:
        trees = visit.memory.dual, end.params, begin(visit)
        dual = jax.tree.map(lambda a, x, o: a + ((x - o) / step).astype(a.dtype), *trees)
        copy = jax.tree.map(lambda x, a: x + (step * a).astype(x.dtype), end.params, dual)
        return (), Primal(dual, copy)

    def combine(delta: Any, mean_copy: Params, state: Any) -> Params:
        del delta
        away = jax.tree.map(jnp.subtract, state.params, mean_copy)
        return tree_util.select(alone(state.round), jax.tree.map(jnp.zeros_like, away), away)

    return Rule(
        memory=lambda params: Primal(jax.tree.map(jnp.zeros_like, params), params),
        shared=lambda memory: memory.copy,
        begin=begin,
        local=local,
        finish=finish,
        combine=combine,
    )
