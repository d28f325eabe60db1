"""3 x 3 convolutions with stride 1 by Winograd's minimal algorithm F(4 x 4, 3 x 3); for CPUs.

The outputs of a tile of 4 x 4 positions need its 6 x 6 pixels `d` of the padded input. With kernel
`k`, for every pair of channel and feature,

    y = A^T [(G k G^T) * (B^T d B)] A

takes 36 products where the definition takes 144. Summed over channels, and for all tiles at once,
they are one batched matrix product, `[36, tiles, i] @ [36, i, o]`. A and G evaluate polynomials
with 4 and 3 coefficients at the points 0, +-1/sqrt(2), +-sqrt(2) and infinity, and B is the inverse
of the evaluation with 6. The gradient of the input is the convolution with the kernel turned
around, that of the kernel the transpose,

    dk = G^T [(A g A^T) * (B^T d B)] G,  summed over tiles.

Rounding is about five times that of the direct form, half of that with the points 0, +-1, +-2.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (CVPR 2016).
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_POINTS = 0, 2**-0.5, -(2**-0.5), 2**0.5, -(2**0.5)
_PLAIN = (((2,), (1,)), ((0,), (0,)))
_TURNED = (((2,), (2,)), ((0,), (0,)))
_OVER_TILES = (((1,), (1,)), ((0,), (0,)))


def _evaluation(coefficients):
    """`[6, coefficients]`: a polynomial's value at the points; at infinity its last coefficient."""
    last = np.eye(1, coefficients, coefficients - 1)
    return np.vstack([np.vander(_POINTS, coefficients, increasing=True), last])


def _in_2d(one):
    """`[36, n^2]` of a `[6, n]` matrix: both directions, points of the columns first."""
    return np.einsum("iu,jv->jiuv", one, one).reshape(36, -1)


_A, _B = _evaluation(4), np.linalg.inv(_evaluation(6))
_A_2D, _G_2D = _in_2d(_A), _in_2d(_evaluation(3))


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


def _along_rows(matrix, x):
    """`matrix` `[6, n]` times the n rows of each tile: `[b, h, ...] -> [6, b, tiles, ...]`."""
    count = matrix.shape[1]
    last = x.shape[1] - count + 1
    rows = [lax.slice_in_dim(x, n, n + last, 4, axis=1) for n in range(count)]

    def combined(weights):
        terms = [a * d for a, d in zip(weights, rows, strict=True) if abs(a) > 1e-9]
        return sum(terms[1:], terms[0])

    return jnp.stack([combined(weights) for weights in matrix.tolist()])


def _at_points(matrix, x):
    """`_along_rows`, then along columns: `[b, h, w, c] -> [36, tiles, c]`.

    Rows of pixels and their features stay two axes: merged, XLA would compute an index for every
    number of what makes `x`, the norm and relu of a ResNet.
    """
    _, _, width, features = x.shape
    x = _along_rows(matrix, x).reshape(-1, width, features)
    return _along_rows(matrix, x).reshape(36, -1, features)


def _tiles(x, edges):
    """`B^T d B`: `[b, h, w, i] -> [36, tiles, i]`, and how many tiles: `(b, rows, columns)`."""
    b, *size, _ = x.shape
    counts = [-(-(n + sum(e) - 2) // 4) for n, e in zip(size, edges, strict=True)]
    pads = [(e[0], 4 * c + 2 - n - e[0], 0) for n, e, c in zip(size, edges, counts, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *pads, (0, 0, 0)])
    return _at_points(_B.T, x), (b, *counts)


# Traced, and given to XLA, once for all layers of one shape.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _forward(edges, turned, x, kernel):
    tiles, (b, rows, columns) = _tiles(x, edges)
    # Turned around and transposed, for the gradient of the input, without a copy of the kernel.
    matrix, dimensions = (_G_2D[:, ::-1], _TURNED) if turned else (_G_2D, _PLAIN)
    y = lax.dot_general(tiles, _linear(matrix, kernel.reshape(9, *kernel.shape[2:])), dimensions)
    y = _linear(_A_2D.T, y).reshape(4, 4, b, rows, columns, -1).transpose(2, 3, 0, 4, 1, 5)
    y = y.reshape(b, 4 * rows, 4 * columns, -1)
    height, width = (n + sum(e) - 2 for n, e in zip(x.shape[1:3], edges, strict=True))
    return y[:, :height, :width]


@functools.partial(jax.jit, static_argnums=0)
def _kernel_gradient(edges, x, g):
    tiles, (_, rows, columns) = _tiles(x, edges)
    _, height, width, o = g.shape
    g = jnp.pad(g, ((0, 0), (0, 4 * rows - height), (0, 4 * columns - width), (0, 0)))
    dk = lax.dot_general(tiles, _at_points(_A, g), _OVER_TILES)
    return _linear(_G_2D.T, dk).reshape(3, 3, -1, o)


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
    return _in_turn(functools.partial(_forward, edges, False), x, kernel)


def _conv_forward(x, kernel, edges):
    return _conv(x, kernel, edges), (x, kernel)


def _conv_backward(edges, residuals, g):
    x, kernel = residuals
    opposite = tuple((2 - before, 2 - after) for before, after in edges)
    dx = _in_turn(functools.partial(_forward, opposite, True), g, kernel)
    return dx, _in_turn(functools.partial(_kernel_gradient, edges), x, g, per_image=False)


_conv.defvjp(_conv_forward, _conv_backward)
