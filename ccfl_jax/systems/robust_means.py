r"""Robust aggregation in which every upload has a say, but none a large one.

As in `robust`, m stands for the uploads that a round counts, which weigh the same; where there are
none the pseudo-gradient is 0, and the round changes nothing.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.aggregators import of_all
from ccfl_jax.algorithm.types import Aggregate, Arrivals, Params
from ccfl_jax.checks import check_known, check_whole
from ccfl_jax.systems.lengths import lengths, mean_of, shortened


def geometric_median(iterations: int = 3, smoothing: float | jax.Array = 1e-6) -> Aggregate:
    r"""The point with the least sum of distances to the uploads, approached by Weiszfeld's steps.

    .. math:: \beta_i = \frac{1 / m}{\max(\nu, |v - \Delta^i|)}, \qquad
              v \leftarrow \frac{\sum_i \beta_i \Delta^i}{\sum_i \beta_i}

    Pillutla, Kakade, Harchaoui (2022), "Robust Aggregation for Federated Learning" (RFA), IEEE
    Transactions on Signal Processing 70, arXiv:1912.13445. The paper weighs uploads by
    samples; here they weigh the same. Its first point is free: it is the mean, so an upload far
    away needs more iterations until it has lost its influence. It has no state.

    Args:
        iterations: R, at least 1; by default the 3 of the paper's experiments.
        smoothing: nu, above 0; it may be traced, and is then not checked.

    Raises:
        ValueError: for arguments out of their range.

    Examples:
        For `simulation(..., aggregate=aggregate)`:

        >>> one = jnp.ones(5, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(5), 0 * one, one, one, one > 0, one.sum())
        >>> uploads = jnp.array([[1.0], [2.0], [3.0], [4.0], [90.0]])
        >>> aggregate = ccfl.systems.geometric_median(iterations=100)
        >>> delta, _ = aggregate.finish(uploads, arrivals, aggregate.init(uploads[0]))
        >>> round(float(delta[0]), 1)
        3.0
    """
    iterations = check_whole("iterations", iterations, 1)
    smoothing = check_known("smoothing", smoothing, above=True)

    def of(uploads: Params, counted: jax.Array) -> Params:
        def step(turn: jax.Array, point: Params) -> Params:
            del turn
            far = lengths(jax.tree.map(lambda a, v: a - v[None], uploads, point))
            far = jnp.maximum(jnp.asarray(smoothing, far.dtype), far)
            # Over the nearest, or the sum of the weights could be 0.
            nearest = jnp.where(counted, far, jnp.inf).min()
            return mean_of(uploads, jnp.where(counted, nearest / far, 0))

        return jax.lax.fori_loop(0, iterations, step, mean_of(uploads, counted.astype(float)))

    return of_all(of)


def centred_clipping(radius: float | jax.Array, iterations: int = 1) -> Aggregate:
    r"""The last pseudo-gradient, moved by the mean of the uploads' clipped differences from it.

    .. math:: v \leftarrow v + \frac{1}{m} \sum_i (\Delta^i - v)
              \min\left(1, \frac{\tau}{|\Delta^i - v|}\right), \qquad \Delta_t = v

    Karimireddy, He, Jaggi (2021), "Learning from History for Byzantine Robust Optimization",
    arXiv:2012.10333. Its state is v, from round to round: 0 before round 0 (the paper
    leaves it open), unchanged by a round that counts no upload. The paper's workers send momenta;
    a rule of such uploads is `terms.sending(optax.ema(beta, debias=False))`.

    Args:
        radius: tau, above 0; it may be traced, and is then not checked.
        iterations: L, at least 1, of each round.

    Raises:
        ValueError: for arguments out of their range.

    Examples:
        For `simulation(..., aggregate=aggregate)`:

        >>> one = jnp.ones(5, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(5), 0 * one, one, one, one > 0, one.sum())
        >>> uploads = jnp.array([[1.0], [2.0], [3.0], [4.0], [90.0]])
        >>> aggregate = ccfl.systems.centred_clipping(radius=1.0)
        >>> delta, _ = aggregate.finish(uploads, arrivals, aggregate.init(uploads[0]))
        >>> print(delta)  # each moves it by 1 / 5 at most
        [1.]
    """
    radius = check_known("radius", radius, above=True)
    iterations = check_whole("iterations", iterations, 1)

    def init(params: Params) -> Params:
        return jax.tree.map(jnp.zeros_like, tree_util.wide(params))

    def finish(uploads: Any, arrivals: Arrivals, memory: Params) -> tuple[Params, Params]:
        def of(uploads: Params, counted: jax.Array) -> Params:
            def step(turn: jax.Array, center: Params) -> Params:
                del turn
                away = jax.tree.map(lambda a, v: a - v[None], uploads, center)
                moved = mean_of(shortened(away, radius), counted.astype(float))
                return jax.tree.map(lambda v, a: v + a.astype(v.dtype), center, moved)

            return jax.lax.fori_loop(0, iterations, step, memory)

        center, _ = of_all(of).finish(uploads, arrivals, ())
        return center, center

    return Aggregate(init, finish, stacked=True)


def norm_bound(bound: float | jax.Array) -> Aggregate:
    r"""The mean of the uploads, the longer ones scaled to the length `bound`.

    .. math:: \Delta_t = \frac{1}{m} \sum_i \Delta^i \min\left(1, \frac{M}{|\Delta^i|}\right)

    Sun, Kairouz, Suresh, McMahan (2019), "Can You Really Backdoor Federated Learning?",
    arXiv:1911.07963, without its noise. It is `terms.sending(optax.clip_by_global_norm(bound))` and
    `mean()`, done by the server: an attacker would not clip. Where all clients can be trusted to,
    that rule holds no uploads at once. It has no state.

    Args:
        bound: M, above 0; it may be traced, and is then not checked.

    Raises:
        ValueError: for another bound.

    Examples:
        For `simulation(..., aggregate=aggregate)`:

        >>> one = jnp.ones(4, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(4), 0 * one, one, one, one > 0, one.sum())
        >>> uploads = jnp.array([[1.0], [2.0], [4.0], [64.0]])
        >>> aggregate = ccfl.systems.norm_bound(2.0)
        >>> delta, _ = aggregate.finish(uploads, arrivals, aggregate.init(uploads[0]))
        >>> print(delta)  # a mean of 1, 2, 2 and 2
        [1.75]
    """
    bound = check_known("bound", bound, above=True)
    return of_all(
        lambda uploads, counted: mean_of(shortened(uploads, bound), counted.astype(float))
    )
