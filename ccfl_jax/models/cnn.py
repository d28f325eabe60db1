"""The small convolutional networks of NIID-Bench, of McMahan et al. and of Reddi et al."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from ccfl_jax.models.conv import Conv, ConvReluPool


class CNN(nn.Module):
    """The CNN of NIID-Bench for 28 x 28 images: 44,426 parameters for one channel, ten classes.

    5 x 5 convolution to 6 features, relu, pooling; 5 x 5 convolution to 16, relu, pooling; dense
    120, relu, dense 84, relu, dense `num_classes`. Convolutions are VALID with stride 1, pooling
    is 2 x 2 with stride 2. Input float `[..., h, w, channels]`, output logits
    `[..., num_classes]`. `lowering` is that of its convolutions (see `ConvReluPool`). Raises
    ValueError for images under 16 x 16 and for `num_classes` under 1.

    Source: `SimpleCNNMNIST` of NIID-Bench (Li, Diao, Chen, He, ICDE 2022). Departures: Flax's
    initialisers (LeCun normal weights, zero biases) for PyTorch's uniform ones, and features are
    flattened in the order row, column, channel.

    Examples:
        >>> model = ccfl.models.CNN()
        >>> x = jnp.zeros((5, 28, 28, 1))
        >>> params = jax.eval_shape(model.init, jax.random.key(0), x)
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        44426
        >>> jax.eval_shape(model.apply, params, x).shape
        (5, 10)
    """

    num_classes: int = 10
    lowering: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        _check(self, x, 16)
        x = ConvReluPool(6, (5, 5), self.lowering, name="conv1")(_written(x))
        x = ConvReluPool(16, (5, 5), self.lowering, name="conv2")(x)
        x = x.reshape(*x.shape[:-3], math.prod(x.shape[-3:]))
        x = nn.relu(nn.Dense(120, name="dense1")(x))
        x = nn.relu(nn.Dense(84, name="dense2")(x))
        return nn.Dense(self.num_classes, name="dense3")(x)


class McMahanCNN(nn.Module):
    """McMahan's CNN for 28 x 28 images: 1,663,370 parameters for one channel and ten classes.

    5 x 5 convolution to 32 features, relu, pooling; 5 x 5 convolution to 64, relu, pooling; dense
    512, relu, dense `num_classes`. Convolutions are SAME with stride 1, pooling is 2 x 2 with
    stride 2. Input float `[..., h, w, channels]`, output logits `[..., num_classes]`. `lowering` is
    that of its convolutions (see `ConvReluPool`), by default "banded" for both: on one core a step
    of batch 20 takes 1.1 ms a sample, with both "shifted" 1.7, with the second one alone 6. Raises
    ValueError for images under 4 x 4 and for `num_classes` under 1.

    Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, Communication-Efficient Learning of
    Deep Networks from Decentralized Data (AISTATS 2017), section 3; SAME is what its number of
    parameters implies. Departure: Flax's initialisers (LeCun normal weights, zero biases).

    Examples:
        >>> model = ccfl.models.McMahanCNN()
        >>> x = jnp.zeros((5, 28, 28, 1))
        >>> params = jax.eval_shape(model.init, jax.random.key(0), x)
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        1663370
        >>> jax.eval_shape(model.apply, params, x).shape
        (5, 10)
    """

    num_classes: int = 10
    lowering: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        _check(self, x, 4)
        lowering = self.lowering or "banded"
        x = ConvReluPool(32, (5, 5), lowering, name="conv1")(_written(_bordered(x)))
        x = ConvReluPool(64, (5, 5), lowering, name="conv2")(_bordered(x))
        x = x.reshape(*x.shape[:-3], math.prod(x.shape[-3:]))
        x = nn.relu(nn.Dense(512, name="dense1")(x))
        return nn.Dense(self.num_classes, name="dense2")(x)


class EMNISTCNN(nn.Module):
    """The EMNIST CNN of Reddi et al. with dropout: 1,206,590 parameters for 1 channel, 62 classes.

    3 x 3 convolution to 32 features, relu; 3 x 3 convolution to 64, relu, pooling; dropout 0.25;
    dense 128, relu; dropout 0.5; dense `num_classes`. Convolutions are VALID with stride 1, pooling
    is 2 x 2 with stride 2. Input float `[..., h, w, channels]`, output logits `[..., num_classes]`;
    with `train` it draws from the stream "dropout". `lowering` is that of its convolutions (see
    `ConvReluPool`). Raises ValueError for images under 6 x 6 and for `num_classes` under 1.

    Source: Reddi et al., Adaptive Federated Optimization (ICLR 2021), EMNIST character recognition.
    Departure: Flax's initialisers (LeCun normal weights, zero biases).

    Examples:
        >>> model = ccfl.models.EMNISTCNN(num_classes=62)
        >>> x = jnp.zeros((5, 28, 28, 1))
        >>> params = jax.eval_shape(model.init, jax.random.key(0), x)
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        1206590
        >>> jax.eval_shape(model.apply, params, x).shape
        (5, 62)
    """

    num_classes: int = 62
    lowering: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        _check(self, x, 6)
        x = nn.relu(Conv(32, (3, 3), lowering=self.lowering, name="conv1")(_written(x)))
        x = ConvReluPool(64, (3, 3), self.lowering, name="conv2")(x)
        x = nn.Dropout(0.25)(x, deterministic=not train)
        x = x.reshape(*x.shape[:-3], math.prod(x.shape[-3:]))
        x = nn.relu(nn.Dense(128, name="dense1")(x))
        x = nn.Dropout(0.5)(x, deterministic=not train)
        return nn.Dense(self.num_classes, name="dense2")(x)


def _check(model: nn.Module, x: jax.Array, least: int) -> None:
    name = type(model).__name__
    if model.num_classes < 1:
        raise ValueError(f"{name}: expected num_classes >= 1, found {model.num_classes}")
    if x.ndim < 3 or min(x.shape[-3:-1]) < least:
        raise ValueError(
            f"{name}: expected [..., h, w, channels] with {least} x {least} pixels or more, found "
            f"input shape {x.shape}"
        )


def _bordered(x: jax.Array) -> jax.Array:
    """Two zeros on every side, with which a VALID 5 x 5 convolution is a SAME one."""
    return jnp.pad(x, ((0, 0),) * (x.ndim - 3) + ((2, 2), (2, 2), (0, 0)))


def _written(x: jax.Array) -> jax.Array:
    """`x` itself, which XLA then computes once (scaled pixels, say) and not in every patch."""
    flat = x.reshape(*x.shape[:-3], math.prod(x.shape[-3:]))
    # XLA for CPUs ends a fusion at a concatenation; without the barrier it would remove this one.
    halves = lax.optimization_barrier(jnp.array_split(flat, 2, axis=-1))
    return jnp.concatenate(halves, axis=-1).reshape(x.shape)
