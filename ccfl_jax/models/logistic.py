"""Multinomial logistic regression."""

import math

import flax.linen as nn
import jax


class Logistic(nn.Module):
    """Multinomial logistic regression: the logits `x W + c` of the flattened input.

    Input float `[b, ...]`, output logits `[b, num_classes]`. Flax's default initialisers (LeCun
    normal `W`, zero `c`). Raises ValueError for `num_classes` under 1 and for an input without a
    batch axis.
    """

    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.num_classes < 1:
            raise ValueError(f"Logistic: found num_classes {self.num_classes}, legal: from 1 on")
        if x.ndim < 2:
            raise ValueError(f"Logistic: found input shape {x.shape}, legal: [b, ...]")
        x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        return nn.Dense(self.num_classes, name="dense")(x)
