"""FedSAM and FedLESAM: gradients at a perturbed model, for flat minima."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm.terms import before
from ccfl_jax.algorithm.types import End, Params, Rule, Visit
from ccfl_jax.checks import check_known


def sam(rho: float | jax.Array = 0.05) -> optax.GradientTransformationExtraArgs:
    r"""The gradient at :math:`y + \rho\, g / |g|` of the same batch instead of g, that at y.

    FedSAM (Qu et al., 2022, arXiv:2206.02618) is `optax.chain(sam(0.05), optax.sgd(local_lr))` as
    `local`. A step takes two gradients.

    Args:
        rho: at least 0.

    Raises:
        ValueError: for a negative rho.

    Examples:
        >>> local = optax.chain(ccfl.systems.sam(rho=0.5), optax.sgd(1.0))  # as `local`
        >>> loss = lambda x: (x**2).sum()
        >>> x = jnp.array([1.0, 0.0])
        >>> update, _ = local.update(jax.grad(loss)(x), local.init(x), x, value_fn=loss)
        >>> print(update)  # the gradient at 1.5
        [-3. -0.]
    """
    rho = check_known("rho", rho)
    return _perturbed(lambda gradient: _of_length(gradient, rho))


def fedlesam(rho: float | jax.Array = 0.05) -> Rule:
    r"""FedLESAM (Fan et al., 2024, arXiv:2405.18890): the perturbation is :math:`\rho
    (x^{old} - x) / |x^{old} - x|`, of the models that the client downloaded last time and now.

    A client's first visit perturbs nothing. With `normalise="none"` and the server `cc_fedavg()`.

    Args:
        rho: at least 0.

    Raises:
        ValueError: for a negative rho.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.fedlesam(rho=0.05)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedavg(), 0.1, normalise="none", rule=rule)
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> old, came = state.clients
        >>> int(came.sum())  # of 30 clients none has downloaded a model
        0
    """
    rho = check_known("rho", rho)

    def local(visit: Visit, optimiser: Any) -> optax.GradientTransformation:
        old, came = visit.memory
        moved = jax.tree.map(lambda a, b: jnp.where(came, a - b, 0), old, visit.start)
        away = _of_length(moved, rho)
        return before(_perturbed(lambda gradient: away), optimiser=optimiser)

    def finish(visit: Visit, end: End) -> tuple[Params, Any]:
        return end.upload, (visit.start, jnp.ones((), bool))

    return Rule(memory=lambda params: (params, jnp.zeros((), bool)), local=local, finish=finish)


def _of_length(tree: Params, length: Any) -> Params:
    norm = optax.tree.norm(tree)
    scale = length / jnp.where(norm > 0, norm, 1)
    return jax.tree.map(lambda a: a * scale.astype(a.dtype), tree)


def _perturbed(away: Callable[[Params], Params]) -> optax.GradientTransformationExtraArgs:
    """Takes the gradient at params + away(gradient)."""

    def update(updates: Params, state: Any, params: Any = None, **extra: Any) -> tuple[Params, Any]:
        return jax.grad(extra["value_fn"])(optax.apply_updates(params, away(updates))), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
