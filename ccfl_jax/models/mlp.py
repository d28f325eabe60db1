"""Multilayer perceptron."""

import math
from collections.abc import Sequence

import flax.linen as nn
import jax


class MLP(nn.Module):
    """Multilayer perceptron on the flattened input: a dense layer and relu per hidden width.

    Input float `[b, ...]`, output logits `[b, num_classes]`. `features` are the hidden widths.
    Flax's default initialisers (LeCun normal weights, zero biases). Raises ValueError for a width
    under 1 and for an input without a batch axis.

    Examples:
        >>> model = ccfl.models.MLP(features=(200, 100), num_classes=10)
        >>> task = ccfl.classification_task(model, input_shape=(8, 8, 1), num_classes=10)
        >>> params = jax.eval_shape(task.init, jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        34110
    """

    features: Sequence[int] = (200,)
    num_classes: int = 10

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        widths = (*self.features, self.num_classes)
        if min(widths) < 1:
            raise ValueError(f"MLP: expected layer widths >= 1, found {widths}")
        if x.ndim < 2:
            raise ValueError(f"MLP: expected [b, ...], found input shape {x.shape}")
        x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        for i, width in enumerate(self.features, start=1):
            x = nn.relu(nn.Dense(width, name=f"dense{i}")(x))
        return nn.Dense(self.num_classes, name=f"dense{len(self.features) + 1}")(x)
