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
from refusal import refused
from same_function import assert_close, assert_same_function, normal, random_params
from same_function import value_and_pullback as both_passes

from ccfl_jax.models import Conv, ConvReluPool
from ccfl_jax.models.lowerings import LOWERINGS, conv2d, default_lowering

pytestmark = pytest.mark.usefixtures("quickly_compiled")
EVERYWHERE = ("xla", "shifted", "banded")


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@functools.cache
def flax_conv(*args, **kwargs):
    """`flax.linen.Conv`; one for each setting, so that its gradients are compiled once."""
    return nn.Conv(*args, **kwargs).apply


@functools.cache
def flax_pooled(features, kernel_size):
    conv = flax_conv(features, kernel_size, padding="VALID")
    return lambda variables, x: nn.max_pool(nn.relu(conv(variables, x)), (2, 2), (2, 2))


@pytest.mark.parametrize("lowering", EVERYWHERE)
# Odd and even sizes, one and several tiles a row, rows and columns that no kernel reaches,
# kernels larger than their input.
@pytest.mark.parametrize(("shape", "features", "kernel_size", "strides", "padding"), [
    ((6, 27, 2), 7, (3, 1), (1, 1), "VALID"),
    slow((6, 6, 2), 3, (7, 7), (1, 1), "SAME"),
    slow((7, 9, 3), 4, (1, 1), (1, 1), "VALID"),
    slow((16, 16, 4), 8, (3, 3), (2, 2), "SAME"),
    ((11, 13, 4), 8, (3, 3), (2, 2), "SAME"),
    slow((12, 9, 3), 4, (1, 1), (2, 2), "SAME"),
    ((8, 17, 2), 5, (2, 7), (1, 2), "SAME"),
    slow((9, 8, 3), 5, (2, 3), (3, 1), "VALID"),
])  # fmt: skip
def test_conv_equals_flax_with_gradients(shape, features, kernel_size, strides, padding, lowering):
    x = normal((3, *shape))
    ours = Conv(features, kernel_size, strides, padding, lowering=lowering)
    flax = flax_conv(features, kernel_size, strides, padding)
    assert_same_function(ours.apply, flax, random_params(ours, x), x)


# Also tiles whose patch is no whole number of tiles wide, one feature in one window, and rows
# and columns that no window reaches.
@pytest.mark.parametrize(("shape", "features", "kernel_size", "lowering"), [
    slow((10, 12, 6), 7, (5, 5), "banded"),
    ((13, 17, 3), 7, (4, 2), "banded"),
    slow((5, 7, 2), 7, (1, 6), "banded"),
    slow((7, 14, 2), 7, (3, 3), "banded"),
    ((9, 12, 1), 3, (2, 7), "banded"),
    ((5, 3, 1), 1, (2, 2), "banded"),
    ((5, 3, 1), 1, (2, 2), "xla"),
    ((5, 3, 1), 1, (2, 2), "shifted"),
])  # fmt: skip
def test_pooled_block_equals_flax_with_gradients(shape, features, kernel_size, lowering):
    x = normal((3, *shape))
    ours = ConvReluPool(features, kernel_size, lowering)
    assert_same_function(ours.apply, flax_pooled(features, kernel_size), random_params(ours, x), x)


def test_parameters_start_as_in_flax():
    key, x = jax.random.key(5), normal((1, 6, 6, 3))
    models = Conv(7, (3, 2), (2, 1)), ConvReluPool(7, (3, 2)), nn.Conv(7, (3, 2))
    conv, block, flax = jax.jit(lambda key: [model.init(key, x) for model in models])(key)
    assert_close([conv, block], [flax, flax], 0)


def pairs(least, most):
    return st.tuples(st.integers(least, most), st.integers(least, most))


@settings(max_examples=6)
@given(pairs(1, 12), pairs(1, 7), pairs(1, 3), st.tuples(pairs(0, 3), pairs(0, 3)))
def test_every_geometry_gives_the_formula(size, kernel_size, strides, edges):
    """`y[b, p, q, o] = sum x[b, p sh + u, q sw + v, i] k[u, v, i, o]`, in float64."""
    size = np.maximum(size, kernel_size)
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, *size, 2)), rng.normal(size=(*kernel_size, 2, 3))
    padded = np.pad(x, [(0, 0), *edges, (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel_size, (1, 2))
    want = np.einsum("bpqiuv,uvio->bpqo", windows[:, :: strides[0], :: strides[1]], kernel)
    with jax.enable_x64(True):
        found = jax.jit(lambda *args: [conv2d(*args, strides, edges, name) for name in EVERYWHERE])
        for got in found(x, kernel):
            assert got.shape == want.shape and got.dtype == np.float64
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("ours", "flax"), [
    *((Conv(5, (3, 2), (2, 2), "SAME", use_bias=False, lowering=name),
       flax_conv(5, (3, 2), (2, 2), "SAME", use_bias=False)) for name in EVERYWHERE),
    (ConvReluPool(5, (3, 2), "banded"), flax_pooled(5, (3, 2))),
])  # fmt: skip
def test_float64_and_no_bias_equal_flax_with_gradients(x64, ours, flax):
    x = normal((2, 9, 10, 2), dtype=np.float64)
    variables = random_params(ours, x, np.float64)
    assert ("bias" in variables["params"]) == isinstance(ours, ConvReluPool)
    assert_same_function(ours.apply, flax, variables, x, 1e-13)


def assert_integers_equal(ours, reference, seed, dtype=jnp.float32):
    """With entries of -1, 0, 1 every sum is exact, and most pooling windows tied or at the kink."""
    rng = np.random.default_rng(seed)

    def integers(*shape):
        return jnp.asarray(rng.integers(-1, 2, shape), dtype)

    variables = {"params": {"kernel": integers(2, 3, 1, 8), "bias": integers(8)}}
    x = integers(1, 7, 14, 1)
    args = (variables, x, integers(*jax.eval_shape(ours, variables, x).shape))
    got = both_passes(ours, *args)
    want = both_passes(reference, *jax.tree.map(jnp.float32, args))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.dtype == dtype
        np.testing.assert_array_equal(np.asarray(g, np.float32), w)


BLOCK = ConvReluPool(8, (2, 3))


@given(seed=st.integers(0, 2**32 - 1))
def test_ties_go_to_the_first_as_in_xla(seed):
    assert_integers_equal(BLOCK.apply, flax_pooled(8, (2, 3)), seed)


@pytest.mark.parametrize("lowering", EVERYWHERE)
def test_bfloat16_is_kept(lowering):
    conv = Conv(8, (2, 3), (2, 2), "SAME", lowering=lowering)
    flax = flax_conv(8, (2, 3), (2, 2), "SAME")
    assert_integers_equal(conv.apply, flax, 0, jnp.bfloat16)
    if lowering == "banded":
        assert_integers_equal(BLOCK.apply, flax_pooled(8, (2, 3)), 0, jnp.bfloat16)


def test_a_nan_stays_in_the_windows_that_hold_it():
    x = jnp.zeros((1, 6, 6, 1)).at[0, 0, 0, 0].set(jnp.nan)
    model = ConvReluPool(2, (3, 3))
    out = jax.jit(model.apply)(random_params(model, x), x)
    assert np.all(np.isnan(out[0, 0, 0])) and np.all(np.isfinite(out[0, 1:, 1:]))


@pytest.mark.parametrize("model", [
    *(Conv(4, (3, 3), (2, 1), "SAME", lowering=lowering) for lowering in EVERYWHERE),
    Conv(4, (3, 3), padding="SAME", lowering="winograd"),
    ConvReluPool(4, (3, 3)),
])  # fmt: skip
def test_vmap_over_parameters_equals_a_loop_over_clients(model):
    x = normal((3, 2, 7, 6, 1))
    first = random_params(model, x[0])
    params = [jax.tree.map(lambda a, c=c: a * (1 - c), first) for c in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    weight = normal((3, *jax.eval_shape(model.apply, first, x[0]).shape), 9)
    gradients = functools.partial(both_passes.__wrapped__, model.apply)
    got = jax.jit(jax.vmap(gradients))(stacked, x, weight)
    alone = [both_passes(model.apply, *one) for one in zip(params, x, weight, strict=True)]
    assert_close(got, jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone), 1e-5)


@pytest.mark.parametrize("model", [Conv(4, (3, 3), (1, 2), "SAME"), ConvReluPool(4, (3, 3))])
def test_any_leading_axes_and_integer_pixels(model):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 6, 7, 1), dtype=np.uint8)
    variables = random_params(model, pixels)

    @jax.jit
    def applied(pixels):
        x = jnp.float32(pixels)
        shapes = pixels, x, x.reshape(6, 6, 7, 1), x[1, 2]
        return [model.apply(variables, images) for images in shapes]

    whole, nested, flat, one = applied(pixels)
    assert_close([whole, nested.reshape(flat.shape), nested[1, 2]], [nested, flat, one], 1e-6)


def traced(model, channels):
    """The program of a forward pass on 32 x 32 images, before XLA sees it."""
    x = jax.ShapeDtypeStruct((2, 32, 32, channels), jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), x)
    return str(jax.make_jaxpr(model.apply)(variables, x))


@pytest.mark.parametrize("module", [Conv, ConvReluPool])
def test_a_named_lowering_is_taken(module):
    programs = [traced(module(16, (3, 3), lowering=lowering), 16) for lowering in LOWERINGS]
    found = ["conv_general_dilated" in program for program in programs]
    assert found == [True, False, False, False]
    assert len(set(programs)) == 4
    assert traced(module(16, (3, 3)), 16) == programs[3]  # the default for 16 channels
    assert traced(module(32, (3, 3)), 3) == traced(module(32, (3, 3), lowering="banded"), 3)


def test_the_default_is_that_of_the_table():
    """For one client, within a tenth of the fastest, of every row in the docstring."""
    row = r"^\s+\d+ +(\d+) -> +(\d+), (\d) x \d, (\d) +([-\d. ]+)$"
    rows = re.findall(row, default_lowering.__doc__, re.MULTILINE)
    assert len(rows) == 20
    for channels, features, size, stride, times in rows:
        kernel = (int(size), int(size), int(channels), int(features))
        one = zip(LOWERINGS, times.split()[:4], strict=True)
        times = {name: float(time) for name, time in one if time != "-"}
        chosen = default_lowering(kernel, (int(stride), int(stride)), np.float32)
        assert times[chosen] <= 1.1 * min(times.values()), kernel


IMAGE = (1, 8, 8, 1)
PADDING = "expected 'VALID', 'SAME', found padding"
PAIR = "expected two integers >= 1, found"
LOWERING = "expected 'xla', 'shifted', 'banded', 'winograd', None, found lowering"
WINOGRAD = (
    "expected kernel_size (3, 3) and strides (1, 1) with 'winograd', "
    "found kernel_size {}, strides {}"
)
SIZE = "expected [..., h, w, channels] with h >= {} and w >= {}, found input shape {}"


@pytest.mark.parametrize(("model", "shape", "message"), [
    (Conv(2, (3, 3), padding=((1, 1), (1, 1))), IMAGE, f"{PADDING} ((1, 1), (1, 1))"),
    (Conv(2, (3, 3)), (1, 2, 8, 1), SIZE.format(3, 3, (1, 2, 8, 1))),
    (Conv(2, (3, 3), padding="SAME"), (8, 8), SIZE.format(1, 1, (8, 8))),
    (Conv(2, 3), IMAGE, f"{PAIR} kernel_size 3"),
    (Conv(2, (0, 3)), IMAGE, f"{PAIR} kernel_size (0, 3)"),
    (Conv(2, (3, 2.5)), IMAGE, f"{PAIR} kernel_size (3, 2.5)"),
    (Conv(2, (3, 3), 2), IMAGE, f"{PAIR} strides 2"),
    (Conv(2, (3, 3), (1,)), IMAGE, f"{PAIR} strides (1,)"),
    (Conv(2, (3, 3), lowering=""), IMAGE, f"{LOWERING} ''"),
    (Conv(2, (3, 3), (1, 2), lowering="winograd"), IMAGE, WINOGRAD.format((3, 3), (1, 2))),
    (ConvReluPool(2, (3, 5), "winograd"), IMAGE, WINOGRAD.format((3, 5), (1, 1))),
    (Conv(0, (3, 3)), IMAGE, "expected features >= 1, found 0"),
    (ConvReluPool(2, (3, 5)), (1, 8, 5, 1), SIZE.format(4, 6, (1, 8, 5, 1))),
    (ConvReluPool(2, (3, 5)), (8, 8), SIZE.format(4, 6, (8, 8))),
])  # fmt: skip
def test_bad_input_is_refused_by_name(model, shape, message):
    x = np.zeros(shape, np.float32)
    refused(f"{type(model).__name__}: {message}", jax.eval_shape, model.init, jax.random.key(0), x)
