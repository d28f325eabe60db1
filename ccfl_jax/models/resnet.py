"""ResNets for small images, with GroupNorm."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from ccfl_jax.models.conv import Conv
from ccfl_jax.models.group_norm import GroupNorm


class ResNet20(nn.Module):
    """The 20-layer CIFAR ResNet: 269,722 parameters for three channels and ten classes.

    3 x 3 convolution to 16 features; three stages of three basic blocks with 16, 32 and 64
    features, the second and third of which halve the image with stride 2; global average; dense
    `num_classes`. A block is `relu(x' + norm(conv(relu(norm(conv(x))))))`, all convolutions
    3 x 3, SAME, without bias. The shortcut x' has no parameters: where the shape changes it
    takes every second pixel and fills the new features with zeros (option A of the paper).
    Input float `[b, h, w, channels]` (CIFAR: 32 x 32 x 3), output logits `[b, num_classes]`.
    `lowering` is that of its convolutions (see `Conv`). Raises ValueError for `num_classes` under 1
    and for an input that is not `[b, h, w, channels]`.

    Source: He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition (CVPR 2016), section
    4.2. Departures: GroupNorm of two groups for BatchNorm, whose statistics have no meaning between
    clients; LeCun normal convolutions for He's; no zero padding and cropping of the input (see
    `data.prepare_images`).

    Examples:
        >>> model = ccfl.models.ResNet20()
        >>> x = jnp.zeros((5, 32, 32, 3))
        >>> params = jax.eval_shape(model.init, jax.random.key(0), x)
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        269722
        >>> jax.eval_shape(model.apply, params, x).shape
        (5, 10)
    """

    num_classes: int = 10
    lowering: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        _check(self, x)
        x = _features(x, (16, 32, 64), 3, False, self.lowering)
        return nn.Dense(self.num_classes, name="dense")(x)


class ResNet18(nn.Module):
    """The 18-layer ResNet with a stem for small images: 11,173,962 parameters for CIFAR-10.

    As `ResNet20`, with four stages of two blocks and 64, 128, 256 and 512 features; where the shape
    changes the shortcut is a 1 x 1 convolution and a norm (option B of the paper).

    Source: He et al. (CVPR 2016), table 1. Departures: those of `ResNet20`; the first convolution
    is 3 x 3 with stride 1 and without pooling, as in federated code for CIFAR, where the paper's is
    7 x 7 with stride 2 and pooling.

    Examples:
        >>> model = ccfl.models.ResNet18()
        >>> x = jnp.zeros((5, 32, 32, 3))
        >>> params = jax.eval_shape(model.init, jax.random.key(0), x)
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        11173962
        >>> jax.eval_shape(model.apply, params, x).shape
        (5, 10)
    """

    num_classes: int = 10
    lowering: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        _check(self, x)
        x = _features(x, (64, 128, 256, 512), 2, True, self.lowering)
        return nn.Dense(self.num_classes, name="dense")(x)


def _check(model: nn.Module, x: jax.Array) -> None:
    name = type(model).__name__
    if model.num_classes < 1:
        raise ValueError(f"{name}: expected num_classes >= 1, found {model.num_classes}")
    if x.ndim != 4:
        raise ValueError(f"{name}: expected [b, h, w, channels], found input shape {x.shape}")


def _features(
    x: jax.Array, widths: Sequence[int], blocks: int, project: bool, lowering: str | None
) -> jax.Array:
    """All but the dense layer, `[b, h, w, channels] -> [b, widths[-1]]`; modules of the caller."""
    x = nn.relu(_norm("norm")(_conv(widths[0], 3, 1, lowering, "conv")(x)))
    for stage, features in enumerate(widths, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            name = f"stage{stage}_block{block}"
            x = _Block(features, stride, lowering, project, name=name)(x)
    return x.mean(axis=(1, 2))


class _Block(nn.Module):
    features: int
    stride: int
    lowering: str | None = None
    project: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = _conv(self.features, 3, self.stride, self.lowering, "conv1")(x)
        y = nn.relu(_norm("norm1")(y))
        y = _norm("norm2")(_conv(self.features, 3, 1, self.lowering, "conv2")(y))
        return nn.relu(y + self._shortcut(x))

    def _shortcut(self, x: jax.Array) -> jax.Array:
        new = self.features - x.shape[-1]
        if self.project and new:
            x = _conv(self.features, 1, self.stride, self.lowering, "shortcut")(x)
            return _norm("shortcut_norm")(x)
        x = x[:, :: self.stride, :: self.stride]
        return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (new // 2, new - new // 2)))


def _conv(features: int, size: int, stride: int, lowering: str | None, name: str) -> Conv:
    return Conv(
        features,
        (size, size),
        (stride, stride),
        "SAME",
        use_bias=False,
        lowering=lowering,
        name=name,
    )


def _norm(name: str) -> GroupNorm:
    return GroupNorm(num_groups=2, name=name)
