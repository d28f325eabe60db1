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

    def combined(weights, rows):
        pairs = zip(weights.tolist(), rows, strict=True)
        terms = [a * d for a, d in pairs if abs(a) > 1e-9]
        return sum(terms[1:], terms[0])

    def at_both(weights):  # a point and its negative: the terms of even powers are the same
        even, odd = (combined(weights[n::2], rows[n::2]) for n in (0, 1))
        return even + odd, even - odd

    zero, one, _, other, _, infinity = matrix
    values = combined(zero, rows), *at_both(one), *at_both(other), combined(infinity, rows)
    return jnp.stack(values)


def _at_points(matrix, x):
    """`_along_rows`, then along columns: `[b, h, w, c] -> [36, tiles, c]`.

    Rows of pixels and their features stay two axes: merged, XLA would compute an index for every
    number of what makes `x`, the norm and relu of a ResNet.
    """
    _, _, width, features = x.shape
    x = _along_rows(matrix, x).reshape(-1, width, features)
    return _along_rows(matrix, x).reshape(36, -1, features)


# Traced, and given to XLA, once for all layers of one shape; so is the kernel's gradient.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _forward(edges, turned, x, kernel):
    """`y`, and the tiles `B^T d B` of each image: `[b, 36, tiles, i]`."""
    b, *size, _ = x.shape
    sizes = [n + sum(e) - 2 for n, e in zip(size, edges, strict=True)]
    rows, columns = counts = [-(-n // 4) for n in sizes]
    pads = [(e[0], 4 * c + 2 - n - e[0], 0) for n, e, c in zip(size, edges, counts, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *pads, (0, 0, 0)])
    tiles = _at_points(_B.T, x)
    # Turned around and transposed, for the gradient of the input, without a copy of the kernel.
    matrix, dimensions = (_G_2D[:, ::-1], _TURNED) if turned else (_G_2D, _PLAIN)
    y = lax.dot_general(tiles, _linear(matrix, kernel.reshape(9, *kernel.shape[2:])), dimensions)
    y = _linear(_A_2D.T, y).reshape(4, 4, b, rows, columns, -1).transpose(2, 3, 0, 4, 1, 5)
    y = y.reshape(b, 4 * rows, 4 * columns, -1)
    return y[:, : sizes[0], : sizes[1]], tiles.reshape(36, b, rows * columns, -1).swapaxes(0, 1)


@jax.jit
def _kernel_gradient(tiles, g):
    pads = [(0, -n % 4) for n in g.shape[1:3]]
    g = _at_points(_A, jnp.pad(g, ((0, 0), *pads, (0, 0))))
    tiles = tiles.swapaxes(0, 1).reshape(36, -1, tiles.shape[-1])
    dk = lax.dot_general(tiles, g, _OVER_TILES)
    return _linear(_G_2D.T, dk).reshape(3, 3, *dk.shape[1:])


def _in_turn(function: Callable, *args: jax.Array, per_image: bool = True) -> jax.Array:
    """The function of one client's arrays; under `jax.vmap` the clients take turns.

    `per_image` functions get the images of all clients as one batch where only these differ.
    """
    one = jax.custom_batching.custom_vmap(function)

    @one.def_vmap
    def clients(_, batched, *args):
        if per_image and batched == [True, False]:
            y = one(args[0].reshape(-1, *args[0].shape[2:]), args[1])
            y = jax.tree.map(lambda a: a.reshape(*args[0].shape[:2], *a.shape[1:]), y)
            return y, jax.tree.map(lambda _: True, y)

        def client(own):
            own = iter(own)
            return one(*(next(own) if b else a for a, b in zip(args, batched, strict=True)))

        y = lax.map(client, [a for a, b in zip(args, batched, strict=True) if b])
        return y, jax.tree.map(lambda _: True, y)

    return one(*args)


def _output(edges, turned, x, kernel):
    """`y` without the tiles, which no loop over clients then collects."""
    return _in_turn(lambda *args: _forward(edges, turned, *args)[0], x, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv(x, kernel, edges):
    return _output(edges, False, x, kernel)


def _conv_forward(x, kernel, edges):
    y, tiles = _in_turn(functools.partial(_forward, edges, False), x, kernel)
    return y, (tiles, kernel)


def _conv_backward(edges, residuals, g):
    tiles, kernel = residuals
    opposite = tuple((2 - before, 2 - after) for before, after in edges)
    dk = _in_turn(_kernel_gradient, tiles, g, per_image=False)
    return _output(opposite, True, g, kernel), dk


_conv.defvjp(_conv_forward, _conv_backward)
