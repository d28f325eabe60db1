"""MIFA, FedLaAvg and AFA-CS: the mean over all clients' latest uploads, whoever takes part."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import End, Params, Rule, Visit


class Latest(NamedTuple):
    """What a client keeps for MIFA.

    Attributes:
        upload: its latest one.
        came: float scalar, 1 once there is one.
    """

    upload: Params
    came: jax.Array


def mifa(wait: bool = True) -> Rule:
    r"""MIFA (Gu et al., 2021, arXiv:2106.04159): :math:`x_{t+1} = x_t - \eta \frac1n \sum_j G^j`.

    G^j is the latest upload of client j. The server keeps no table: clients remember, and the mean
    moves by what changes. With the server `cc_fedsgd(eta)`; with `normalise="none"` and eta = 1 and
    everybody in every round it is FedAvg with equal weights. The paper divides uploads by the local
    rate and multiplies by it, which is the same for one rate.

    Args:
        wait: no step before every client has come once, as its authors do; otherwise those that
            have not count as zeros.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.mifa()
        >>> simulation = ccfl.simulation(
        ...     task, ccfl.cc_fedsgd(1.0), 0.1, normalise="none", rule=rule
        ... )
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> jax.tree.map(jnp.shape, state.clients.upload)  # the latest upload of each client
        {'dense': {'bias': (30, 10), 'kernel': (30, 60, 10)}}
    """

    def memory(params: Params) -> Latest:
        return Latest(jax.tree.map(jnp.zeros_like, tree_util.wide(params)), jnp.zeros(()))

    def finish(visit: Visit, end: End) -> tuple[tuple[()], Latest]:
        del visit
        return (), Latest(end.upload, jnp.ones(()))

    def combine(delta: Any, mean: Latest, state: Any) -> Params:
        del delta, state
        go = (mean.came == 1) | (not wait)  # n / n, of a sum of ones, which is exact
        return tree_util.select(go, mean.upload, jax.tree.map(jnp.zeros_like, mean.upload))

    return Rule(memory=memory, shared=lambda kept: kept, finish=finish, combine=combine)


def fedlaavg() -> Rule:
    """FedLaAvg (Yan et al., 2020, arXiv:2002.07399): a step along the mean of the latest gradients.

    `mifa` without waiting; with one local step, `normalise="steps"` and the server
    `cc_fedsgd(eta)`.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.fedlaavg()
        >>> simulation = ccfl.simulation(
        ...     task, ccfl.cc_fedsgd(0.1), 0.1, normalise="steps", rule=rule
        ... )
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> float(state.shared.came)  # of 30 clients none has come
        0.0
    """
    return mifa(wait=False)


def afa_cs() -> Rule:
    r"""AFA-CS (Yang et al., 2022, arXiv:2108.09875): the mean of all clients' latest Delta^i / K_i.

    `mifa` without waiting, with `normalise="steps"` and the server `cc_fedsgd(eta)`.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.afa_cs()
        >>> simulation = ccfl.simulation(
        ...     task, ccfl.cc_fedsgd(0.1), 0.1, normalise="steps", rule=rule
        ... )
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> state.clients.came.shape, float(state.clients.came.sum())
        ((30,), 0.0)
    """
    return mifa(wait=False)


def afa_cd() -> Rule:
    r"""AFA-CD (Yang et al., 2022, arXiv:2108.09875): :math:`\frac1m \sum_i \Delta^i / K_i`.

    Algorithm 3 with `normalise="steps"` and the server `cc_fedsgd(eta)`: CC-FedSGD under its name.

    Examples:
        >>> rule = ccfl.systems.afa_cd()
        >>> rule == ccfl.Rule()  # Algorithm 3 as it is
        True
    """
    return Rule()
