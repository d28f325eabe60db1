"""Flax Linen convolutions that stay fast when every client has its own kernel."""

import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import lax

from ccfl_jax.models.lowerings import LOWERINGS, band, conv2d, default_lowering, tile_width

# As `lowerings._MAX_COLUMNS`, for products with the batch in the last axis.
_MAX_COLUMNS = 64
_OVER_LAST_AXES = (((1,), (1,)), ((), ()))
_OVER_FIRST_AXES = (((0,), (0,)), ((), ()))


def conv_relu_pool(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Convolution, bias, relu and 2 x 2 max-pooling with stride 2 in one block.

    `max(0, max_{r, s in {0, 1}} y[b, 2 p + r, 2 q + s, o])` where `y` is the VALID
    convolution plus the bias.
    Shapes `[b, h, w, i], [kh, kw, i, o], [o] -> [b, (h - kh + 1) // 2, (w - kw + 1) // 2, o]`,
    all of one floating dtype. As in VALID pooling, an odd last row or column of `y` is left out.

    A window's gradient goes to its first maximum in row-major order, and nowhere if the output
    is 0: the same as for `max_pool(relu(y))`. For the backward pass only the winner's place is
    kept, so that the gradient before pooling is written once. Reverse mode only.

    It is the "banded" product of `lowerings` over tiles two rows high, transposed: images are the
    last axis, so that copies, pooling and sums run over long runs of memory,

        band [(kh + 1) pw i, 4 n]^T  @  patches [(kh + 1) pw i, tiles b]  ->  [4 n, tiles b].

    Columns of the band are ordered by row parity, column parity, window and feature, so the four
    positions of a pooling window lie in the same place of four blocks. A block's output has the
    layout that the next one reads (`_split`), and XLA drops the transpositions between the two.
    """
    kw, o = kernel.shape[1], kernel.shape[3]
    even_width = (x.shape[2] - kw + 1) // 2 * 2
    tw = tile_width(even_width, o, 2, _MAX_COLUMNS)
    width = even_width + -(-(kw - 1) // tw) * tw
    x = x[:, :, :width]
    x = jnp.pad(x, ((0, 0), (0, 0), (0, width - x.shape[2]), (0, 0)))
    return _join(_block(_split(x, tw), kernel, bias))


def _split(x, tw):
    """`[b, h, columns tw, i] -> [tw, i, h, columns, b]`."""
    b, h, w, i = x.shape
    # Through two axes: XLA gives such a transposition to the product that follows it.
    return x.reshape(b, h * w * i).T.reshape(h, w // tw, tw, i, b).transpose(2, 3, 0, 1, 4)


def _join(x):
    """The inverse of `_split`."""
    tw, i, h, columns, b = x.shape
    x = x.transpose(2, 3, 0, 1, 4).reshape(h * columns * tw * i, b)
    return x.T.reshape(b, h, columns * tw, i)


def _sizes(x, kernel):
    """The patch's width, and how many tiles and overlapping columns of tiles there are."""
    patch_width = x.shape[0] - 1 + kernel.shape[1]
    overlap = -(-patch_width // x.shape[0])
    return patch_width, overlap, (x.shape[2] - kernel.shape[0] + 1) // 2, x.shape[3] - overlap + 1


def _patches(x, kernel):
    """`[tw, i, h, columns, b] -> [(kh + 1) pw i, rows columns b]`, one copy for each direction."""
    tw, i, h, _, b = x.shape
    pw, overlap, rows, columns = _sizes(x, kernel)
    # Slices keep their axes until they are joined: XLA would compute an index for every number.
    wide = [
        x[: pw - c * tw, :, :, c : c + columns].reshape(-1, h, columns, b) for c in range(overlap)
    ]
    wide = jnp.concatenate(wide).reshape(pw * i, h, columns * b)
    high = [wide[:, u : u + 2 * rows - 1 : 2] for u in range(kernel.shape[0] + 1)]
    return jnp.concatenate(high).reshape(-1, rows * columns * b)


def _unpatch(d_patches, x, kernel):
    """The transpose of `_patches`: every input gets the sum over the patches that it is in."""
    tw, i, h, w, b = x.shape
    pw, overlap, rows, columns = _sizes(x, kernel)
    high = _overlap_add(d_patches.reshape(-1, pw * i, rows, columns * b), h, 2)
    high = jnp.pad(high, ((0, (overlap * tw - pw) * i), (0, 0), (0, 0)))
    wide = _overlap_add(high.reshape(overlap, tw * i * h, columns, b), w, 1)
    return wide.reshape(x.shape)


def _overlap_add(x, size, step):
    """`y[m, q] = sum_s x[s, m, (q - s) / step]`: `[s, m, windows, n] -> [m, size, n]`."""
    shifts, _, windows, _ = x.shape
    out = []  # place by place: XLA is five times slower on a sum of padded arrays
    for q in range(size):
        places = [(s, (q - s) // step) for s in range(shifts) if (q - s) % step == 0]
        terms = [x[s, :, p] for s, p in places if 0 <= p < windows]
        out.append(sum(terms[1:], terms[0]) if terms else jnp.zeros_like(x[0, :, 0]))
    return jnp.stack(out, axis=1)


def _band(kernel, tw):
    """`[(kh + 1) pw i, 4 n]` with `n = tw / 2 o`."""
    positions = [(p, q + s) for p in (0, 1) for s in (0, 1) for q in range(0, tw, 2)]
    return band(kernel, (2, tw), positions, (1, 1))


@jax.custom_vjp
def _block(x, kernel, bias):
    """The block on `_split` images: `[tw, i, h, columns, b] -> [tw / 2, o, rows, columns, b]`."""
    # The forward rule itself, so that XLA can merge a metrics pass with that of the loss.
    return _forward(x, kernel, bias)[0]


def _pool(blocks, bias):
    """Relu of the greatest of the four blocks `[n, tiles]`, and which block that is."""
    # Added to each block: one addition before the split makes a whole step a fifth slower.
    first, second, third, fourth = (block + bias[:, None] for block in blocks)
    top = jnp.maximum(jnp.maximum(first, second), jnp.maximum(third, fourth))
    winner = jnp.where(first == top, 0, jnp.where(second == top, 1, jnp.where(third == top, 2, 3)))
    # 4 is no block: where relu is 0 no gradient passes.
    return jnp.maximum(top, 0), jnp.where(top > 0, winner, 4).astype(jnp.int8)


def _forward(x, kernel, bias):
    tw, o, b = x.shape[0], kernel.shape[3], x.shape[4]
    _, _, rows, columns = _sizes(x, kernel)
    patches = _patches(x, kernel)
    y = lax.dot_general(_band(kernel, tw), patches, _OVER_FIRST_AXES).reshape(4, tw // 2 * o, -1)
    bias = jnp.tile(bias, tw // 2)
    # XLA ends a fusion at a concatenation. Pooled in one piece, the winner would be recomputed for
    # every number of the backward pass that needs it.
    half = bias.shape[0] // 2
    pooled = [_pool(y[:, part], bias[part]) for part in (slice(half), slice(half, None))]
    out, winner = (
        jnp.concatenate(halves).reshape(tw // 2, o, rows, columns, b)
        for halves in zip(*pooled, strict=True)
    )
    return out, (x, kernel, patches, winner)


def _backward(residuals, g):
    x, kernel, patches, winner = residuals
    zero = jnp.zeros((), g.dtype)
    dy = jnp.concatenate([jnp.where(winner == place, g, zero) for place in range(4)])
    dy = dy.reshape(-1, patches.shape[1])
    d_bias = jnp.where(winner < 4, g, zero).sum((0, 2, 3, 4))
    matrix, pull = jax.vjp(lambda kernel: _band(kernel, x.shape[0]), kernel)
    (d_kernel,) = pull(lax.dot_general(patches, dy, _OVER_LAST_AXES))
    # Two separate results: XLA drops the input's gradient where it is not used.
    return _unpatch(matrix @ dy, x, kernel), d_kernel, d_bias


_block.defvjp(_forward, _backward)


class Conv(nn.Module):
    """`flax.linen.Conv` for images, in one of four lowerings (see `lowerings`).

    Parameters (`kernel` [kh, kw, i, o], `bias` [o], float32), initialisers, dtype promotion and,
    up to rounding, results are those of `flax.linen.Conv` with the same arguments; the default
    padding differs: it is VALID. Input `[..., h, w, i]`. With SAME, output position `p` of
    `ceil(h / sh)` is centred as in Flax. `lowering` is "xla", "shifted", "banded", or for 3 x 3
    kernels with strides of 1 "winograd"; None takes that of `default_lowering`.

    Raises ValueError for `features` under 1, for a kernel size or strides that are not two whole
    numbers of 1 or more, for another padding or lowering, for a lowering that does not take them,
    and for an input smaller than the kernel.

    Examples:
        >>> model = ccfl.models.Conv(features=4, kernel_size=(3, 3), strides=(2, 2), padding="SAME")
        >>> x = jnp.zeros((5, 28, 28, 1))
        >>> params = jax.eval_shape(model.init, jax.random.key(0), x)
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        40
        >>> jax.eval_shape(model.apply, params, x).shape
        (5, 14, 14, 4)
    """

    features: int
    kernel_size: Sequence[int]
    strides: Sequence[int] = (1, 1)
    padding: str = "VALID"
    use_bias: bool = True
    lowering: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        _check_pair(self, "strides", self.strides)
        _check(self, self.strides)
        if self.padding not in ("VALID", "SAME"):
            raise ValueError(f"Conv: expected 'VALID', 'SAME', found padding {self.padding!r}")
        same = self.padding == "SAME"
        _check_input(self, x, (1, 1) if same else self.kernel_size)
        x, kernel, bias, leading = _prepare(self, x, self.use_bias)
        lowering = self.lowering or default_lowering(kernel.shape, self.strides, x.dtype)
        sizes = zip(x.shape[1:3], self.kernel_size, self.strides, strict=True)
        edges = [_same_edges(*size) if same else (0, 0) for size in sizes]
        y = conv2d(x, kernel, self.strides, edges, lowering)
        y = y if bias is None else y + bias.reshape(1, 1, 1, -1)
        return y.reshape(*leading, *y.shape[1:])


class ConvReluPool(nn.Module):
    """`max_pool(relu(Conv(x)), (2, 2), strides=(2, 2))`, VALID and with stride 1.

    The "banded" lowering does it in one block (see `conv_relu_pool`), the others in three steps.
    Parameters are those of `flax.linen.Conv`. Input `[..., h, w, i]`, output
    `[..., (h - kh + 1) // 2, (w - kw + 1) // 2, features]`. Raises ValueError for `features`
    under 1, for a kernel size that is not two whole numbers of 1 or more, for another lowering,
    and for an input with fewer than `kh + 1` rows or `kw + 1` columns.

    Examples:
        >>> model = ccfl.models.ConvReluPool(features=6, kernel_size=(5, 5))
        >>> x = jnp.zeros((5, 28, 28, 1))
        >>> params = jax.eval_shape(model.init, jax.random.key(0), x)
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        156
        >>> jax.eval_shape(model.apply, params, x).shape
        (5, 12, 12, 6)
    """

    features: int
    kernel_size: Sequence[int]
    lowering: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        _check(self, (1, 1))
        kh, kw = self.kernel_size
        _check_input(self, x, (kh + 1, kw + 1))
        x, kernel, bias, leading = _prepare(self, x, True)
        lowering = self.lowering or default_lowering(kernel.shape, (1, 1), x.dtype)
        if lowering == "banded":
            y = conv_relu_pool(x, kernel, bias)
        else:
            y = conv2d(x, kernel, (1, 1), [(0, 0), (0, 0)], lowering) + bias.reshape(1, 1, 1, -1)
            y = nn.max_pool(nn.relu(y), (2, 2), (2, 2))
        return y.reshape(*leading, *y.shape[1:])


def _check(module, strides):
    name = type(module).__name__
    if module.features < 1:
        raise ValueError(f"{name}: expected features >= 1, found {module.features}")
    _check_pair(module, "kernel_size", module.kernel_size)
    if module.lowering not in (None, *LOWERINGS):
        names = ", ".join(map(repr, LOWERINGS))
        raise ValueError(f"{name}: expected {names}, None, found lowering {module.lowering!r}")
    sizes = tuple(module.kernel_size), tuple(strides)
    if module.lowering == "winograd" and sizes != ((3, 3), (1, 1)):
        raise ValueError(
            f"{name}: expected kernel_size (3, 3) and strides (1, 1) with 'winograd', "
            f"found kernel_size {sizes[0]}, strides {sizes[1]}"
        )


def _check_pair(module, field, pair):
    whole = isinstance(pair, Sequence) and all(isinstance(n, int) for n in pair)
    if not whole or len(pair) != 2 or min(pair) < 1:
        raise ValueError(
            f"{type(module).__name__}: expected two integers >= 1, found {field} {pair!r}"
        )


def _check_input(module, x, smallest):
    if x.ndim < 3 or x.shape[-3] < smallest[0] or x.shape[-2] < smallest[1]:
        raise ValueError(
            f"{type(module).__name__}: expected [..., h, w, channels] with h >= {smallest[0]} and w"
            f" >= {smallest[1]}, found input shape {x.shape}"
        )


def _same_edges(size, kernel_size, stride):
    """The zeros before and after `size` rows that make `ceil(size / stride)` output rows."""
    missing = max((-(-size // stride) - 1) * stride + kernel_size - size, 0)
    return missing // 2, missing - missing // 2


def _prepare(module, x, use_bias):
    """Makes the parameters, promotes dtypes and merges the leading axes of `x`."""
    shape = (*module.kernel_size, x.shape[-1], module.features)
    kernel = module.param("kernel", nn.initializers.lecun_normal(), shape)
    zeros = nn.initializers.zeros_init()
    bias = module.param("bias", zeros, (module.features,)) if use_bias else None
    x, kernel, bias = promote_dtype(x, kernel, bias)
    leading = x.shape[:-3]
    return x.reshape(math.prod(leading), *x.shape[-3:]), kernel, bias, leading
