"""Small models for classification tasks, and their losses by hand."""

import functools

import flax.linen as nn
import jax
import numpy as np
from same_function import compiled

import ccfl_jax as ccfl


class Plain(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x.reshape(x.shape[0], -1))


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(x))


@functools.cache
def problem(model=None, shape=(4,), **options):
    """The task of a model with three classes, its programs, and parameters."""
    task = compiled(ccfl.classification_task(model or Plain(), shape, 3, **options))
    return task, task.init(jax.random.key(0))


def losses_by_hand(dense, x, y):
    """Float64: the loss of each row, and the class of its largest logit."""
    logits = np.float64(x) @ np.float64(dense["kernel"]) + np.float64(dense["bias"])[None]
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y], logits.argmax(1)
