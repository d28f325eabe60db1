"""FADAS (Wang et al., 2024, arXiv:2407.18365): FedAMS on stale uploads, slower for old ones."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm.server_optimizers import cc_fedams
from ccfl_jax.algorithm.types import Arrivals, Params
from ccfl_jax.checks import check_known, check_whole


def slower_when_stale(
    learning_rate: float | jax.Array, threshold: int = 1, capped: bool = False
) -> optax.GradientTransformationExtraArgs:
    r"""Scales a server step by the round's largest staleness where that is above `threshold`.

    Args:
        learning_rate: eta of the server before it in the chain, which `capped` needs.
        threshold: tau_c, at least 1.
        capped: the rate is then :math:`\min(\eta, 1/\tau_{max})`, as the paper has it; its code
            takes :math:`\eta / \tau_{max}`.

    Raises:
        ValueError: for a number outside its range.

    Examples:
        >>> server = optax.chain(ccfl.cc_fedsgd(1.0), ccfl.systems.slower_when_stale(1.0))
        >>> two = jnp.ones(2, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(2), jnp.array([0, 4]), two, two, two > 0, two.sum())
        >>> update, _ = server.update(
        ...     jnp.float32(8.0), server.init(jnp.zeros(())), arrivals=arrivals
        ... )
        >>> float(update)  # the largest staleness is 4: a quarter of the step
        -2.0
    """
    learning_rate = check_known("learning_rate", learning_rate, above=True)
    threshold = check_whole("threshold", threshold, 1)

    def update(updates: Params, state: Any, params: Any = None, **extra: Any) -> tuple[Params, Any]:
        del params
        arrivals: Arrivals = extra["arrivals"]
        oldest = jnp.where(arrivals.counted, arrivals.staleness, 0).max()
        late = 1 / jnp.maximum(oldest, 1).astype(float)
        late = jnp.minimum(1, late / learning_rate) if capped else late
        factor = jnp.where(oldest > threshold, late, 1)
        return jax.tree.map(lambda u: u * factor.astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def fadas(
    learning_rate: float | jax.Array, threshold: int = 1, capped: bool = False, **moments: Any
) -> optax.GradientTransformationExtraArgs:
    """CC-FedAMS's server with the delay rule; with `normalise="none"`.

    Args:
        learning_rate, threshold, capped: as for `slower_when_stale`.
        moments: b1, b2, eps and initial_accumulator of `cc_fedams`.

    Raises:
        ValueError: for a number outside its range.

    Examples:
        >>> server = ccfl.systems.fadas(learning_rate=1.0, b1=0.5, b2=0.75, eps=0.25)
        >>> two = jnp.ones(2, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(2), jnp.array([0, 4]), two, two, two > 0, two.sum())
        >>> update, _ = server.update(
        ...     jnp.float32(0.5), server.init(jnp.zeros(())), arrivals=arrivals
        ... )
        >>> float(update)  # a quarter of the step of `cc_fedams`, as the largest staleness is 4
        -0.125
    """
    slower = slower_when_stale(learning_rate, threshold, capped)
    return optax.chain(cc_fedams(learning_rate, **moments), slower)
