"""3 x 3 convolutions with stride 1 by Winograd's minimal algorithms F(m x m, 3 x 3); for CPUs.

The outputs of a tile of m x m positions need its n x n pixels `d` of the padded input, n = m + 2.
With kernel `k`, for every pair of channel and feature,

    y = A^T [(G k G^T) * (B^T d B)] A

takes n^2 products where the definition takes 9 m^2: 36 and 144 for m = 4, 16 and 36 for m = 2.
Summed over channels, and for all tiles at once, they are one batched matrix product,
`[n^2, tiles, i] @ [n^2, i, o]`. A and G evaluate polynomials with m and 3 coefficients at n points,
and B is the inverse of the evaluation with n. The points are 0, +-1/sqrt(2), +-sqrt(2) and infinity
for m = 4, and 0, +-1 and infinity for m = 2.

The gradient of the kernel is the transpose,

    dk = G^T [(A g A^T) * (B^T d B)] G,  summed over tiles,

that of the input the convolution with the kernel turned around. Turned around, a kernel has the
value `a^2 k(1/a)` at a point a. For every point 1/a is one too, so `G k G^T`, the kernel's values,
are computed once for both passes.

Rounding is about five times that of the direct form with m = 4; it would be half of that with the
points 0, +-1, +-2.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (CVPR 2016).
"""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# The points but infinity of a tile of m x m positions, a point beside its negative.
_POINTS = {2: (0, 1, -1), 4: (0, 2**-0.5, -(2**-0.5), 2**0.5, -(2**0.5))}
_PLAIN = (((2,), (1,)), ((0,), (0,)))
_TRANSPOSED = (((2,), (2,)), ((0,), (0,)))
_OVER_TILES = (((1,), (1,)), ((0,), (0,)))
# So many numbers of tiles stay in a core's cache (1 MiB) from one step to the next.
_IN_CACHE = 300_000


def _sizes(x, edges):
    """The rows and columns of the output."""
    return [s + sum(e) - 2 for s, e in zip(x.shape[1:3], edges, strict=True)]


def _tiles(m, sizes):
    """The rows and columns of tiles of an image."""
    return [-(-s // m) for s in sizes]


def _tile(images, sizes):
    """The m of the faster algorithm for outputs of these sizes.

    A product takes as long as its tiles are many; the passes over the kernel's values and their
    gradient take as long as another 30 (measured with 256 and 512 channels).
    """

    def cost(m):
        return (m + 2) ** 2 * (images * math.prod(_tiles(m, sizes)) + 30)

    return min(_POINTS, key=cost)


def _evaluation(m, coefficients):
    """`[n, coefficients]`: a polynomial's value at the points; at infinity its last coefficient."""
    last = np.eye(1, coefficients, coefficients - 1)
    return np.vstack([np.vander(_POINTS[m], coefficients, increasing=True), last])


def _matrices(m, turned=False):
    """`A` `[n, m]`, `B^T` `[n, n]` and `G` `[n, 3]`.

    A row of `B^T` and one of `G` are scaled so that the last number of `B^T`'s is 1, a product less
    for every tile. `turned`: for the kernel turned around, with the values of the kernel as it is.
    Those at the points 1/a take their places, so instead the rows of A and B change theirs.
    """
    a, g, b = _evaluation(m, m), _evaluation(m, 3), np.linalg.inv(_evaluation(m, m + 2)).T
    b[np.abs(b) < 1e-9] = 0
    scale = np.array([[row[row != 0][-1]] for row in b])
    b, g = b / scale, g * scale
    if not turned:
        return a, b, g
    points = np.array(_POINTS[m][1:])
    reciprocal = np.abs(points - 1 / points[:, None]).argmin(1)
    order = [m + 1, *(1 + reciprocal), 0]
    squares = np.array([1, *points**2, 1])[:, None]
    return (a * squares * scale)[order] / scale, b[order], g


def _in_2d(one):
    """`[n^2, c^2]` of an `[n, c]` matrix: both directions, points of the columns first."""
    n, c = one.shape
    return np.einsum("iu,jv->jiuv", one, one).reshape(n**2, c**2)


def conv_winograd(x: jax.Array, kernel: jax.Array, edges: Sequence[tuple[int, int]]) -> jax.Array:
    """The convolution with stride 1 of a 3 x 3 kernel.

    `y[b, p, q, o] = sum_{u, v, i} x[b, p + u, q + v, i] k[u, v, i, o]`, with `edges` zeros around
    the rows and columns of `x`. Shapes `[b, h, w, i], [3, 3, i, o] -> [b, h - 2, w - 2, o]` of the
    padded sizes, all of one floating dtype. Reverse mode only. Under `jax.vmap` the clients take
    turns.
    """
    rows, columns = map(tuple, edges)
    return _conv(x, kernel, (rows, columns))


def _linear(matrix, x):
    """`[m, n], [n, ...] -> [m, ...]`."""
    return (jnp.asarray(matrix, x.dtype) @ x.reshape(x.shape[0], -1)).reshape(-1, *x.shape[1:])


def _along_rows(matrix, x, m):
    """`matrix` `[n, c]` times the c rows of each tile: `[b, h, ...] -> [n b, tiles, ...]`."""
    count = matrix.shape[1]
    last = (x.shape[1] - count) // m * m + 1
    rows = [lax.slice_in_dim(x, r, r + last, m, axis=1) for r in range(count)]

    def combined(weights, rows):
        pairs = zip(weights.tolist(), rows, strict=True)
        terms = [d if a == 1 else a * d for a, d in pairs if a]
        return sum(terms[1:], terms[0])

    def at_both(weights):  # a point and its negative: the terms of even powers are the same
        even, odd = (combined(weights[n::2], rows[n::2]) for n in (0, 1))
        return even + odd, even - odd

    pairs = [value for weights in matrix[1:-1:2] for value in at_both(weights)]
    return jnp.concatenate([combined(matrix[0], rows), *pairs, combined(matrix[-1], rows)])


def _at_points(matrix, x, m):
    """`_along_rows`, then along columns: `[b, h, w, c] -> [n^2, tiles, c]`.

    Rows of pixels and their features stay two axes: merged, XLA would compute an index for every
    number of what makes `x`, the norm and relu of a ResNet.
    """
    _, _, width, features = x.shape
    x = _along_rows(matrix, x, m).reshape(-1, width, features)
    return _along_rows(matrix, x, m).reshape(len(matrix) ** 2, -1, features)


def _padded(x, edges, m, overlap=2):
    """`x` with zeros around it, up to whole tiles, of which neighbours share `overlap` pixels."""
    pads = [
        (before, after + -(s + before + after - overlap) % m, 0)
        for s, (before, after) in zip(x.shape[1:3], edges, strict=True)
    ]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *pads, (0, 0, 0)])


def _pieces(m, sizes, features, *arrays):
    """The arrays' images in pieces whose tiles stay in a cache: `[pieces, images, ...]`.

    One piece where the kernel's values, which every piece reads, are more than these tiles.
    """
    images, tiles = len(arrays[0]), math.prod(_tiles(m, sizes))
    most = _IN_CACHE // ((m + 2) ** 2 * tiles * features)
    fitting = max((n for n in range(1, most + 1) if images % n == 0), default=1)
    n = fitting if fitting * tiles >= features else images
    return [a.reshape(-1, n, *a.shape[1:]) for a in arrays]


# Traced, and given to XLA, once for all layers of one shape; so is the kernel's gradient.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _outputs(edges, turned, x, values):
    """`y` with the kernel's values `[n^2, i, o]`, of the kernel `turned` around or as it is."""
    m, sizes = math.isqrt(len(values)) - 2, _sizes(x, edges)
    rows, columns = _tiles(m, sizes)
    to_outputs, to_points, _ = _matrices(m, turned)

    def outputs(x):
        tiles = _at_points(to_points, _padded(x, edges, m), m)
        y = lax.dot_general(tiles, values, _TRANSPOSED if turned else _PLAIN)
        y = _linear(_in_2d(to_outputs).T, y).reshape(m, m, len(x), rows, columns, -1)
        y = y.transpose(2, 3, 0, 4, 1, 5).reshape(len(x), m * rows, m * columns, -1)
        return y[:, : sizes[0], : sizes[1]]

    (pieces,) = _pieces(m, sizes, max(values.shape[1:]), x)
    y = lax.map(outputs, pieces) if len(pieces) > 1 else outputs(x)
    return y.reshape(-1, *y.shape[-3:])


@functools.partial(jax.jit, static_argnums=0)
def _kernel_gradient(edges, x, g):
    sizes, features = g.shape[1:3], max(x.shape[-1], g.shape[-1])
    m = _tile(len(g), sizes)
    from_outputs, to_points, evaluation = _matrices(m)

    def product(x, g):
        tiles = _at_points(to_points, _padded(x, edges, m), m)
        g = _at_points(from_outputs, _padded(g, ((0, 0), (0, 0)), m, overlap=0), m)
        return lax.dot_general(tiles, g, _OVER_TILES)

    pieces = _pieces(m, sizes, features, x, g)
    if len(pieces[0]) > 1:
        zero = jnp.zeros(((m + 2) ** 2, x.shape[-1], g.shape[-1]), x.dtype)
        dk, _ = lax.scan(lambda dk, piece: (dk + product(*piece), None), zero, pieces)
    else:
        dk = product(x, g)
    return _linear(_in_2d(evaluation).T, dk).reshape(3, 3, *dk.shape[1:])


def _in_turn(function: Callable, *args: jax.Array, per_image: bool = True) -> jax.Array:
    """The function of one client's arrays; under `jax.vmap` the clients take turns.

    `per_image` functions get the images of all clients as one batch where only these differ.
    """
    one = jax.custom_batching.custom_vmap(function)

    @one.def_vmap
    def clients(_, batched, *args):
        if per_image and batched == [True, False]:
            y = one(args[0].reshape(-1, *args[0].shape[2:]), args[1])
            return y.reshape(*args[0].shape[:2], *y.shape[1:]), True

        def client(own):
            own = iter(own)
            return one(*(next(own) if b else a for a, b in zip(args, batched, strict=True)))

        return lax.map(client, [a for a, b in zip(args, batched, strict=True) if b]), True

    return one(*args)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv(x, kernel, edges):
    return _conv_forward(x, kernel, edges)[0]


def _conv_forward(x, kernel, edges):
    _, _, evaluation = _matrices(_tile(len(x), _sizes(x, edges)))
    values = _linear(_in_2d(evaluation), kernel.reshape(9, *kernel.shape[2:]))
    return _in_turn(functools.partial(_outputs, edges, False), x, values), (x, values)


def _conv_backward(edges, residuals, g):
    x, values = residuals
    opposite = tuple((2 - before, 2 - after) for before, after in edges)
    dx = _in_turn(functools.partial(_outputs, opposite, True), g, values)
    return dx, _in_turn(functools.partial(_kernel_gradient, edges), x, g, per_image=False)


_conv.defvjp(_conv_forward, _conv_backward)
