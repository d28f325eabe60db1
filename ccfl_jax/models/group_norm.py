"""Group normalisation in few passes over the images."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype
from jax import lax

_EPSILON = 1e-6


class GroupNorm(nn.Module):
    """`flax.linen.GroupNorm` with a gradient of its own: half the time of a ResNet's norms.

        y = scale (x - mean) / sqrt(var + 1e-6) + bias

    with mean and `var = mean(x^2) - mean(x)^2` (0 where rounding makes it negative) over the pixels
    and the features of a group of one image. Parameters `scale` and `bias` `[features]`, float32;
    input `[b, ..., features]`; statistics in float32 at least, as in Flax. Reverse mode only.
    Raises ValueError where `num_groups` does not divide the features.

    Source: Wu, He, Group Normalization (ECCV 2018).
    """

    num_groups: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        features = x.shape[-1]
        if self.num_groups < 1 or features % self.num_groups:
            raise ValueError(
                f"GroupNorm: expected num_groups that divides {features} features, "
                f"found {self.num_groups}"
            )
        scale = self.param("scale", nn.initializers.ones_init(), (features,))
        bias = self.param("bias", nn.initializers.zeros_init(), (features,))
        x, scale, bias = promote_dtype(x, scale, bias)
        wide = jnp.promote_types(x.dtype, jnp.float32)
        args = (jnp.asarray(a, wide) for a in (x, scale, bias))
        return jnp.asarray(_normalised(*args, self.num_groups), x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalised(x, scale, bias, groups):
    return _forward(x, scale, bias, groups)[0]


# Traced, and given to XLA, once for all layers of one shape; so is the gradient.
@functools.partial(jax.jit, static_argnums=3)
def _forward(x, scale, bias, groups):
    mean, square = (_group_means(_over_pixels(a), x, groups) for a in (x, x * x))
    var = square - mean * mean
    rate = lax.rsqrt(jnp.maximum(var, 0) + _EPSILON)
    means, rates = _for_features(mean, x), _for_features(rate, x)
    y = (x - _per_image(means, x)) * _per_image(rates * scale[None], x) + _per_image(bias[None], x)
    return y, (x, scale, mean, var, rate)


@functools.partial(jax.jit, static_argnums=0)
def _backward(groups, residuals, g):
    """With x' = (x - mean) rate: `dx = rate (scale g - mean(scale g) - x' mean(scale g x'))`."""
    x, scale, mean, var, rate = residuals
    means, rates = _for_features(mean, x), _for_features(rate, x)
    # From sums over `g x`: sums over `g (x - mean)` would be a pass that writes what they are of.
    total = _over_pixels(g)
    along = (_over_pixels(g * x) - means * total) * rates
    level, slope = (_group_means(scale[None] * a, x, groups) for a in (total, along))
    # As in Flax nothing passes through a variance that was set to 0.
    slope = jnp.where(var > 0, slope, 0) * rate * rate
    levels, slopes = (_per_image(_for_features(a, x), x) for a in (level * rate, slope))
    centred = x - _per_image(means, x)
    dx = _per_image(rates * scale[None], x) * g - centred * slopes - levels
    return dx, along.sum(0), total.sum(0)


_normalised.defvjp(_forward, _backward)


def _over_pixels(x):
    """Sums over all but images and features: `[b, ..., features] -> [b, features]`."""
    return x.sum(tuple(range(1, x.ndim - 1)))


# Products and not sums or broadcasts: XLA for CPUs ends a fusion at them. Else it would compute
# a group's numbers anew for every pixel.
def _group_means(sums, x, groups):
    """The means over groups of sums over pixels: `[b, features] -> [b, groups]`."""
    member = _membership(x, groups) * (x.shape[0] * groups / x.size)
    return jnp.matmul(sums, member.astype(x.dtype), precision=lax.Precision.HIGHEST)


def _for_features(values, x):
    """The number of its group for every feature: `[b, groups] -> [b, features]`."""
    member = _membership(x, values.shape[-1]).T
    return jnp.matmul(values, member.astype(x.dtype), precision=lax.Precision.HIGHEST)


def _membership(x, groups):
    """`[features, groups]`: 1 where the feature is in the group."""
    return np.repeat(np.eye(groups), x.shape[-1] // groups, axis=0)


def _per_image(values, x):
    """`[b or 1, features]` with the axes of `x`."""
    return values.reshape(values.shape[0], *(1,) * (x.ndim - 2), values.shape[1])
