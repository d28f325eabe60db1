"""The minimal algorithm for convolutions: values, gradients, rounding, clients in turn, its use."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from same_function import assert_close, assert_same_function, normal, random_params
from same_function import value_and_pullback as both_passes

from ccfl_jax.models import Conv
from ccfl_jax.models.lowerings import conv2d, default_lowering

pytestmark = pytest.mark.usefixtures("quickly_compiled")


@pytest.mark.parametrize(("shape", "features", "padding"), [
    ((7, 8, 3), 4, "SAME"),
    ((5, 9, 2), 5, "VALID"),
    ((1, 1, 3), 2, "SAME"),
    ((3, 3, 2), 2, "VALID"),
])  # fmt: skip
def test_winograd_conv_equals_flax_with_gradients(shape, features, padding):
    x = normal((3, *shape))
    ours = Conv(features, (3, 3), padding=padding, lowering="winograd")
    flax = nn.Conv(features, (3, 3), padding=padding)
    assert_same_function(ours.apply, flax.apply, random_params(ours, x), x)


def pairs(least, most):
    return st.tuples(st.integers(least, most), st.integers(least, most))


def tiles_of(images, sizes, m):
    """`[n^2, tiles, channels]` as a convolution of 5 channels has them."""
    return (m + 2) ** 2, images * math.prod(-(-s // m) for s in sizes), 5


def program(images, size):
    x, kernel = jnp.zeros((images, size, size, 5)), jnp.zeros((3, 3, 5, 5))
    conv = functools.partial(conv2d, strides=(1, 1), edges=((1, 1), (1, 1)), lowering="winograd")
    return str(jax.make_jaxpr(lambda *args: jax.vjp(conv, *args)[1](args[0]))(x, kernel))


@pytest.mark.parametrize(
    ("images", "size", "m"), [(20, 4, 2), (100, 4, 4), (20, 8, 4), (20, 6, 2), (1, 8, 2)]
)
def test_tiles_are_small_where_the_passes_over_a_kernel_take_longest(images, size, m):
    """Of 36 (4 x 4 tiles + 30) and 16 (2 x 2 tiles + 30) the smaller: 1800 and 1760 for the first,
    4680 and 6880, 3960 and 5600, 3960 and 3360, 1224 and 736."""
    shapes = ["f32" + str(list(tiles_of(images, (size, size), m))).replace(" ", "") for m in (2, 4)]
    assert [shape in program(images, size) for shape in shapes] == [m == 2, m == 4]


@pytest.mark.parametrize(("images", "loops"), [(9, 0), (80, 3)])
def test_images_whose_tiles_are_more_than_a_cache_holds_are_taken_in_pieces(images, loops):
    """36 numbers of 144 tiles of 5 channels an image: 11 images at most, 10 divide 80."""
    assert program(images, 48).count(" scan[") == loops
    assert ("f32[36,1440,5]" in program(images, 48)) == (loops > 0)


@settings(max_examples=8)
@given(st.sampled_from([2, 24]), pairs(3, 11), st.tuples(pairs(0, 3), pairs(0, 3)))
@example(16, (48, 45), ((1, 1), (0, 2)))  # in pieces of 8 images
@example(26, (8, 8), ((1, 1), (1, 1)))  # tiles of 4 x 4 positions
def test_winograd_gradients_are_those_of_the_plain_convolution(images, size, edges):
    shapes = (images, *size, 5), (3, 3, 5, 3)
    with jax.enable_x64(True):
        args = [normal(shape, seed, dtype=np.float64) for seed, shape in enumerate(shapes, 1)]
        functions = [
            functools.partial(conv2d, strides=(1, 1), edges=edges, lowering=name)
            for name in ("winograd", "xla")
        ]
        weight = normal(jax.eval_shape(functions[1], *args).shape, 3, dtype=np.float64)
        got, want = (both_passes.__wrapped__(f, *args, weight) for f in functions)
        assert_close(got, want, 1e-13)


@pytest.mark.parametrize(("images", "times"), [(1, 1.5), (8, 8)])
def test_rounding_is_a_few_times_that_of_the_plain_convolution(images, times):
    """Root mean squares against float64, over as many channels as a large layer has; with tiles of
    2 x 2 and of 4 x 4 positions."""
    x, kernel = normal((images, 10, 10, 256), 1), normal((3, 3, 256, 8), 2)
    windows = np.lib.stride_tricks.sliding_window_view(np.float64(x), (3, 3), (1, 2))
    exact = np.einsum("bpqiuv,uvio->bpqo", windows, np.float64(kernel))
    rounding = {
        lowering: np.sqrt(np.mean((conv2d(x, kernel, (1, 1), [(0, 0)] * 2, lowering) - exact) ** 2))
        for lowering in ("winograd", "shifted")
    }
    assert rounding["winograd"] <= times * rounding["shifted"]
    assert rounding["winograd"] <= 2e-6 * np.sqrt(np.mean(exact**2))


@pytest.mark.parametrize(("kernels", "images", "in_turn"), [(0, 0, 3), (None, 0, 1), (0, None, 3)])
def test_clients_take_turns(kernels, images, in_turn):
    """With one kernel for all only its gradient is each client's own."""
    model = Conv(4, (3, 3), padding="SAME", lowering="winograd")
    x, params = normal((3, 2, 7, 6, 2)), random_params(model, normal((2, 7, 6, 2)))
    stacked = jax.tree.map(lambda a: jnp.stack([a, 2 * a, 3 * a]), params)
    args = (params if kernels is None else stacked), (x[0] if images is None else x)

    def squared(params, x):
        return jax.value_and_grad(lambda *args: (model.apply(*args) ** 2).sum(), (0, 1))(params, x)

    together = jax.vmap(squared, in_axes=(kernels, images))
    program = str(jax.make_jaxpr(together)(*args))
    assert "conv_general_dilated" not in program
    assert program.count(" scan[") == in_turn
    values = str(jax.make_jaxpr(jax.vmap(model.apply, in_axes=(kernels, images)))(*args))
    assert values.count(" scan[") == (kernels is not None)
    per_client = jax.tree.map(lambda a: jnp.stack([a] * 3), args[0]) if kernels is None else args[0]
    alone = [
        jax.jit(squared)(
            jax.tree.map(lambda a, c=c: a[c], per_client), x[0 if images is None else c]
        )
        for c in range(3)
    ]
    assert_close(jax.jit(together)(*args), jax.tree.map(lambda *a: jnp.stack(a), *alone), 1e-5)


@pytest.mark.parametrize(
    ("kernel", "dtype"), [((3, 3, 16, 16), "bfloat16"), ((3, 3, 64, 64), "f8")]
)
def test_winograd_is_the_default_for_float32_on_a_cpu(kernel, dtype, monkeypatch):
    assert default_lowering(kernel, (1, 1), jnp.dtype(dtype)) != "winograd"
    assert default_lowering(kernel, (1, 1), np.float32) == "winograd"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert default_lowering(kernel, (1, 1), np.float32) != "winograd"
