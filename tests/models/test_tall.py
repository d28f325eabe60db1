"""The tall lowerings of a convolution: values, gradients, clients in turn, where they are used."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from same_function import assert_close, assert_same_function, normal, random_params
from same_function import value_and_pullback as both_passes

from ccfl_jax.models import Conv
from ccfl_jax.models.lowerings import conv2d, default_lowering

pytestmark = pytest.mark.usefixtures("quickly_compiled")
TALL = ("tall", "winograd")


@pytest.mark.parametrize("lowering", TALL)
@pytest.mark.parametrize(("shape", "features", "kernel_size", "padding"), [
    ((7, 8, 3), 4, (3, 3), "SAME"),
    ((5, 9, 2), 5, (2, 3), "VALID"),
    ((4, 1, 3), 2, (1, 3), "SAME"),
    ((3, 3, 2), 2, (3, 3), "VALID"),
])  # fmt: skip
def test_tall_conv_equals_flax_with_gradients(shape, features, kernel_size, padding, lowering):
    x = normal((3, *shape))
    ours = Conv(features, kernel_size, padding=padding, lowering=lowering)
    flax = nn.Conv(features, kernel_size, padding=padding)
    assert_same_function(ours.apply, flax.apply, random_params(ours, x), x)


def pairs(least, most):
    return st.tuples(st.integers(least, most), st.integers(least, most))


@settings(max_examples=6)
@given(pairs(1, 8), pairs(1, 4), st.tuples(pairs(0, 3), pairs(0, 3)))
def test_tall_gradients_are_those_of_the_plain_convolution(size, kernel_size, edges):
    """In float64; "winograd" where the kernel is three wide."""
    size = np.maximum(size, kernel_size)
    for lowering, width in zip(TALL, (kernel_size[1], 3), strict=True):
        x, kernel = (2, size[0], max(size[1], width), 2), (kernel_size[0], width, 2, 3)
        with jax.enable_x64(True):
            args = normal(x, 1, dtype=np.float64), normal(kernel, 2, dtype=np.float64)
            functions = [
                functools.partial(conv2d, strides=(1, 1), edges=edges, lowering=name)
                for name in (lowering, "xla")
            ]
            weight = normal(jax.eval_shape(functions[1], *args).shape, 3, dtype=np.float64)
            got, want = (both_passes.__wrapped__(f, *args, weight) for f in functions)
            assert_close(got, want, 1e-13)


@pytest.mark.parametrize(("lowering", "products"), [("tall", 1), ("winograd", 4)])
@pytest.mark.parametrize(("kernels", "images", "in_turn"), [(0, 0, 3), (None, 0, 1), (0, None, 3)])
def test_tall_clients_take_turns(lowering, products, kernels, images, in_turn):
    """No grouped convolution; with one kernel for all only its gradient is each client's own."""
    model = Conv(4, (3, 3), padding="SAME", lowering=lowering)
    x, params = normal((3, 2, 7, 6, 2)), random_params(model, normal((2, 7, 6, 2)))
    stacked = jax.tree.map(lambda a: jnp.stack([a, 2 * a, 3 * a]), params)
    args = (params if kernels is None else stacked), (x[0] if images is None else x)

    def squared(params, x):
        return jax.value_and_grad(lambda *args: (model.apply(*args) ** 2).sum(), (0, 1))(params, x)

    together = jax.vmap(squared, in_axes=(kernels, images))
    program = str(jax.make_jaxpr(together)(*args))
    assert set(re.findall(r"_group_count=(\d+)", program)) == {"1"}
    assert program.count(" scan[") == in_turn * products
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
def test_the_tall_lowerings_are_for_float32_on_a_cpu(kernel, dtype, monkeypatch):
    assert default_lowering(kernel, (1, 1), jnp.dtype(dtype)) not in TALL
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert default_lowering(kernel, (1, 1), np.float32) not in TALL
