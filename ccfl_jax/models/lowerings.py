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
    channels on, and from 16 on with a stride; else "banded". The choice rests on this table:
    milliseconds of forward and backward pass for batches of 20, inside a loop as in a round, one
    core of a virtual machine, medians of interleaved calls; one client, and five under `vmap`, for
    which "xla" takes five to ten times as long (JAX 0.10.2).

                                            one client                   five clients
         h   i ->   o, kernel    xla shifted banded winograd  shifted banded winograd
        28   1 ->   6, 5 x 5, 1    2.9     1.0    0.4        -      6.7    1.9        -
        12   6 ->  16, 5 x 5, 1    8.1     0.5    0.4        -      3.6    1.9        -
        12   6 ->  16, 5 x 5, 2    1.2     0.3    0.1        -      1.4    0.5        -
        28   1 ->  32, 5 x 5, 1     17     1.4    0.9        -       11    6.9        -
        32   3 ->  16, 3 x 3, 1     25     1.9    1.5      2.7       13    8.4       18
        32   8 ->  16, 3 x 3, 1     67     3.5    3.8      2.4       32     28       19
        32  16 ->  16, 3 x 3, 1    168      13    9.6      3.9       79     60       30
        16  32 ->  32, 3 x 3, 1    168     5.8    5.6      1.9       40     40       16
         8  64 ->  64, 3 x 3, 1      -     3.8    3.8      1.4       26     28      9.6
        32  64 ->  64, 3 x 3, 1      -      88    102       32      451    543      192
        16 128 -> 128, 3 x 3, 1      -      61     64       18      330    363      111
         8 256 -> 256, 3 x 3, 1      -      52     55       23      283    294      113
         4 512 -> 512, 3 x 3, 1      -      50     50       43      274    281      221
        14  32 ->  64, 5 x 5, 1    135     9.8    9.3        -       65     62        -
        32  16 ->  32, 3 x 3, 2     85     2.0    4.7        -       18     31        -
        16  32 ->  64, 3 x 3, 2     62     1.7    2.7        -       12     17        -
        32  16 ->  32, 1 x 1, 2    9.6     0.2    0.9        -      1.5    5.4        -
        16  32 ->  64, 1 x 1, 2    8.1     0.2    0.3        -      1.1    1.7        -

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
    return "shifted" if kh == kw == 1 or channels >= (16 if strided else 32) else "banded"


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
