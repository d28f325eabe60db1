"""Differential privacy with a clip that follows the uploads' norms."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm.aggregators import mean
from ccfl_jax.algorithm.types import End, Params, Rule, Visit, Weighted
from ccfl_jax.checks import check_known, check_number
from ccfl_jax.systems.draws import key_of, noised
from ccfl_jax.systems.privacy import Private, Scalar, norm, times, without_shared

_SUM, _COUNT = 13, 14  # streams of `key_of`


class AdaptiveClipState(NamedTuple):
    """State of the noise of `dp_fedavg_adaptive`.

    Attributes:
        clip: float scalar, C^t.
    """

    clip: jax.Array


class Clipped(NamedTuple):
    """What a client of `dp_fedavg_adaptive` sends, and the mean of it.

    Attributes:
        value: the clipped upload over its clip, of norm 1 at most.
        below: 1/2 where the upload was within the clip, otherwise -1/2.
    """

    value: Params
    below: jax.Array


def dp_fedavg_adaptive(
    noise_multiplier: float,
    uploads: float,
    quantile: Scalar = 0.5,
    rate: Scalar = 0.2,
    first_clip: Scalar = 0.1,
    count_noise: float | None = None,
    rule: Rule | None = None,
) -> Private:
    r"""DP-FedAvg whose clip follows a quantile of the uploads' norms (Andrew et al., 2021).

    .. math:: \tilde b^t = \frac12 + \frac1m \Big( \sum_i (b_i - \tfrac12) + N(0, \sigma_b^2)
              \Big), \quad b_i = [\,|\Delta^i| \le C^t\,], \qquad
              C^{t+1} = C^t e^{-\eta_C (\tilde b^t - \gamma)}

    The model's noise has the multiplier :math:`z_\Delta = (z^{-2} - (2\sigma_b)^{-2})^{-1/2}`, so
    that both together are worth z, that of `epsilon_of_sampling` and `epsilon_of_schedule`. The
    half is the paper's remark on sensitivity; where fewer than m upload, b is drawn to 1/2, not 0.

    The paper has no stale clients. Here one clips by the clip that came with its start model,
    :math:`C^{t-s}`, and sends the result in units of it, which the server multiplies by
    :math:`C^t`: so none moves the sum by more than C^t, whose noise it gets.

    Args:
        noise_multiplier: z, at least 0.
        uploads: m, above 0.
        quantile: gamma, in [0, 1].
        rate: eta_C, at least 0.
        first_clip: C^0, above 0.
        count_noise: sigma_b, above z / 2; by default m / 20, the paper's advice, but z at least,
            as a small m needs: the model's noise is then 1.15 z. 0 without noise.
        rule: what clients do besides; by default Algorithm 3.

    Returns:
        The rule, the aggregator, and the noise, to be put before the server method; `adaptive_clip`
        finds C^t in the server's state.

    Raises:
        ValueError: as `dp_fedavg`.

    Examples:
        >>> rule, aggregate, noise = ccfl.systems.dp_fedavg_adaptive(
        ...     noise_multiplier=1.0, uploads=50, first_clip=0.25
        ... )
        >>> server = optax.chain(noise, ccfl.cc_fedsgd(1.0))
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> simulation = ccfl.simulation(
        ...     task, server, normalise="none", rule=rule, aggregate=aggregate
        ... )
        >>> state = simulation.init(jax.random.key(0), history_length=6)
        >>> float(ccfl.systems.adaptive_clip(state.server))  # the clip of round 0
        0.25
    """
    check_number("noise_multiplier", noise_multiplier)
    quantile, rate = check_known("quantile", quantile, most=1), check_known("rate", rate)
    first_clip = check_known("first_clip", first_clip, above=True)
    check_number("uploads", uploads, above=True)
    aggregate, least = mean(over=uploads), uploads / 20 if noise_multiplier else 0.0
    sigma = max(least, noise_multiplier) if count_noise is None else count_noise
    check_number("count_noise", sigma)
    model_noise = _model_noise(noise_multiplier, sigma)

    def init(params: Params) -> AdaptiveClipState:
        return AdaptiveClipState(jnp.asarray(first_clip, float))

    def update(
        updates: Any, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, AdaptiveClipState]:
        del params
        # Without the rule, as where a round is checked, there is no count.
        value, below = updates if isinstance(updates, Clipped) else (updates, 0.0)
        noisy = noised(value, key_of(extra, _SUM), model_noise / uploads)
        drawn = jax.random.normal(key_of(extra, _COUNT), (), state.clip.dtype)
        share = below + sigma / uploads * drawn + 0.5
        clip = state.clip * jnp.exp(-rate * (share - quantile))
        scaled = jax.tree.map(lambda a: a * state.clip.astype(a.dtype), noisy)
        return scaled, AdaptiveClipState(clip.astype(state.clip.dtype))

    noise = optax.GradientTransformationExtraArgs(init, update)
    return _told_the_clip(without_shared(rule)), aggregate, noise


def adaptive_clip(state: optax.OptState) -> jax.Array:
    """C^t of `dp_fedavg_adaptive`, from the server's state (`State.server`); nan without one.

    Examples:
        >>> _, _, noise = ccfl.systems.dp_fedavg_adaptive(
        ...     noise_multiplier=1.0, uploads=50, first_clip=0.25
        ... )
        >>> state = optax.chain(noise, ccfl.cc_fedsgd(1.0)).init(jnp.zeros(2))  # as `State.server`
        >>> float(ccfl.systems.adaptive_clip(state))
        0.25
    """
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, AdaptiveClipState))
    found = [node.clip for node in nodes if isinstance(node, AdaptiveClipState)]
    return found[0] if found else jnp.asarray(jnp.nan, float)


def _told_the_clip(rule: Rule) -> Rule:
    """`rule` with the clip sent out beside its message, and `Clipped` uploads."""

    def inner(visit: Visit) -> Visit:
        return visit._replace(message=visit.message[0])

    def finish(visit: Visit, end: End) -> tuple[Clipped, Any]:
        upload, memory = rule.finish(inner(visit), end)
        if isinstance(upload, Weighted):
            raise ValueError("rule: expected one of plain uploads, found one of weighted ones")
        clip, size = visit.message[1], norm(upload)
        unit = times(upload, 1 / jnp.maximum(size, clip))
        return Clipped(unit, jnp.where(size <= clip, 0.5, -0.5).astype(clip.dtype)), memory

    return rule._replace(
        message=lambda mean, state: (rule.message(mean, state), adaptive_clip(state.server)),
        begin=lambda visit: rule.begin(inner(visit)),
        local=lambda visit, optimiser: rule.local(inner(visit), optimiser),
        finish=finish,
    )


def _model_noise(noise_multiplier: float, count_noise: float) -> float:
    """z_Delta, the part of z that is left beside the noise of the counts."""
    if not noise_multiplier:
        return 0.0
    if 2 * count_noise <= noise_multiplier:
        raise ValueError(
            f"count_noise: expected more than noise_multiplier / 2 = {noise_multiplier / 2:g}, "
            f"found {count_noise:g}"
        )
    return (noise_multiplier**-2 - (2 * count_noise) ** -2) ** -0.5
