"""Convolutions that stay fast when every client has its own kernel.

`jax.vmap` over clients gives the kernel a leading axis, and XLA then runs a slow grouped
convolution. Here a convolution is one matrix product, which `vmap` makes a batched matrix
product. With input `x[b, h, w, i]`, kernel `k[u, v, i, o]` and stride 1,

    y[b, p, q, o] = sum_{u, v, i} x[b, p + u, q + v, i] k[u, v, i, o].

The output plane is cut into tiles of `th x tw` positions. A tile reads a patch of
`ph x pw = (th + kh - 1) x (tw + kw - 1)` input positions. The kernel, laid out once for every
position of the tile, makes a banded (Toeplitz) matrix that all tiles share:

    patches [tiles, ph pw i]  @  band [ph pw i, th tw o]  ->  [tiles, th tw o].

A tile of one position is the usual im2col: nothing is multiplied by zero, but every input is
copied `kh kw` times. A tile of a whole row copies little, but most of its band is zero.

Tiles are numbered (tile column, image, tile row), so every step is an elementwise operation or
a concatenation of slices. XLA for CPUs loops over those in place; through reshapes between the
two axes of an image it would compute every index anew, which costs more than the products.
"""

import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

# Wider products only multiply more zeros, narrower ones run at a lower rate.
_MAX_COLUMNS = 96


def _tile_width(width: int, features: int, height: int) -> int:
    """The widest tile of `height` rows with at most `_MAX_COLUMNS` that divides `width`.

    Multiples of `height` only, so that a tile of two rows holds whole pooling windows, and half
    the width at most: see `_forward`. Where nothing fits, a tile is as wide as it is high.
    """
    widest = min(width // 2, _MAX_COLUMNS // (height * features))
    fits = [t for t in range(height, widest + 1, height) if width % t == 0]
    return max(fits, default=height)


def _patches(x: jax.Array, kernel_size: Sequence[int], tile: Sequence[int]) -> jax.Array:
    """The patch of every whole tile of the output: `[b, h, w, i] -> [tiles, ph pw i]`."""
    b, h, w, i = x.shape
    (kh, kw), (th, tw) = kernel_size, tile
    rows, columns = (h - kh + 1) // th, (w - kw + 1) // tw
    lines = x.reshape(b, h, w * i)
    spans = [slice(c * tw * i, (c * tw + tw + kw - 1) * i) for c in range(columns)]
    # Lines `a, a + th, ...`: line u of every patch is then a run without gaps.
    phases = [jnp.concatenate([lines[:, a::th, span] for span in spans]) for a in range(th)]
    patch = [phases[u % th][:, u // th : u // th + rows] for u in range(th + kh - 1)]
    return jnp.concatenate(patch, axis=2).reshape(columns * b * rows, -1)


def _band(kernel: jax.Array, tile: Sequence[int], positions: list[tuple[int, int]]) -> jax.Array:
    """The kernel at each of the tile's `positions`: `[kh, kw, i, o] -> [ph pw i, th tw o]`."""
    th, tw = tile
    o = kernel.shape[-1]
    laid_out = [
        jnp.pad(kernel, ((p, th - 1 - p), (q, tw - 1 - q), (0, 0), (0, 0))).reshape(-1, o)
        for p, q in positions
    ]
    return jnp.concatenate(laid_out, axis=1)


def conv2d(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """VALID convolution with stride 1, as the banded matrix product described in this module.

    `y[b, p, q, o] = sum_{u, v, i} x[b, p + u, q + v, i] kernel[u, v, i, o]`. Shapes
    `[b, h, w, i], [kh, kw, i, o] -> [b, h - kh + 1, w - kw + 1, o]`, all of one floating dtype.
    Equal to `jax.lax.conv_general_dilated` up to rounding; differentiable in every mode.
    """
    b, h, w, _ = x.shape
    kh, kw, _, o = kernel.shape
    height, width = h - kh + 1, w - kw + 1
    tile = (1, _tile_width(width, o, 1))
    band = _band(kernel, tile, [(0, q) for q in range(tile[1])])
    y = _patches(x, (kh, kw), tile) @ band
    return jnp.concatenate(jnp.split(y, width // tile[1]), axis=1).reshape(b, height, width, o)


def _pool_tile(x: jax.Array, kernel: jax.Array) -> tuple[int, int]:
    even_width = (x.shape[2] - kernel.shape[1] + 1) // 2 * 2
    return 2, _tile_width(even_width, kernel.shape[3], 2)


def _quarters(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution, one tile a row: `[tiles, 4 n]` with `n = tw / 2 o`.

    A tile is two output rows high. Columns are ordered by row parity, column parity, window and
    feature, so the four positions of a pooling window lie in the same place of four blocks.
    """
    tile = _pool_tile(x, kernel)
    positions = [(p, q + s) for p in (0, 1) for s in (0, 1) for q in range(0, tile[1], 2)]
    return _patches(x, kernel.shape[:2], tile) @ _band(kernel, tile, positions)


@jax.custom_vjp
def conv_relu_pool(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Convolution, bias, relu and 2 x 2 max-pooling with stride 2 in one block.

    `max(0, max_{r, s in {0, 1}} y[b, 2 p + r, 2 q + s, o])` with `y = conv2d(x, kernel) + bias`.
    Shapes `[b, h, w, i], [kh, kw, i, o], [o] -> [b, (h - kh + 1) // 2, (w - kw + 1) // 2, o]`,
    all of one floating dtype. As in VALID pooling, an odd last row or column of `y` is left out.

    A window's gradient goes to its first maximum in row-major order, and nowhere if the output
    is 0: the same as for `max_pool(relu(y))`. For the backward pass only the winner's place is
    kept, so that the gradient before pooling is written once. Reverse mode only.
    """
    # The forward rule itself, so that XLA can merge a metrics pass with that of the loss.
    return _forward(x, kernel, bias)[0]


def _pool(y, bias):
    """Relu of the greatest of the four blocks of `y[tiles, 4 n]`, and which block that is."""
    # Added to each block: XLA is ten times slower here on one addition that is split afterwards.
    first, second, third, fourth = (block + bias for block in jnp.split(y, 4, axis=1))
    top = jnp.maximum(jnp.maximum(first, second), jnp.maximum(third, fourth))
    winner = jnp.where(first == top, 0, jnp.where(second == top, 1, jnp.where(third == top, 2, 3)))
    # 4 is no block: where relu is 0 no gradient passes.
    return jnp.maximum(top, 0), jnp.where(top > 0, winner, 4).astype(jnp.int8)


def _forward(x, kernel, bias):
    b, h, w, _ = x.shape
    kh, kw, _, o = kernel.shape
    height, width = (h - kh + 1) // 2, (w - kw + 1) // 2
    _, tw = _pool_tile(x, kernel)
    y, bias = _quarters(x, kernel), jnp.tile(bias, tw // 2)[None]
    # XLA ends a fusion at a concatenation. Pooled in one piece, the winner would not be written
    # but found anew for every one of the numbers that the backward pass needs it for.
    pooled = [_pool(column, bias) for column in jnp.split(y, 2 * width // tw)]
    out = jnp.concatenate([out for out, _ in pooled], axis=1)
    winner = jnp.concatenate([winner for _, winner in pooled])
    return out.reshape(b, height, width, o), (x, kernel, winner)


def _backward(residuals, g):
    x, kernel, winner = residuals
    _, tw = _pool_tile(x, kernel)
    b, height, width, o = g.shape
    g = g.reshape(b * height, width * o)
    g = jnp.concatenate(jnp.split(g, 2 * width // tw, axis=1))
    zero = jnp.zeros((), g.dtype)
    dy = jnp.concatenate([jnp.where(winner == place, g, zero) for place in range(4)], axis=1)
    d_bias = jnp.where(winner < 4, g, zero).sum(0).reshape(-1, o).sum(0)
    # Two separate results: XLA drops the input's gradient where nobody asks for it.
    d_x, d_kernel = jax.vjp(_quarters, x, kernel)[1](dy)
    return d_x, d_kernel, d_bias


conv_relu_pool.defvjp(_forward, _backward)


class Conv(nn.Module):
    """`flax.linen.Conv` for images and stride 1, as a banded matrix product (see `conv2d`).

    Parameters (`kernel` [kh, kw, i, o], `bias` [o], float32), initialisers, dtype promotion and,
    up to rounding, results are those of `flax.linen.Conv(features, kernel_size,
    padding=padding)`; the default padding differs: it is VALID. Input `[..., h, w, i]`.
    Raises ValueError for a padding other than VALID and SAME, for `features` under 1, for a
    kernel size that is not two positive numbers, and for an input that no kernel fits in.
    """

    features: int
    kernel_size: Sequence[int]
    padding: str = "VALID"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.padding not in ("VALID", "SAME"):
            raise ValueError(f"Conv: padding is {self.padding!r}, must be 'VALID' or 'SAME'")
        kh, kw = _checked_size(self)
        _check_input(self, x, (kh, kw) if self.padding == "VALID" else (1, 1))
        if self.padding == "SAME":
            edges = [((k - 1) // 2, k // 2) for k in (kh, kw)]
            x = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + edges + [(0, 0)])
        x, kernel, bias, leading = _prepare(self, x)
        y = conv2d(x, kernel) + bias.reshape(1, 1, 1, -1)
        return y.reshape(*leading, *y.shape[1:])


class ConvReluPool(nn.Module):
    """`max_pool(relu(Conv(x)), (2, 2), strides=(2, 2))` in one block (see `conv_relu_pool`).

    VALID convolution with stride 1 and the parameters of `flax.linen.Conv`. Input
    `[..., h, w, i]`, output `[..., (h - kh + 1) // 2, (w - kw + 1) // 2, features]`.
    Raises ValueError for `features` under 1, for a kernel size that is not two positive numbers,
    and for an input with fewer than `kh + 1` rows or `kw + 1` columns.
    """

    features: int
    kernel_size: Sequence[int]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kh, kw = _checked_size(self)
        _check_input(self, x, (kh + 1, kw + 1))
        x, kernel, bias, leading = _prepare(self, x)
        y = conv_relu_pool(x, kernel, bias)
        return y.reshape(*leading, *y.shape[1:])


def _checked_size(module):
    size = module.kernel_size
    name = type(module).__name__
    if not isinstance(size, Sequence) or len(size) != 2 or min(size) < 1:
        raise ValueError(f"{name}: kernel_size is {size!r}, must be two numbers of 1 or more")
    if module.features < 1:
        raise ValueError(f"{name}: features is {module.features}, must be 1 or more")
    return size


def _check_input(module, x, smallest):
    if x.ndim < 3 or x.shape[-3] < smallest[0] or x.shape[-2] < smallest[1]:
        raise ValueError(
            f"{type(module).__name__}: input shape is {x.shape}, must be [..., h, w, channels]"
            f" with h >= {smallest[0]} and w >= {smallest[1]}"
        )


def _prepare(module, x):
    """Makes the parameters, promotes dtypes, makes one axis of the leading axes of `x`."""
    shape = (*module.kernel_size, x.shape[-1], module.features)
    kernel = module.param("kernel", nn.initializers.lecun_normal(), shape)
    bias = module.param("bias", nn.initializers.zeros_init(), (module.features,))
    x, kernel, bias = promote_dtype(x, kernel, bias)
    leading = x.shape[:-3]
    return x.reshape(math.prod(leading), *x.shape[-3:]), kernel, bias, leading
