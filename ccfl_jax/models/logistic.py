"""Multinomial logistic regression."""

import math

import flax.linen as nn
import jax


class Logistic(nn.Module):
    """Multinomial logistic regression: the logits `x W + c` of the flattened input.

    Input float `[b, ...]`, output logits `[b, num_classes]`. Flax's default initialisers (LeCun
    normal `W`, zero `c`). Raises ValueError for `num_classes` under 1 and for an input without a
    batch axis.

    Examples:
        >>> task = ccfl.classification_task(
        ...     ccfl.models.Logistic(10), input_shape=(60,), num_classes=10
        ... )
        >>> jax.tree.map(jnp.shape, task.init(jax.random.key(0)))
        {'dense': {'bias': (10,), 'kernel': (60, 10)}}
    """

    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.num_classes < 1:
            raise ValueError(f"Logistic: expected num_classes >= 1, found {self.num_classes}")
        if x.ndim < 2:
            raise ValueError(f"Logistic: expected [b, ...], found input shape {x.shape}")
        x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        return nn.Dense(self.num_classes, name="dense")(x)
