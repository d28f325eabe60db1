"""The convolution in every lowering, and the fused block, against Flax's and their formulas."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from same_function import (
    assert_close,
    assert_same_function,
    normal,
    random_params,
    value_and_pullback,
)

from ccfl_jax.models import Conv, ConvReluPool
from ccfl_jax.models.lowerings import conv2d, default_lowering

LOWERINGS = ("xla", "shifted", "banded")
# (input, features, kernel, strides, padding): odd and even sizes, one and several tiles a row,
# rows and columns that no kernel reaches, kernels larger than their input.
CASES = [
    ((10, 12, 6), 7, (5, 5), (1, 1), "VALID"),
    ((6, 27, 2), 7, (3, 1), (1, 1), "VALID"),
    ((13, 17, 3), 5, (4, 2), (1, 1), "SAME"),
    ((6, 6, 2), 3, (7, 7), (1, 1), "SAME"),
    ((7, 9, 3), 4, (1, 1), (1, 1), "VALID"),
    ((16, 16, 4), 8, (3, 3), (2, 2), "SAME"),
    ((11, 13, 4), 8, (3, 3), (2, 2), "SAME"),
    ((14, 13, 2), 6, (5, 4), (2, 2), "VALID"),
    ((12, 9, 3), 4, (1, 1), (2, 2), "SAME"),
    ((8, 17, 2), 5, (2, 7), (1, 2), "SAME"),
    ((9, 8, 3), 5, (2, 3), (3, 1), "VALID"),
]
# (input, features, kernel): also tiles whose patch is no whole number of tiles wide, one feature
# in one window, and rows and columns that no window reaches.
POOLED = [
    ((10, 12, 6), 7, (5, 5)),
    ((13, 17, 3), 7, (4, 2)),
    ((6, 27, 2), 7, (3, 1)),
    ((5, 7, 2), 7, (1, 6)),
    ((7, 14, 2), 7, (3, 3)),
    ((9, 12, 1), 3, (2, 7)),
    ((5, 3, 1), 1, (2, 2)),
]


def flax_pooled(features, kernel_size):
    conv = nn.Conv(features, kernel_size, padding="VALID")

    def apply(variables, x):
        return nn.max_pool(nn.relu(conv.apply(variables, x)), (2, 2), (2, 2))

    return apply


@functools.cache
def flax_conv(features, kernel_size, strides, padding):
    """`flax.linen.Conv`; one for each setting, so that its gradients are compiled once."""
    return nn.Conv(features, kernel_size, strides, padding).apply


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(("shape", "features", "kernel_size", "strides", "padding"), CASES)
def test_conv_equals_flax_with_gradients(shape, features, kernel_size, strides, padding, lowering):
    x = normal((3, *shape))
    ours = Conv(features, kernel_size, strides, padding, lowering=lowering)
    flax = flax_conv(features, kernel_size, strides, padding)
    assert_same_function(ours.apply, flax, random_params(ours, x), x)


@pytest.mark.parametrize(("shape", "features", "kernel_size"), POOLED)
def test_fused_block_equals_flax_with_gradients(shape, features, kernel_size):
    x = normal((3, *shape))
    ours = ConvReluPool(features, kernel_size, "banded")
    flax = flax_pooled(features, kernel_size)
    assert_same_function(ours.apply, flax, random_params(ours, x), x)


@pytest.mark.parametrize("lowering", ["xla", "shifted"])
def test_unfused_block_equals_flax_with_gradients(lowering):
    x = normal((3, 13, 17, 3))
    ours = ConvReluPool(7, (4, 2), lowering)
    assert_same_function(ours.apply, flax_pooled(7, (4, 2)), random_params(ours, x), x)


def test_without_a_bias():
    x = normal((2, 6, 7, 3))
    ours, flax = (C(4, (3, 3), padding="SAME", use_bias=False) for C in (Conv, nn.Conv))
    variables = random_params(ours, x)
    assert list(variables["params"]) == ["kernel"]
    assert_same_function(ours.apply, flax.apply, variables, x)


def test_parameters_start_as_in_flax():
    key, x = jax.random.key(5), normal((1, 6, 6, 3))
    models = Conv(7, (3, 2), (2, 1)), ConvReluPool(7, (3, 2)), nn.Conv(7, (3, 2))
    conv, block, flax = jax.jit(lambda key: [model.init(key, x) for model in models])(key)
    assert_close(conv, flax, 0)
    assert_close(block, flax, 0)


def numpy_conv(x, kernel, strides=(1, 1)):
    """`y[b, p, q, o] = sum x[b, p sh + u, q sw + v, i] k[u, v, i, o]`, position by position."""
    (kh, kw, _, features), (sh, sw) = kernel.shape, strides
    height, width = (x.shape[1] - kh) // sh + 1, (x.shape[2] - kw) // sw + 1
    y = np.zeros((x.shape[0], height, width, features))
    for p in range(height):
        for q in range(width):
            window = x[:, p * sh : p * sh + kh, q * sw : q * sw + kw]
            y[:, p, q] = np.tensordot(window, kernel, 3)
    return y


def test_every_geometry_gives_the_formula():
    @settings(max_examples=12)
    @given(
        size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
        kernel_size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
        strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        edges=st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2),
        lowering=st.sampled_from(LOWERINGS),
    )
    def check(size, kernel_size, strides, edges, lowering):
        size = [max(n, k) for n, k in zip(size, kernel_size, strict=True)]
        x, kernel = normal((2, *size, 2)), normal((*kernel_size, 2, 3), 1)
        got = jax.jit(conv2d, static_argnums=(2, 3, 4))(x, kernel, strides, edges, lowering)
        padded = np.pad(np.float64(x), [(0, 0), *edges, (0, 0)])
        want = numpy_conv(padded, np.float64(kernel), strides)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * max(1, np.abs(want).max()))

    check()


def test_float64_equals_the_formula(x64):
    rng = np.random.default_rng(3)
    x, kernel, bias = (rng.normal(size=s) for s in [(2, 9, 11, 2), (3, 2, 2, 5), (5,)])
    y = numpy_conv(x, kernel) + bias.reshape(1, 1, 1, 5)
    pooled = np.maximum(y[:, :6, :10], 0).reshape(2, 3, 2, 5, 2, 5).max((2, 4))
    # SAME, stride 2: ceil(9 / 2) = 5 rows read 4 * 2 + 3 = 11, one more at each end; ceil(11 / 2)
    # = 6 columns read 5 * 2 + 2 = 12, one more at the end.
    edges = [(0, 0), (1, 1), (0, 1), (0, 0)]
    strided = numpy_conv(np.pad(x, edges), kernel, (2, 2)) + bias.reshape(1, 1, 1, 5)
    variables = {"params": {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}}
    for lowering in LOWERINGS:
        for model, want in [
            (Conv(5, (3, 2), lowering=lowering), y),
            (Conv(5, (3, 2), (2, 2), "SAME", lowering=lowering), strided),
            (ConvReluPool(5, (3, 2), lowering), pooled),
        ]:
            got = jax.jit(model.apply)(variables, jnp.asarray(x))
            assert got.dtype == jnp.float64
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)


def test_float64_gradients_equal_flax(x64):
    x = normal((2, 9, 10, 2), dtype=np.float64)
    flax = flax_conv(5, (3, 2), (2, 2), "SAME")
    for lowering in LOWERINGS:
        ours = Conv(5, (3, 2), (2, 2), "SAME", lowering=lowering)
        assert_same_function(ours.apply, flax, random_params(ours, x, np.float64), x, 1e-13)
    block = ConvReluPool(5, (3, 2), "banded")
    variables = random_params(block, x, np.float64)
    assert_same_function(block.apply, flax_pooled(5, (3, 2)), variables, x, 1e-13)


def assert_integers_equal(ours, reference, seed, dtype=jnp.float32):
    """With entries of -1, 0, 1 every sum is exact, and most pooling windows tied or at the kink."""
    rng = np.random.default_rng(seed)

    def integers(*shape):
        return jnp.asarray(rng.integers(-1, 2, shape), dtype)

    variables = {"params": {"kernel": integers(2, 3, 1, 8), "bias": integers(8)}}
    x = integers(1, 7, 14, 1)
    args = (variables, x, integers(*jax.eval_shape(ours, variables, x).shape))
    got = value_and_pullback(ours, *args)
    want = value_and_pullback(reference, *jax.tree.map(jnp.float32, args))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.dtype == dtype
        np.testing.assert_array_equal(np.asarray(g, np.float32), w)


def test_ties_go_to_the_first_as_in_xla():
    block, pooled = ConvReluPool(8, (2, 3)).apply, flax_pooled(8, (2, 3))

    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed):
        assert_integers_equal(block, pooled, seed)

    check()


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_bfloat16_is_kept(lowering):
    block = ConvReluPool(8, (2, 3), lowering)
    assert_integers_equal(block.apply, flax_pooled(8, (2, 3)), 0, jnp.bfloat16)
    conv = Conv(8, (2, 3), (2, 2), "SAME", lowering=lowering)
    flax = flax_conv(8, (2, 3), (2, 2), "SAME")
    assert_integers_equal(conv.apply, flax, 0, jnp.bfloat16)


def test_a_nan_comes_through():
    x = jnp.zeros((1, 6, 6, 1)).at[0, 0, 0, 0].set(jnp.nan)
    model = ConvReluPool(2, (3, 3))
    out = jax.jit(model.apply)(random_params(model, x), x)
    assert np.all(np.isnan(out[0, 0, 0])) and np.all(np.isfinite(out[0, 1:, 1:]))


@pytest.mark.parametrize(
    "model",
    [
        *(Conv(4, (3, 3), lowering=lowering) for lowering in LOWERINGS),
        *(Conv(4, (3, 3), (2, 1), "SAME", lowering=lowering) for lowering in LOWERINGS),
        ConvReluPool(4, (3, 3)),
        ConvReluPool(4, (3, 3), "shifted"),
    ],
)
def test_vmap_over_parameters_equals_a_loop_over_clients(model):
    x = normal((3, 2, 9, 10, 1))
    params = [random_params(model, x[c]) for c in range(3)]
    params = [jax.tree.map(lambda a, c=c: a * (1 - c), p) for c, p in enumerate(params)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    weight = normal((3, *jax.eval_shape(model.apply, params[0], x[0]).shape), 9)

    def gradients(variables, x, weight):
        return value_and_pullback(model.apply, variables, x, weight)

    got = jax.jit(jax.vmap(gradients))(stacked, x, weight)
    alone = [gradients(params[c], x[c], weight[c]) for c in range(3)]
    assert_close(got, jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone), 1e-5)


@pytest.mark.parametrize("model", [Conv(4, (3, 3), (1, 2), "SAME"), ConvReluPool(4, (3, 3))])
def test_any_leading_axes(model):
    x = normal((2, 3, 6, 7, 1))
    variables, apply = random_params(model, x), jax.jit(model.apply)
    nested = apply(variables, x)
    flat = apply(variables, x.reshape(6, 6, 7, 1))
    assert_close(nested.reshape(flat.shape), flat, 1e-6)
    assert_close(nested[1, 2], apply(variables, x[1, 2]), 1e-6)


def test_pixels_may_be_integers():
    x = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 7, 7, 1), dtype=np.uint8))
    model = ConvReluPool(2, (2, 2))
    variables, apply = random_params(model, x), jax.jit(model.apply)
    assert_close(apply(variables, x), apply(variables, jnp.float32(x)), 1e-6)


def traced(model, channels):
    """The program of a forward pass on 32 x 32 images, before XLA sees it."""
    x = jnp.zeros((2, 32, 32, channels))
    variables = jax.eval_shape(model.init, jax.random.key(0), x)
    return str(jax.make_jaxpr(model.apply)(variables, x))


@pytest.mark.parametrize("module", [Conv, ConvReluPool])
def test_a_named_lowering_is_taken(module):
    programs = [traced(module(16, (3, 3), lowering=lowering), 16) for lowering in LOWERINGS]
    assert ["conv_general_dilated" in program for program in programs] == [True, False, False]
    assert len(set(programs)) == 3
    assert traced(module(16, (3, 3)), 16) == programs[2]  # the default for 16 channels


def test_the_default_is_that_of_the_table():
    """For one client, within a tenth of the fastest, of every row in the docstring."""
    row = r"^\s+\d+ +(\d+) -> +(\d+), (\d) x \d, (\d) +([\d. ]+)$"
    rows = re.findall(row, default_lowering.__doc__, re.MULTILINE)
    assert len(rows) == 14
    for channels, features, size, stride, times in rows:
        kernel = (int(size), int(size), int(channels), int(features))
        times = dict(zip(LOWERINGS, map(float, times.split()[:3]), strict=True))
        chosen = default_lowering(kernel, (int(stride), int(stride)))
        assert times[chosen] <= 1.1 * min(times.values()), kernel


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (Conv(2, (3, 3), padding="CIRCULAR"), (1, 8, 8, 1), "found padding 'CIRCULAR', legal"),
        (Conv(2, (3, 3), padding=((1, 1), (1, 1))), (1, 8, 8, 1), "legal: 'VALID', 'SAME'"),
        (Conv(2, (3, 3)), (1, 2, 8, 1), "(1, 2, 8, 1), legal: [..., h, w, channels] with h >= 3"),
        (Conv(2, (3, 3), padding="SAME"), (8, 8), "with h >= 1 and w >= 1"),
        (Conv(2, 3), (1, 8, 8, 1), "expected two integers >= 1, found kernel_size 3"),
        (Conv(2, (0, 3)), (1, 8, 8, 1), "expected two integers, found kernel_size (0, 3)"),
        (Conv(2, (3, 2.5)), (1, 8, 8, 1), "expected two integers, found kernel_size (3, 2.5)"),
        (Conv(2, (3, 3), 2), (1, 8, 8, 1), "expected two integers, found strides 2"),
        (Conv(2, (3, 3), (1, 0)), (1, 8, 8, 1), "expected two integers, found strides (1, 0)"),
        (Conv(2, (3, 3), (1,)), (1, 8, 8, 1), "expected two integers, found strides (1,)"),
        (Conv(2, (3, 3), lowering="winograd"), (1, 8, 8, 1), "found lowering 'winograd', legal"),
        (Conv(2, (3, 3), lowering=""), (1, 8, 8, 1), "legal: 'xla', 'shifted', 'banded', None"),
        (Conv(0, (3, 3)), (1, 8, 8, 1), "expected features >= 1, found 0"),
        (ConvReluPool(2, (3, 5)), (1, 8, 5, 1), "with h >= 4 and w >= 6"),
        (
            ConvReluPool(2, (3, 5)),
            (8, 8),
            "expected [..., h, w, channels], found input shape (8, 8)",
        ),
        (ConvReluPool(2, (3, 5), "fft"), (1, 8, 8, 1), "expected 'xla', found lowering 'fft'"),
    ],
)
def test_bad_input_is_refused_by_name(model, shape, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(shape))
    text = str(error.value)
    assert text.startswith(type(model).__name__) and "\n" not in text
