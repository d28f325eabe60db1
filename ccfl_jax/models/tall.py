"""Convolutions with stride 1 as tall ones, `kh x 1`, with gradients of their own; for CPUs.

XLA for CPUs has a fast convolution for float32 images `[b, h, w, i]` and kernels `[kh, kw, i, o]`.
Those of the backward pass that automatic differentiation makes have other layouts and run in plain
loops, fifty times slower; so does the grouped convolution of several clients. Here both passes are
convolutions of the fast kind, and clients take turns. With input `x` (padded) and output `y` as in
`lowerings`:

* `"tall"`: the kw pixels that meet at a position stand side by side,

      y = conv(s, k[kh, 1, kw i, o]),  s[b, p, q] = (x[b, p, q], ..., x[b, p, q + kw - 1]),

  which turns 16 features, too few for a fast product, into 48.
* `"winograd"`: the minimal algorithm F(2, 3) along rows (kw = 3; Lavin and Gray, Fast Algorithms
  for Convolutional Neural Networks, CVPR 2016). Two neighbouring outputs from the four pixels
  `d0, ..., d3` take four products instead of six:

      m0 = conv(d0 - d2, k0)               m1 = conv(d1 + d2, (k0 + k1 + k2) / 2)
      m3 = conv(d1 - d3, k2)               m2 = conv(d2 - d1, (k0 - k1 + k2) / 2)
      y0 = m0 + m1 + m2                    y1 = m1 - m2 - m3

  with `kv = k[:, v]`. Rounding is that of the direct form. The gradient of the input is the same
  with the kernel turned around, that of the kernel the transpose.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

TALL = "tall", "winograd"
Edges = tuple[tuple[int, int], tuple[int, int]]


def conv_tall(
    x: jax.Array, kernel: jax.Array, edges: Sequence[tuple[int, int]], lowering: str
) -> jax.Array:
    """The convolution with stride 1, in the lowering "tall" or "winograd".

    `y[b, p, q, o] = sum_{u, v, i} x[b, p + u, q + v, i] k[u, v, i, o]`, with `edges` zeros around
    the rows and columns of `x`. Shapes `[b, h, w, i], [kh, kw, i, o] -> [b, h - kh + 1, w - kw + 1,
    o]` of the padded sizes, all of one floating dtype; "winograd" for kw = 3 only. Reverse mode
    only. Under `jax.vmap` the clients take turns.
    """
    rows, columns = map(tuple, edges)
    return (_winograd if lowering == "winograd" else _side_by_side)(x, kernel, (rows, columns))


@functools.cache
def _convolution(padding: Edges) -> Callable:
    """`[b, h, w, i], [kh, kw, i, o] -> [b, h', w', o]` with stride 1, in the fast layout."""

    @jax.custom_batching.custom_vmap
    def convolve(x, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=layout)

    @convolve.def_vmap
    def in_turn(_, batched, x, kernel):
        if not batched[1]:
            y = convolve(x.reshape(-1, *x.shape[2:]), kernel)
            return y.reshape(*x.shape[:2], *y.shape[1:]), True
        if not batched[0]:
            return lax.map(lambda kernel: convolve(x, kernel), kernel), True
        return lax.map(lambda pair: convolve(*pair), (x, kernel)), True

    return convolve


def _tall(x, kernel, rows):
    return _convolution((rows, (0, 0)))(x, kernel)


def _correlate(x, g, rows):
    """`[b, h, w, i], [b, h', w, o] -> [kh, i, o]`: `sum_{b, p, q} x[b, p + u, q, i] g[b, p, q, o]`.

    The images are the input's height, their rows its width and a row's pixels its features.
    """
    b, h, w, i = x.shape
    x = x.reshape(-1, i).T.reshape(i, b, h, w)
    return _convolution(((0, 0), rows))(x, g)[:, 0].transpose(1, 0, 2)


def _opposite(kernel_size: Sequence[int], edges: Edges) -> Edges:
    """The edges with which the turned kernel leads from the output's gradient to the input's."""
    (kh, kw), ((top, bottom), (left, right)) = kernel_size, edges
    return (kh - 1 - top, kh - 1 - bottom), (kw - 1 - left, kw - 1 - right)


def _wide(x, columns):
    """`x` with so many columns of zeros before and after each row, or without so many of its own.

    A concatenation: XLA for CPUs would compute the padding's index for every number.
    """
    before, after = columns
    x = x[:, :, max(-before, 0) : x.shape[2] - max(-after, 0)]
    zeros = [jnp.zeros((*x.shape[:2], max(n, 0), x.shape[3]), x.dtype) for n in columns]
    return jnp.concatenate([zeros[0], x, zeros[1]], axis=2)


def _shifts(x, kw, columns):
    """`[b, h, w, i] -> [b, h, w', kw i]`: the pixels that meet at a position, side by side."""
    x = _wide(x, columns)
    width = x.shape[2] - kw + 1
    return jnp.concatenate([x[:, :, v : v + width] for v in range(kw)], axis=3)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _side_by_side(x, kernel, edges):
    kh, kw, _, o = kernel.shape
    return _tall(_shifts(x, kw, edges[1]), kernel.reshape(kh, 1, -1, o), edges[0])


def _side_by_side_forward(x, kernel, edges):
    return _side_by_side(x, kernel, edges), (x, kernel)


def _side_by_side_backward(edges, residuals, g):
    x, kernel = residuals
    kh, kw, i, o = kernel.shape
    rows, columns = _opposite((kh, kw), edges)
    g = _shifts(g, kw, columns)
    dx = _tall(g, kernel[::-1, ::-1].transpose(0, 1, 3, 2).reshape(kh, 1, -1, i), rows)
    d_kernel = _correlate(x, g, edges[0]).reshape(kh, i, kw, o)
    return dx, d_kernel[:, :, ::-1].transpose(0, 2, 1, 3)


_side_by_side.defvjp(_side_by_side_forward, _side_by_side_backward)


def _tiles(x, columns):
    """The four sums of pixels of each tile: `[b, h, w, i]` -> 4 of `[b, h, ceil(w' / 2), i]`."""
    before, after = columns
    x = _wide(x, (before, after + (x.shape[2] + before + after) % 2))
    x = x.reshape(*x.shape[:2], -1, 2, x.shape[3])
    even, odd = x[:, :, :, 0], x[:, :, :, 1]
    d0, d1, d2, d3 = even[:, :, :-1], odd[:, :, :-1], even[:, :, 1:], odd[:, :, 1:]
    return d0 - d2, d1 + d2, d2 - d1, d1 - d3


def _kernels(kernel):
    """The four kernels of the products: `[kh, 3, i, o]` -> 4 of `[kh, 1, i, o]`."""
    first, middle, last = (kernel[:, v : v + 1] for v in range(3))
    outer = (first + last) / 2
    return first, outer + middle / 2, outer - middle / 2, last


def _turned(kernels):
    """`_kernels` of the kernel turned around, which are the same in another order."""
    first, plus, minus, last = (k[::-1].transpose(0, 1, 3, 2) for k in kernels)
    return last, plus, minus, first


def _products(x, kernels, edges):
    """The convolution of `x` from the four products of each tile."""
    tiles = _tiles(x, edges[1])
    m0, m1, m2, m3 = (_tall(d, k, edges[0]) for d, k in zip(tiles, kernels, strict=True))
    y = jnp.stack([m0 + m1 + m2, m1 - m2 - m3], axis=3)
    return y.reshape(*y.shape[:2], -1, y.shape[4])[:, :, : x.shape[2] + sum(edges[1]) - 2]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _winograd(x, kernel, edges):
    return _products(x, _kernels(kernel), edges)


def _winograd_forward(x, kernel, edges):
    kernels = _kernels(kernel)
    return _products(x, kernels, edges), (x, kernels)


def _winograd_backward(edges, residuals, g):
    x, kernels = residuals
    kh = kernels[0].shape[0]
    dx = _products(g, _turned(kernels), _opposite((kh, 3), edges))
    pairs = _wide(g, (0, g.shape[2] % 2)).reshape(*g.shape[:2], -1, 2, g.shape[3])
    g0, g1 = pairs[:, :, :, 0], pairs[:, :, :, 1]
    products = zip(_tiles(x, edges[1]), (g0, g0 + g1, g0 - g1, -g1), strict=True)
    d0, d1, d2, d3 = (_correlate(d, g, edges[0]) for d, g in products)
    outer, middle = (d1 + d2) / 2, (d1 - d2) / 2
    return dx, jnp.stack([d0 + outer, middle, outer + d3], axis=1)


_winograd.defvjp(_winograd_forward, _winograd_backward)
