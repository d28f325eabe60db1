"""CA2FL (Wang et al., 2024, ICLR): FedBuff, calibrated by every client's cached upload."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import End, Params, Rule, Visit


class Cached(NamedTuple):
    """What a client keeps for CA2FL.

    Attributes:
        upload: h_i, its latest one, zeros before the first.
        one: float scalar, 1, whose sum over the clients is their number.
    """

    upload: Params
    one: jax.Array


def ca2fl() -> Rule:
    r""":math:`\Delta_t = \frac1n \sum_j h_j + \frac1m \sum_{i \in S_t} (\Delta^i - h_i)`.

    h_j is the upload that client j sent last, before this round; then :math:`h_i \leftarrow
    \Delta^i` for the clients of the buffer. With `normalise="none"` and the server
    `cc_fedsgd(eta)`.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.ca2fl()
        >>> simulation = ccfl.simulation(
        ...     task, ccfl.cc_fedsgd(1.0), 0.1, normalise="none", rule=rule
        ... )
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> jax.tree.map(jnp.shape, state.clients.upload)  # the cached upload of each client
        {'dense': {'bias': (30, 10), 'kernel': (30, 60, 10)}}
    """

    def memory(params: Params) -> Cached:
        return Cached(jax.tree.map(jnp.zeros_like, tree_util.wide(params)), jnp.ones(()))

    def finish(visit: Visit, end: End) -> tuple[Params, Cached]:
        new = jax.tree.map(jnp.subtract, end.upload, visit.memory.upload)
        return new, Cached(end.upload, visit.memory.one)

    def combine(delta: Params, mean: Cached, state: Any) -> Params:
        del mean  # it is that after this round
        before: Cached = state.shared
        return jax.tree.map(lambda d, h: d + h / before.one.astype(h.dtype), delta, before.upload)

    return Rule(memory=memory, shared=lambda kept: kept, finish=finish, combine=combine)
