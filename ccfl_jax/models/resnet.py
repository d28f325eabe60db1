"""ResNet-20 for small images, with GroupNorm."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from ccfl_jax.models.conv import Conv


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
    4.2. Departures: GroupNorm of two groups for BatchNorm, whose statistics mean nothing between
    clients; LeCun normal convolutions for He's; no zero padding and cropping of the input.
    """

    num_classes: int = 10
    lowering: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.num_classes < 1:
            raise ValueError(f"ResNet20: num_classes is {self.num_classes}, must be 1 or more")
        if x.ndim != 4:
            raise ValueError(f"ResNet20: input shape is {x.shape}, must be [b, h, w, channels]")
        x = _conv(16, 1, self.lowering, "conv")(x)
        x = nn.relu(_norm("norm")(x))
        for stage, features in enumerate((16, 32, 64), start=1):
            for block in (1, 2, 3):
                stride = 2 if stage > 1 and block == 1 else 1
                x = _Block(features, stride, self.lowering, name=f"stage{stage}_block{block}")(x)
        return nn.Dense(self.num_classes, name="dense")(x.mean(axis=(1, 2)))


class _Block(nn.Module):
    features: int
    stride: int
    lowering: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.relu(_norm("norm1")(_conv(self.features, self.stride, self.lowering, "conv1")(x)))
        y = _norm("norm2")(_conv(self.features, 1, self.lowering, "conv2")(y))
        new = self.features - x.shape[-1]
        x = x[:, :: self.stride, :: self.stride]
        return nn.relu(y + jnp.pad(x, ((0, 0), (0, 0), (0, 0), (new // 2, new - new // 2))))


def _conv(features: int, stride: int, lowering: str | None, name: str) -> Conv:
    strides = (stride, stride)
    return Conv(features, (3, 3), strides, "SAME", use_bias=False, lowering=lowering, name=name)


def _norm(name: str) -> nn.GroupNorm:
    return nn.GroupNorm(num_groups=2, name=name)
