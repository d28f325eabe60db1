"""Four ways to compute a convolution; which one is fast depends on sizes and machine.

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
* `"winograd"`: the minimal algorithm for 3 x 3 kernels with strides of 1 (see `winograd`).

Tiles are numbered (tile column, image, tile row), so every step is an elementwise operation or
a concatenation of slices. XLA for CPUs loops over those in place; through reshapes between the
two axes of an image it would compute every index anew, which costs more than the products.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from ccfl_jax.models.winograd import conv_winograd

LOWERINGS = "xla", "shifted", "banded", "winograd"
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
    of one floating dtype. The lowerings differ by rounding only. "winograd" takes 3 x 3 kernels and
    strides of 1 and is differentiable in reverse mode, the others in every mode.
    """
    if lowering == "winograd":
        return conv_winograd(x, kernel, edges)
    if lowering == "xla":
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, strides, edges, dimension_numbers=layout)
    x = jnp.pad(x, [(0, 0), *edges, (0, 0)])
    return (_shifted if lowering == "shifted" else _banded)(x, kernel, strides)


def default_lowering(kernel_shape: Sequence[int], strides: Sequence[int], dtype: DTypeLike) -> str:
    """The default lowering of a convolution of this dtype; kernel `[kh, kw, i, o]`.

    On a CPU, for float32, 3 x 3 kernels and stride 1: "winograd" from 8 channels and features on.
    Otherwise "shifted" for 1 x 1 kernels, where it is one product of `x` itself, from 32 input
    channels on, from 16 on with a stride, and for more than 48 features, where a tile of "banded"
    is one position; else "banded". The choice rests on this table: milliseconds of forward and
    backward pass for batches of 20, inside a loop as in a round, one core of a virtual machine,
    medians of interleaved calls, "xla" on another day; one client, and five under `vmap`, for which
    "xla" takes five to ten times as long (JAX 0.10.2).

                                            one client                   five clients
         h   i ->   o, kernel    xla shifted banded winograd  shifted banded winograd
        28   1 ->   6, 5 x 5, 1    2.9     0.8    0.4        -      4.3    1.9        -
        12   6 ->  16, 5 x 5, 1    8.1     0.5    0.3        -      2.5    1.8        -
        12   6 ->  16, 5 x 5, 2    1.2     0.2    0.1        -      0.8    0.5        -
        28   1 ->  32, 5 x 5, 1     17     1.1    0.9        -      6.3    5.0        -
        28   1 ->  64, 5 x 5, 1      -     1.8    1.9        -       12     11        -
        32   3 ->  16, 3 x 3, 1     25     1.4    1.5      2.2       11    8.8       12
        32   3 ->  64, 3 x 3, 1      -     3.4    4.2      4.8       25     29       33
        32   8 ->  16, 3 x 3, 1     67     3.0    3.6      2.0       34     26       13
        32  16 ->  16, 3 x 3, 1    168     8.9    8.0      3.0       74     59       19
        16  32 ->  32, 3 x 3, 1    168     4.8    4.7      1.7       42     35       11
         8  64 ->  64, 3 x 3, 1      -     3.5    3.5      1.2       25     25      7.5
        32  64 ->  64, 3 x 3, 1      -     101    105       23      503    546      129
        16 128 -> 128, 3 x 3, 1      -      63     62       17      371    370       99
         8 256 -> 256, 3 x 3, 1      -      49     50       18      303    286      119
         4 512 -> 512, 3 x 3, 1      -      55     53       33      281    276      197
        14  32 ->  64, 5 x 5, 1    135     9.7    9.2        -       61     60        -
        32  16 ->  32, 3 x 3, 2     85     2.3    4.6        -       21     30        -
        16  32 ->  64, 3 x 3, 2     62     1.8    2.6        -       12     17        -
        32  16 ->  32, 1 x 1, 2    9.6     0.2    0.9        -      1.1    4.9        -
        16  32 ->  64, 1 x 1, 2    8.1     0.2    0.3        -      1.0    1.6        -

    Outside a loop "xla" is as fast as the others for one client: XLA for CPUs then calls another
    convolution. But all training is in a loop.

    Not measured on GPUs and TPUs. There clients advance together, so "xla" is a grouped
    convolution for them too; "shifted" multiplies no zeros, and few channels make its product too
    narrow for the hardware, while that of "banded" stays wide.
    """
    kh, kw, channels, features = kernel_shape
    strided, least = max(strides) > 1, min(channels, features)
    minimal = kh == kw == 3 and not strided and least >= 8
    if minimal and dtype == jnp.float32 and jax.default_backend() == "cpu":
        return "winograd"
    wide = channels >= (16 if strided else 32) or 2 * features > _MAX_COLUMNS
    return "shifted" if kh == kw == 1 or wide else "banded"


def _shifted(x: jax.Array, kernel: jax.Array, strides: Sequence[int]) -> jax.Array:
    (kh, kw, _, o), (sh, sw) = kernel.shape, strides
    # In two steps XLA computes what makes `x`, as a norm, for kw slices and not for kh kw: its
    # fusions end at a concatenation.
    columns = _side_by_side(_side_by_side(x, 2, kw, sw), 1, kh, sh)
    y = columns.reshape(-1, columns.shape[-1]) @ kernel.reshape(-1, o)
    return y.reshape(*columns.shape[:3], o)


def _side_by_side(x: jax.Array, axis: int, count: int, stride: int) -> jax.Array:
    """The slices along `axis` that meet each of a kernel's `count` positions, as channels."""
    last = (x.shape[axis] - count) // stride * stride + 1
    slices = [lax.slice_in_dim(x, n, n + last, stride, axis) for n in range(count)]
    return jnp.concatenate(slices, axis=3)


def _banded(x: jax.Array, kernel: jax.Array, strides: Sequence[int]) -> jax.Array:
    b, h, w, _ = x.shape
    (kh, kw, _, o), (sh, sw) = kernel.shape, strides
    height, width = (h - kh) // sh + 1, (w - kw) // sw + 1
    tw = tile_width(width, o, 1, _MAX_COLUMNS)
    matrix = band(kernel, (1, tw), [(0, q) for q in range(tw)], strides)
    y = _patches(x, (kh, kw), tw, strides) @ matrix
    return jnp.concatenate(jnp.split(y, width // tw), axis=1).reshape(b, height, width, o)


def tile_width(width: int, features: int, height: int, columns: int) -> int:
    """The widest tile of `height` rows with at most `columns` columns that divides `width`.

    Multiples of `height` only, so that a tile of two rows holds whole pooling windows, and half
    the width at most. Where nothing fits, a tile is as wide as it is high.
    """
    widest = min(width // 2, columns // (height * features))
    fits = [t for t in range(height, widest + 1, height) if width % t == 0]
    return max(fits, default=height)


def _patches(
    x: jax.Array, kernel_size: Sequence[int], width: int, strides: Sequence[int]
) -> jax.Array:
    """The patch of every tile, `width` positions of a row: `[b, h, w, i] -> [tiles, kh pw i]`."""
    b, h, w, i = x.shape
    (kh, kw), (sh, sw) = kernel_size, strides
    rows, columns = (h - kh) // sh + 1, ((w - kw) // sw + 1) // width
    patch_width = (width - 1) * sw + kw
    lines = x.reshape(b, h, w * i)
    spans = [slice(c * width * sw * i, (c * width * sw + patch_width) * i) for c in range(columns)]
    # Lines `a, a + sh, ...`: line u of every patch is then a run without gaps.
    phases = [
        jnp.concatenate([lines[:, a::sh, span] for span in spans]) for a in range(min(sh, kh))
    ]
    patch = [phases[u % sh][:, u // sh : u // sh + rows] for u in range(kh)]
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
