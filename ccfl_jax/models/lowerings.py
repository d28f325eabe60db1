"""Three ways to compute a convolution; which one is fast depends on sizes and machine.

`jax.vmap` over clients gives the kernel a leading axis, and XLA then runs a slow grouped
convolution. As a matrix product, a convolution becomes a batched matrix product instead. With
input `x[b, h, w, i]` (padded), kernel `k[u, v, i, o]` and strides `(sh, sw)`, all compute

    y[b, p, q, o] = sum_{u, v, i} x[b, p sh + u, q sw + v, i] k[u, v, i, o].

* `"xla"`: `jax.lax.conv_general_dilated`.
* `"shifted"`: im2col. The slices of `x` that meet each `k[u, v]` stand side by side,
  `[b p q, kh kw i]`, and one product with `k[kh kw i, o]` gives the output.
* `"banded"`: the output plane is cut into tiles of `th x tw` positions. A tile reads a patch of
  `ph x pw = ((th - 1) sh + kh) x ((tw - 1) sw + kw)` input positions. The kernel, laid out once
  for every position of the tile, makes a banded (Toeplitz) matrix that all tiles share:

      patches [tiles, ph pw i]  @  band [ph pw i, th tw o]  ->  [tiles, th tw o].

  A tile of one position is the usual im2col: nothing is multiplied by zero, but every input is
  copied `kh kw` times. A tile of a whole row copies little, but most of its band is zero.

Tiles are numbered (tile column, image, tile row), so every step is an elementwise operation or
a concatenation of slices. XLA for CPUs loops over those in place; through reshapes between the
two axes of an image it would compute every index anew, which costs more than the products.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

# Wider products only multiply more zeros, narrower ones run at a lower rate.
_MAX_COLUMNS = 96


def conv2d(
    x: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    edges: Sequence[tuple[int, int]],
    lowering: str,
) -> jax.Array:
    """The convolution of this module, with `edges` zeros around the rows and columns of `x`.

    `y[b, p, q, o] = sum_{u, v, i} x[b, p sh + u, q sw + v, i] k[u, v, i, o]` for padded `x`.
    Shapes `[b, h, w, i], [kh, kw, i, o] -> [b, (h - kh) // sh + 1, (w - kw) // sw + 1, o]`, all
    of one floating dtype. The lowerings ("xla", "shifted", "banded") differ by rounding only;
    all are differentiable in every mode.
    """
    if lowering == "xla":
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, strides, edges, dimension_numbers=layout)
    x = jnp.pad(x, [(0, 0), *edges, (0, 0)])
    return (_shifted if lowering == "shifted" else _banded)(x, kernel, strides)


def default_lowering(backend: str, kernel_shape: Sequence[int], strides: Sequence[int]) -> str:
    """The lowering taken where none is named; kernel `[kh, kw, i, o]`.

    "banded" for fewer than 16 input channels, "xla" for more on a CPU with stride 1, "shifted"
    otherwise and for 1 x 1 kernels, where it is one product of `x` itself. The choice rests on
    this table: milliseconds of forward and backward pass for batches of 20, one core of a
    virtual machine, medians of interleaved calls; one client, and five under `vmap` (JAX 0.10.2).

        layer                              one client             five clients
        h   i -> o, kernel, stride    xla shifted banded     xla shifted banded
        28   1 ->  6, 5 x 5, 1        1.4    1.3    0.5      9.3    12      2.3
        12   6 -> 16, 5 x 5, 1        1.6    1.0    0.6     44      10      7.6
        12   6 -> 16, 5 x 5, 2        0.9    0.6    0.3      7.3     1.9    0.9
        28   1 -> 32, 5 x 5, 1        1.6    2.1    1.7     40      36     27
        32   3 -> 16, 3 x 3, 1        2.3    1.9    1.2    104      19      9.1
        32   8 -> 16, 3 x 3, 1        5.7    5.3    5.5     89      57     32
        32  16 -> 16, 3 x 3, 1        7.8   11     10      452     320    267
        16  32 -> 32, 3 x 3, 1        2.9    5.4    6.1    284     207    181
         8  64 -> 64, 3 x 3, 1        3.2    4.5    4.9    136      92    104
        14  32 -> 64, 5 x 5, 1       40     73     87      709     420    476
        32  16 -> 32, 3 x 3, 2        3.5    3.3   12      228      73    106
        16  32 -> 64, 3 x 3, 2        2.1    2.2    4.1    123      47     83
        32  16 -> 32, 1 x 1, 2        1.4    0.6    1.4     76      12     26
        16  32 -> 64, 1 x 1, 2        0.8    0.4    0.7     29       5.6    8.4

    In batches of 50 the first two rows are 4.1, 4.3, 1.0 and 4.0, 2.5, 1.4 for one client, and
    66, 104, 6.9 and 174, 60, 28 for five. A module does not see `vmap`. The choice is for one
    client at a time, which is the default of a round on a CPU: with several, "shifted" beats
    the "xla" chosen here by a quarter or more.

    Not measured on GPUs and TPUs. There clients advance together, so "xla" is a grouped
    convolution for them too; "shifted" multiplies no zeros, and few channels make its product too
    narrow for the hardware, while that of "banded" stays wide.
    """
    kh, kw, channels, _ = kernel_shape
    if kh == kw == 1:
        return "shifted"
    if channels < 16:
        return "banded"
    return "xla" if backend == "cpu" and max(strides) == 1 else "shifted"


def _shifted(x: jax.Array, kernel: jax.Array, strides: Sequence[int]) -> jax.Array:
    b, h, w, i = x.shape
    (kh, kw, _, o), (sh, sw) = kernel.shape, strides
    height, width = (h - kh) // sh + 1, (w - kw) // sw + 1
    slices = [
        x[:, u : u + (height - 1) * sh + 1 : sh, v : v + (width - 1) * sw + 1 : sw]
        for u in range(kh)
        for v in range(kw)
    ]
    columns = jnp.concatenate(slices, axis=3).reshape(b * height * width, kh * kw * i)
    return (columns @ kernel.reshape(-1, o)).reshape(b, height, width, o)


def _banded(x: jax.Array, kernel: jax.Array, strides: Sequence[int]) -> jax.Array:
    b, h, w, _ = x.shape
    (kh, kw, _, o), (sh, sw) = kernel.shape, strides
    height, width = (h - kh) // sh + 1, (w - kw) // sw + 1
    tile = (1, tile_width(width, o, 1, _MAX_COLUMNS))
    matrix = band(kernel, tile, [(0, q) for q in range(tile[1])], strides)
    y = patches(x, (kh, kw), tile, strides) @ matrix
    return jnp.concatenate(jnp.split(y, width // tile[1]), axis=1).reshape(b, height, width, o)


def tile_width(width: int, features: int, height: int, columns: int) -> int:
    """The widest tile of `height` rows with at most `columns` columns that divides `width`.

    Multiples of `height` only, so that a tile of two rows holds whole pooling windows, and half
    the width at most. Where nothing fits, a tile is as wide as it is high.
    """
    widest = min(width // 2, columns // (height * features))
    fits = [t for t in range(height, widest + 1, height) if width % t == 0]
    return max(fits, default=height)


def patches(
    x: jax.Array, kernel_size: Sequence[int], tile: Sequence[int], strides: Sequence[int]
) -> jax.Array:
    """The patch of every whole tile of the output: `[b, h, w, i] -> [tiles, ph pw i]`."""
    b, h, w, i = x.shape
    (kh, kw), (th, tw), (sh, sw) = kernel_size, tile, strides
    rows, columns = ((h - kh) // sh + 1) // th, ((w - kw) // sw + 1) // tw
    height, width = (th - 1) * sh + kh, (tw - 1) * sw + kw
    lines = x.reshape(b, h, w * i)
    spans = [slice(c * tw * sw * i, (c * tw * sw + width) * i) for c in range(columns)]
    # Lines `a, a + step, ...`: line u of every patch is then a run without gaps.
    step = th * sh
    phases = [
        jnp.concatenate([lines[:, a::step, span] for span in spans])
        for a in range(min(step, height))
    ]
    patch = [phases[u % step][:, u // step : u // step + rows] for u in range(height)]
    return jnp.concatenate(patch, axis=2).reshape(columns * b * rows, -1)


def band(
    kernel: jax.Array,
    tile: Sequence[int],
    positions: Sequence[tuple[int, int]],
    strides: Sequence[int],
) -> jax.Array:
    """The kernel at each of the tile's `positions`: `[kh, kw, i, o] -> [ph pw i, th tw o]`."""
    (th, tw), (sh, sw) = tile, strides
    laid_out = [
        jnp.pad(
            kernel,
            ((p * sh, (th - 1 - p) * sh), (q * sw, (tw - 1 - q) * sw), (0, 0), (0, 0)),
        ).reshape(-1, kernel.shape[-1])
        for p, q in positions
    ]
    return jnp.concatenate(laid_out, axis=1)
