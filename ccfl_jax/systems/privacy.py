r"""Differential privacy of clients: clipped uploads, and Gaussian noise on their sum.

Each method is a triple, `(rule, aggregate, noise)`; the noise goes before the server method:

    rule, aggregate, noise = systems.dp_fedavg(clip=0.5, noise_multiplier=1.0, uploads=100)
    server = optax.chain(noise, ccfl.cc_fedadam(0.01))
    round_fn = ccfl.build_round(task, server, 0.1, rule=rule, aggregate=aggregate)

`epsilon_of_sampling` and `epsilon_of_schedule` say what it is worth. The divisor is a fixed number,
not that of the uploads that came: one client then moves the mean by clip / uploads at most, whoever
else takes part. What a `rule` does to uploads comes before the clip. A weight or compression after
it, or error feedback around it, would break the bound. This is a simulation: its noise follows from
the run's seed and is rounded like any float, so it protects no real client (Mironov, 2012).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.aggregators import mean
from ccfl_jax.algorithm.terms import sending
from ccfl_jax.algorithm.types import Aggregate, Params, Rule
from ccfl_jax.checks import check_kind, check_known, check_number, check_whole
from ccfl_jax.systems.draws import key_of, noised, normal_like

Scalar = float | jax.Array
Private = tuple[Rule, Aggregate, optax.GradientTransformation]
_GAUSSIAN, _TREE = 11, 12  # streams of `key_of`


class TreeNoiseState(NamedTuple):
    """State of `tree_noise`.

    Attributes:
        count: int32 scalar, t, the sums so far.
        nodes: the noise of the last node of each level, `[levels, ...]` like the parameters.
    """

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride], as in optax
    nodes: Params


def gaussian_noise(std: Scalar) -> optax.GradientTransformationExtraArgs:
    r"""Adds :math:`N(0, \sigma^2)` to every number, drawn anew in each round.

    Before a server method it is noise on the pseudo-gradient; in `terms.sending` each client adds
    its own (local privacy). Two of them in one chain would draw the same numbers.

    Args:
        std: sigma, at least 0.

    Raises:
        ValueError: for a negative std.

    Examples:
        >>> server = optax.chain(ccfl.systems.gaussian_noise(0.5), ccfl.cc_fedsgd(1.0))
        >>> zeros = jnp.zeros(10_000)
        >>> update, _ = server.update(zeros, server.init(zeros), key=jax.random.key(0))
        >>> round(float(update.std()), 1)
        0.5
    """
    std = check_known("std", std)

    def update(
        updates: Params, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, Any]:
        del params
        return noised(updates, key_of(extra, _GAUSSIAN), std), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def tree_noise(std: Scalar, rounds: int) -> optax.GradientTransformationExtraArgs:
    r"""The noise of DP-FTRL (Kairouz et al., 2021): the sum of the pseudo-gradients up to round t
    gets that of the nodes of a binary tree, so no sampling is needed and little noise adds up.

    .. math:: \tilde\Delta_t = \Delta_t + N_t - N_{t-1}, \qquad
              N_t = \sum_{j \,:\, \text{bit } j \text{ of } t \text{ is } 1} z_j, \qquad
              z_j \sim N(0, \sigma^2 I)

    with t from 1 and z_j drawn at the t whose lowest bit is j, so :math:`\sum_{r \le t}
    \tilde\Delta_r` has noise of variance sigma^2 popcount(t). Before `cc_fedsgd(eta)` it is
    :math:`x_t = x_0 - \eta (\sum_r \Delta_r + N_t)`, the paper's method without momentum. The tree
    is the plain one, without the estimator of less variance (Honaker, 2015) and the restarts of the
    paper's experiments. t counts the server's steps, so not rounds without uploads.

    Args:
        std: sigma, a node's noise, at least 0.
        rounds: T; after so many steps the tree is full, and updates are nan.

    Raises:
        ValueError: for a negative std or rounds that are not an integer >= 1.

    Examples:
        >>> server = optax.chain(ccfl.systems.tree_noise(1.0, rounds=4), ccfl.cc_fedsgd(1.0))
        >>> zeros = jnp.zeros(10_000)
        >>> state, total = server.init(zeros), zeros
        >>> for key in jax.random.split(jax.random.key(0), 4):
        ...     update, state = server.update(zeros, state, key=key)
        ...     total += update

        >>> round(float(total.std()), 1)  # of one node: the four rounds' noise has not added up
        1.0
    """
    std, rounds = check_known("std", std), check_whole("rounds", rounds, 1, 2**31 - 2)
    levels = rounds.bit_length()

    def init(params: Params) -> TreeNoiseState:
        def zeros(p: jax.Array) -> jax.Array:
            return jnp.zeros((levels, *p.shape), tree_util.at_least_float32(p.dtype))

        return TreeNoiseState(jnp.zeros((), jnp.int32), jax.tree.map(zeros, params))

    def update(
        updates: Params, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, TreeNoiseState]:
        del params
        count = state.count + 1
        level = jax.lax.population_count((count & -count) - 1)  # zeros below the lowest one
        fresh = normal_like(key_of(extra, _TREE), updates)
        fresh = jax.tree.map(lambda a, n: (std * a).astype(n.dtype), fresh, state.nodes)

        def change(new: jax.Array, nodes: jax.Array) -> jax.Array:
            ended = (jnp.arange(levels) < level).reshape(-1, *[1] * new.ndim)
            return jnp.where(count > rounds, jnp.nan, new - jnp.where(ended, nodes, 0).sum(axis=0))

        nodes = jax.tree.map(lambda a, n: n.at[level].set(a, mode="drop"), fresh, state.nodes)
        noise = jax.tree.map(change, fresh, state.nodes)
        noisy = jax.tree.map(lambda a, n: a.astype(n.dtype) + n, updates, noise)
        return noisy, TreeNoiseState(count, nodes)

    return optax.GradientTransformationExtraArgs(init, update)


def dp_fedavg(
    clip: Scalar, noise_multiplier: Scalar, uploads: float, rule: Rule | None = None
) -> Private:
    r"""DP-FedAvg with a fixed clip (McMahan et al., 2018).

    .. math:: \Delta_t = \frac1m \Big( \sum_i \Delta^i \min\big(1, \tfrac{S}{|\Delta^i|}\big)
              + N(0, z^2 S^2 I) \Big)

    All uploads weigh the same, and the clip is of all leaves together (the paper's flat clipping);
    m is the expected number of uploads, the paper's q W.

    Args:
        clip: S, above 0.
        noise_multiplier: z, at least 0.
        uploads: m, above 0.
        rule: what clients do besides; by default Algorithm 3.

    Returns:
        The rule, the aggregator, and the noise, to be put before the server method.

    Raises:
        ValueError: for a number outside its range; when the round is traced for a `rule` of
            weighted uploads, or one whose server knows a mean of the clients' memories: that has no
            noise.

    Examples:
        >>> rule, aggregate, noise = ccfl.systems.dp_fedavg(
        ...     clip=0.5, noise_multiplier=1.0, uploads=5
        ... )
        >>> server = optax.chain(noise, ccfl.cc_fedsgd(1.0))
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> simulation = ccfl.simulation(
        ...     task, server, normalise="none", rule=rule, aggregate=aggregate
        ... )
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(
        ...     *map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), rule.memory(x), jax.random.key(0)
        ... )
        >>> end = ccfl.End(upload=jnp.array([0.0, -4.0]), info=(), params=x, optimiser=())
        >>> print(rule.finish(visit, end)[0])  # what a client sends
        [ 0.  -0.5]
    """
    rule, aggregate, std = _clipping(clip, noise_multiplier, uploads, rule)
    return rule, aggregate, gaussian_noise(std)


def dp_ftrl(
    clip: Scalar,
    noise_multiplier: Scalar,
    uploads: float,
    rounds: int,
    rule: Rule | None = None,
) -> Private:
    """DP-FTRL (Kairouz et al., 2021): uploads as in `dp_fedavg`, and `tree_noise`.

    Args:
        clip, noise_multiplier, uploads, rule: as in `dp_fedavg`; the noise is that of a node of
            the tree (`epsilon_of_schedule(..., tree=True)`).
        rounds: of the run, T.

    Returns:
        The rule, the aggregator, and the noise; before `cc_fedsgd` it is the paper's method.

    Raises:
        ValueError: as `dp_fedavg` and `tree_noise`.

    Examples:
        >>> rule, aggregate, noise = ccfl.systems.dp_ftrl(
        ...     clip=0.5, noise_multiplier=5.0, uploads=5, rounds=100
        ... )
        >>> server = optax.chain(noise, ccfl.cc_fedsgd(1.0))
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> simulation = ccfl.simulation(
        ...     task, server, normalise="none", rule=rule, aggregate=aggregate
        ... )
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(
        ...     *map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), rule.memory(x), jax.random.key(0)
        ... )
        >>> end = ccfl.End(upload=jnp.array([0.0, -4.0]), info=(), params=x, optimiser=())
        >>> print(rule.finish(visit, end)[0])  # what a client sends
        [ 0.  -0.5]
    """
    rule, aggregate, std = _clipping(clip, noise_multiplier, uploads, rule)
    return rule, aggregate, tree_noise(std, rounds)


def _clipping(
    clip: Scalar, noise_multiplier: Scalar, uploads: float, rule: Rule | None
) -> tuple[Rule, Aggregate, Scalar]:
    """Clipped uploads, their mean over a fixed number, and the noise of a node or a round."""
    clip = check_known("clip", clip, above=True)
    noise_multiplier = check_known("noise_multiplier", noise_multiplier)
    check_number("uploads", uploads, above=True)

    def limit(updates: Params, params: Params | None) -> Params:
        del params
        return times(updates, clip / jnp.maximum(norm(updates), clip))

    own = sending(optax.stateless(limit), without_shared(rule))
    return own, mean(over=uploads), noise_multiplier * clip / uploads


def without_shared(rule: Rule | None) -> Rule:
    """`rule`, refused when it is traced where a mean of memories would reach the server."""
    check_kind("rule", rule, Rule | None, "a ccfl.Rule or None")
    own = rule or Rule()

    def shared(memory: Any) -> Any:
        part = own.shared(memory)
        if jax.tree.leaves(part):
            raise ValueError(
                "rule: expected one without a mean of the clients' memories, which gets no noise, "
                "found one with it"
            )
        return part

    return own._replace(shared=shared)


def norm(updates: Params) -> jax.Array:
    """Of all leaves together, in at least float32."""
    return optax.tree.norm(tree_util.wide(updates))


def times(updates: Params, factor: jax.Array) -> Params:
    """All leaves times a number, of at least float32."""
    return jax.tree.map(lambda a: a * factor.astype(a.dtype), tree_util.wide(updates))
