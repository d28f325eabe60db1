"""Dropout acts in training, whatever a model's switch is called, or the model is refused."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusal import refused
from same_function import normal

import ccfl_jax as ccfl
from ccfl_jax.models.flax_model import functions

pytestmark = pytest.mark.usefixtures("quickly_compiled")
RATE = 0.25


class ByTrain(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(3)(nn.Dropout(RATE, deterministic=not train)(x))


class ByDeterministic(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic=True):
        return nn.Dense(3)(nn.Dropout(RATE)(x, deterministic=deterministic))


class OnlyInTraining(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(3)(nn.Dropout(RATE, deterministic=False)(x) if train else x)


class Nnx(nnx.Module):
    """As `train()` and `eval()` switch it; `off` is what its second layer is called with."""

    def __init__(self, rngs, off=None, rate=0.0, own=True):
        self.dense = nnx.Linear(4, 3, rngs=rngs)
        self.first = nnx.Dropout(RATE, rngs=rngs if own else None)
        self.second, self.off = nnx.Dropout(rate, rngs=rngs), off

    def __call__(self, x):
        return self.dense(self.second(self.first(x), deterministic=self.off))


def evaluated():
    module = Nnx(nnx.Rngs(0))
    module.eval()
    return module


@pytest.mark.parametrize(
    "model",
    [ByTrain(), ByDeterministic(), OnlyInTraining(), Nnx, evaluated()],
    ids=["train", "deterministic", "only in training", "nnx", "nnx after eval()"],
)
def test_a_linear_model_with_dropout_has_the_mean_and_variance_of_inverted_dropout(model):
    """An input is 0 or x / (1 - p): its mean is x, its variance x^2 p / (1 - p)."""
    init, apply, same = functions(model, (4,), jnp.float32, (3,), None)
    params, x, draws = init(jax.random.key(0)), np.array(normal((2, 4))), 4000
    assert not same
    (dense,) = params.values()
    kernel, bias = np.float64(dense["kernel"]), np.float64(dense["bias"])
    keys = jax.random.split(jax.random.key(1), draws)
    found = np.float64(jax.jit(jax.vmap(apply, (None, None, 0)))(params, x, keys))
    mean, variance = x @ kernel + bias, x**2 @ kernel**2 * RATE / (1 - RATE)
    error = np.sqrt(variance / draws)
    assert (found[0] != found[1]).all()
    assert (abs(found.mean(axis=0) - mean) < 5 * error).all()
    np.testing.assert_allclose(found.var(axis=0), variance, rtol=0.15)
    np.testing.assert_allclose(apply(params, x, None), mean, rtol=1e-5, atol=1e-6)


class Several(nn.Module):
    """Layers that drop: one that follows `train`, and one that is off in training."""

    off: nn.Module

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dropout(0.1, deterministic=not train)(nn.Dense(4)(x))[:, None]
        return nn.Dense(3)(self.off(x, deterministic=True)[:, 0])


class Again(nn.Module):
    """One layer, called twice: it acts once."""

    @nn.compact
    def __call__(self, x, train=False):
        drop = nn.Dropout(0.5)
        return nn.Dense(3)(drop(drop(x, deterministic=True), deterministic=not train))


class Unknown(nn.Module):
    @nn.compact
    def __call__(self, x, evaluate=True):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=evaluate)(x))


class Needs(nn.Module):
    @nn.compact
    def __call__(self, x, mode):
        return nn.Dense(3)(x)


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        noise = jax.random.normal(self.make_rng("noise"), x.shape) if train else 0
        return nn.Dense(3)(x + noise)


NONE = "model: expected dropout in training (a model is told that it trains by ...), found none by"
CALLED = (
    "model: expected one that can be called with float32 [2, 4], or for token ids next_token_task "
    "(...), found in"
)
ATTENTION = nn.MultiHeadDotProductAttention(2, dropout_rate=0.5)


@pytest.mark.parametrize(("model", "message"), [
    (nn.Sequential([nn.Dropout(0.5, deterministic=True), nn.Dense(3)]), f"{NONE} layers_0 of ...5"),
    (Unknown(), f"{NONE} Dropout_0 of rate 0.5"),
    (Several(nn.Dropout(0.5)), f"{NONE} off of rate 0.5"),
    (Several(ATTENTION), f"{NONE} off of rate 0.5"),
    (functools.partial(Nnx, off=True, rate=0.5), f"{NONE} second of rate 0.5"),
    (functools.partial(Nnx, own=False), f"{CALLED} training ValueError: ... no `rngs` argument..."),
    (Needs(), f"{CALLED} evaluation TypeError: ... argument: 'mode'"),
    (Noisy(), "model: expected draws of the stream dropout, found ...needs PRNG for \"noise\"..."),
    (lambda rngs: 3, "model: expected an nnx.Module of a function of rngs, found 3"),
    ("cnn", "model: expected a Flax module, or a function rngs -> nnx.Module, found 'cnn'"),
])  # fmt: skip
def test_a_layer_that_never_drops_and_a_model_that_cannot_be_called_are_refused(model, message):
    refused(message, ccfl.classification_task, model, (4,), 3)


@pytest.mark.parametrize("model", [
    Again(), Several(nn.Dropout(0.0)), functools.partial(Nnx, off=True, rate=0.0),
], ids=["called again", "of rate 0", "nnx of rate 0"])  # fmt: skip
def test_a_layer_that_acts_once_or_has_no_rate_is_taken(model):
    assert ccfl.classification_task(model, (4,), 3).observe is None
