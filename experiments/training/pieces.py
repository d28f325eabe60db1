"""What the flags of a method name: functions of `ccfl.systems`, and these."""

from collections.abc import Callable
from typing import Any

import jax
import optax

import ccfl_jax as ccfl
from ccfl_jax import systems, terms
from ccfl_jax.checks import check_known
from ccfl_jax.systems.personal import beside

Array = jax.Array


def clip(norm: float | Array) -> optax.GradientTransformation:
    """Uploads of at most this norm."""
    return optax.clip_by_global_norm(check_known("norm", norm, above=True))


def top_k(share: float, feedback: bool) -> optax.GradientTransformation:
    """Of an upload the largest share."""
    return _fed_back(systems.top_k(share), feedback)


def random_k(share: float, feedback: bool) -> optax.GradientTransformation:
    """Of an upload a random share, unbiased where nothing is fed back."""
    return _fed_back(systems.random_k(share, scaled=not feedback), feedback)


def sign(feedback: bool) -> optax.GradientTransformation:
    """Signs with a scale."""
    return _fed_back(systems.sign(), feedback)


def _fed_back(compressor: systems.Compressor, feedback: bool) -> systems.Compressor:
    return systems.with_error_feedback(compressor) if feedback else compressor


def samples(rule: ccfl.Rule | None) -> ccfl.Rule:
    """Weights by samples."""
    return terms.weighted(terms.by_samples, rule)


def polynomial(rule: ccfl.Rule | None, power: float | Array, divide: bool) -> ccfl.Rule:
    """Weights (1 + s)^-power."""
    return terms.weighted(terms.polynomial(power), rule, divide)


def hinge(
    rule: ccfl.Rule | None, slope: float | Array, after: float | Array, divide: bool
) -> ccfl.Rule:
    """Weights that fall from a staleness of `after` on."""
    return terms.weighted(terms.hinge(slope, after), rule, divide)


def sgd(local_lr: float | Array, momentum: float) -> Any:
    """The rate alone, for which a task may have its own step, unless there is momentum."""
    check_known("momentum", momentum, most=1, below=True)
    return optax.sgd(local_lr, momentum) if momentum else local_lr


def adam(rate: float | Array) -> optax.GradientTransformation:
    """optax's, fresh in every visit."""
    return optax.adam(check_known("rate", rate))


def adamw(rate: float | Array, weight_decay: float | Array) -> optax.GradientTransformation:
    """optax's, fresh in every visit."""
    decay = check_known("weight_decay", weight_decay)
    return optax.adamw(check_known("rate", rate), weight_decay=decay)


def sam(local_lr: float | Array, rho: float | Array) -> optax.GradientTransformation:
    """SGD along the gradient at a perturbed model."""
    return optax.chain(systems.sam(rho), optax.sgd(local_lr))


_OWN = {
    function.__name__: function
    for function in (clip, top_k, random_k, sign, samples, polynomial, hinge, sgd, adam, adamw, sam)
} | {"ditto": beside}


def function(name: str) -> Callable:
    """The function that a flag names."""
    return _OWN.get(name) or getattr(systems, name)
