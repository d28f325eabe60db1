"""FedPA (Al-Shedivat et al., 2021, arXiv:2010.05273): uploads from samples of local posteriors."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.terms import before
from ccfl_jax.algorithm.types import End, Params, Rule, Visit
from ccfl_jax.checks import check_known, check_whole


class Samples(NamedTuple):
    """Samples of a local posterior, each the mean of `every` iterates.

    Attributes:
        step: int32 scalar, iterates seen.
        sums: the samples, `[samples, ...]`.
    """

    step: jax.Array
    sums: Params


def fedpa(burn_in: int, every: int, samples: int, shrinkage: float | jax.Array = 0.01) -> Rule:
    r"""Uploads :math:`\hat\Sigma^{-1} (x - \hat\mu)` of the samples' shrunk covariance.

    The samples are means of `every` iterates of the local optimiser after the first `burn_in`;
    :math:`\hat\Sigma = \rho_l I + (1 - \rho_l) S` of l of them, with S their covariance and
    :math:`\rho_l = 1 / (1 + (l - 1) \rho)`. With `normalise="none"` and any server. Departures: by
    Woodbury's identity instead of its recursion; a visit of too few steps for one sample uploads
    its plain difference; iterates after the last sample are not used.

    Args:
        burn_in: local steps before the first sample, at least 0.
        every: iterates averaged to a sample, at least 1.
        samples: l at most, at least 1.
        shrinkage: rho, at least 0.

    Raises:
        ValueError: for a number outside its range.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.fedpa(burn_in=20, every=10, samples=4)
        >>> simulation = ccfl.simulation(
        ...     task, ccfl.cc_fedams(0.02), 0.1, normalise="none", rule=rule
        ... )
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> int(state.round), state.clients  # clients keep nothing
        (0, ())
    """
    burn_in = check_whole("burn_in", burn_in, 0)
    every, samples = check_whole("every", every, 1), check_whole("samples", samples, 1)
    shrinkage = check_known("shrinkage", shrinkage)

    averages = _averages(burn_in, every, samples)

    def local(visit: Visit, optimiser: Any) -> optax.GradientTransformation:
        del visit
        return before(averages, optimiser=optimiser)

    def finish(visit: Visit, end: End) -> tuple[Params, Any]:
        # An iterate is seen by the step after it: the last one of a visit here.
        seen: Any = averages.update((), end.optimiser[0], end.params)[1]
        whole = jnp.clip((end.info.steps - burn_in) // every, 0, samples)
        posterior = _posterior(visit.start, seen.sums, whole, shrinkage)
        return tree_util.select(whole > 0, posterior, end.upload), visit.memory

    return Rule(local=local, finish=finish)


def _averages(burn_in: int, every: int, samples: int) -> optax.GradientTransformation:
    """Averages the iterates before each step; changes nothing."""

    def init(params: Params) -> Samples:
        def rows(p: jax.Array) -> jax.Array:
            return jnp.zeros((samples, *p.shape), tree_util.at_least_float32(p.dtype))

        return Samples(jnp.zeros((), jnp.int32), jax.tree.map(rows, params))

    def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, Samples]:
        late = state.step - burn_in - 1  # the first iterate is the start model
        row = jnp.where(late >= 0, late // every, samples)
        sums = jax.tree.map(
            lambda s, p: s.at[row].add(p.astype(s.dtype) / every, mode="drop"), state.sums, params
        )
        return updates, Samples(state.step + 1, sums)

    return optax.GradientTransformation(init, update)


def _posterior(start: Params, rows: Params, count: jax.Array, shrinkage: Any) -> Params:
    """The upload of the first `count` samples, in their dtype."""
    leaves, structure = jax.tree.flatten(rows)
    x = jnp.concatenate([a.reshape(len(a), -1) for a in leaves], axis=1)
    first = jnp.concatenate([a.astype(x.dtype).ravel() for a in jax.tree.leaves(start)])
    taken = (jnp.arange(len(x)) < count)[:, None]
    n = jnp.maximum(count, 1).astype(x.dtype)
    mean = jnp.where(taken, x, 0).sum(axis=0) / n
    rho = 1 / (1 + (n - 1) * shrinkage)
    spread = jnp.where(taken, x - mean[None], 0) * jnp.sqrt((1 - rho) / jnp.maximum(n - 1, 1))
    gap = first - mean
    small = rho * jnp.eye(len(x), dtype=x.dtype)
    small += jnp.matmul(spread, spread.T, precision="highest")
    inner = jnp.linalg.solve(small, jnp.matmul(spread, gap, precision="highest"))
    flat = (gap - jnp.matmul(inner, spread, precision="highest")) / rho
    ends, parts = 0, []
    for a in leaves:
        parts.append(flat[ends : ends + a[0].size].reshape(a.shape[1:]))
        ends += a[0].size
    return structure.unflatten(parts)
