"""The autoencoder of small grey images."""

import math

import flax.linen as nn
import jax


class Autoencoder(nn.Module):
    """Dense layers to 30 numbers and back: 2,837,314 parameters for 28 x 28 x 1.

    1000, 500, 250, 30, 250, 500, 1000 and as many as the input has, each with a sigmoid but the 30,
    which are linear. Input float `[b, ...]` from 0 to 1, output of its shape. Raises ValueError for
    an input without a batch axis.

    Source: the EMNIST autoencoder of Reddi et al., Adaptive Federated Optimization (ICLR 2021).
    Departure: Flax's initialisers (LeCun normal weights, zero biases).

    Examples:
        >>> model = ccfl.models.Autoencoder()
        >>> x = jnp.zeros((5, 28, 28, 1))
        >>> params = jax.eval_shape(model.init, jax.random.key(0), x)
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        2837314
        >>> jax.eval_shape(model.apply, params, x).shape
        (5, 28, 28, 1)
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if x.ndim < 2:
            raise ValueError(f"Autoencoder: expected [b, ...], found input shape {x.shape}")
        size = math.prod(x.shape[1:])
        y = x.reshape(x.shape[0], size)
        for number, width in enumerate((1000, 500, 250, 30, 250, 500, 1000, size), start=1):
            y = nn.Dense(width, name=f"dense{number}")(y)
            y = y if number == 4 else nn.sigmoid(y)
        return y.reshape(x.shape)
