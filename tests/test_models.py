"""Models: the banded convolution and the fused block against Flax's, the networks' formulas."""

import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfl_jax.models import CNN, MLP, Conv, ConvReluPool, Logistic

# (input, kernel): odd and even sizes, one and several tiles a row. The CNN's layers have a test.
CASES = [
    ((10, 12, 6), (5, 5)),
    ((13, 17, 3), (4, 2)),
    ((6, 27, 2), (3, 1)),
    ((5, 7, 2), (1, 6)),
]


def normal(shape, seed=0, scale=1.0, dtype=np.float32):
    return jnp.asarray(scale * np.random.default_rng(seed).normal(size=shape), dtype)


def random_params(model, x, dtype=np.float32):
    """Parameters of the model's shapes, biases too, without the initialisers."""
    shapes, tree = jax.tree.flatten(jax.eval_shape(model.init, jax.random.key(0), x))
    return tree.unflatten([normal(s.shape, i, 0.3, dtype) for i, s in enumerate(shapes)])


def flax_pooled(features, kernel_size):
    conv = nn.Conv(features, kernel_size, padding="VALID")

    def apply(variables, x):
        return nn.max_pool(nn.relu(conv.apply(variables, x)), (2, 2), (2, 2))

    return apply


@partial(jax.jit, static_argnums=0)
def value_and_pullback(apply, variables, x, weight):
    """The output and the gradients of `sum(weight * output)` for parameters and input."""
    out, pull = jax.vjp(apply, variables, x)
    return out, pull(weight)


def assert_close(got, want, tolerance):
    """Every array within `tolerance` of the largest entry of the wanted one."""
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=0, atol=tolerance * max(1, np.abs(w).max()))


def assert_same_function(apply, reference, variables, x, tolerance=1e-5):
    weight = normal(jax.eval_shape(reference, variables, x).shape, 9, dtype=x.dtype)
    got = value_and_pullback(apply, variables, x, weight)
    assert_close(got, value_and_pullback(reference, variables, x, weight), tolerance)


@pytest.mark.parametrize(
    ("shape", "kernel_size", "padding"),
    [(*case, "VALID") for case in CASES] + [(*case, "SAME") for case in CASES[1::2]],
)
def test_conv_equals_flax_with_gradients(shape, kernel_size, padding):
    x = normal((3, *shape))
    ours, flax = Conv(7, kernel_size, padding), nn.Conv(7, kernel_size, padding=padding)
    assert_same_function(ours.apply, flax.apply, random_params(flax, x), x)


@pytest.mark.parametrize(("shape", "kernel_size"), CASES)
def test_fused_block_equals_flax_with_gradients(shape, kernel_size):
    x = normal((3, *shape))
    ours = ConvReluPool(7, kernel_size)
    assert_same_function(ours.apply, flax_pooled(7, kernel_size), random_params(ours, x), x)


def test_parameters_start_as_in_flax():
    key, x = jax.random.key(5), normal((1, 6, 6, 3))
    models = Conv(7, (3, 2)), ConvReluPool(7, (3, 2)), nn.Conv(7, (3, 2))
    conv, block, flax = jax.jit(lambda key: [model.init(key, x) for model in models])(key)
    assert_close(conv, flax, 0)
    assert_close(block, flax, 0)


def numpy_conv(x, kernel, bias):
    """`y[b, p, q, o] = sum x[b, p + u, q + v, i] k[u, v, i, o] + bias[o]` in loops."""
    kh, kw, _, features = kernel.shape
    height, width = x.shape[1] - kh + 1, x.shape[2] - kw + 1
    y = np.zeros((x.shape[0], height, width, features)) + bias.reshape(1, 1, 1, features)
    for u in range(kh):
        for v in range(kw):
            y += x[:, u : u + height, v : v + width] @ kernel[u, v]
    return y


def test_float64_equals_the_formula_and_flax(x64):
    rng = np.random.default_rng(3)
    x, kernel, bias = (rng.normal(size=s) for s in [(2, 9, 11, 2), (3, 2, 2, 5), (5,)])
    y = numpy_conv(x, kernel, bias)
    pooled = np.maximum(y[:, :6, :10], 0).reshape(2, 3, 2, 5, 2, 5).max((2, 4))
    variables = {"params": {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}}
    for model, want in [(Conv(5, (3, 2)), y), (ConvReluPool(5, (3, 2)), pooled)]:
        got = jax.jit(model.apply)(variables, jnp.asarray(x))
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)
    block = ConvReluPool(5, (3, 2)).apply
    assert_same_function(block, flax_pooled(5, (3, 2)), variables, jnp.asarray(x), 1e-13)


def assert_ties_equal(block, pooled, seed, dtype=jnp.float32):
    """With entries of -1, 0, 1 every sum is exact and most windows are tied or at relu's kink."""
    rng = np.random.default_rng(seed)

    def integers(*shape):
        return jnp.asarray(rng.integers(-1, 2, shape), dtype)

    variables = {"params": {"kernel": integers(2, 3, 1, 8), "bias": integers(8)}}
    args = (variables, integers(1, 7, 14, 1), integers(1, 3, 6, 8))
    got = value_and_pullback(block, *args)
    want = value_and_pullback(pooled, *jax.tree.map(jnp.float32, args))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.dtype == dtype
        np.testing.assert_array_equal(np.asarray(g, np.float32), w)


def test_ties_go_to_the_first_as_in_xla():
    block, pooled = ConvReluPool(8, (2, 3)).apply, flax_pooled(8, (2, 3))

    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed):
        assert_ties_equal(block, pooled, seed)

    check()


def test_bfloat16_is_kept():
    assert_ties_equal(ConvReluPool(8, (2, 3)).apply, flax_pooled(8, (2, 3)), 0, jnp.bfloat16)


def test_a_nan_comes_through():
    x = jnp.zeros((1, 6, 6, 1)).at[0, 0, 0, 0].set(jnp.nan)
    model = ConvReluPool(2, (3, 3))
    out = jax.jit(model.apply)(random_params(model, x), x)
    assert np.all(np.isnan(out[0, 0, 0])) and np.all(np.isfinite(out[0, 1:, 1:]))


@pytest.mark.parametrize("model", [Conv(4, (3, 3)), ConvReluPool(4, (3, 3))])
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


@pytest.mark.parametrize("model", [Conv(4, (3, 3)), ConvReluPool(4, (3, 3))])
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


def products(function, *args):
    """Matrix products in the optimised program."""
    text = jax.jit(function).lower(*args).compile().as_text()
    return len(re.findall(r" dot\(", text))


def test_a_metrics_pass_on_the_same_batch_costs_no_product():
    x, y = normal((4, 16, 16, 1)), jnp.arange(4)
    params = random_params(CNN(), x)

    def loss(params, x, y):
        logits = CNN().apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step_and_metrics(params, x, y):
        gradients = jax.value_and_grad(loss)(params, x, y)
        return gradients, (CNN().apply(params, x).argmax(-1) == y).sum()

    # Forward 5; backward two for each layer but the first, whose input gradient nobody uses.
    assert products(step_and_metrics, params, x, y) == 5 + 2 * 5 - 1
    assert products(jax.grad(loss, argnums=(0, 1)), params, x, y) == 5 + 2 * 5


class FlaxCNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        for name, features in [("conv1", 6), ("conv2", 16)]:
            x = nn.relu(nn.Conv(features, (5, 5), padding="VALID", name=name)(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(120, name="dense1")(x))
        x = nn.relu(nn.Dense(84, name="dense2")(x))
        return nn.Dense(10, name="dense3")(x)


def parameters(model, x):
    variables = jax.eval_shape(model.init, jax.random.key(0), x)
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


def test_cnn_is_that_of_niid_bench():
    x = normal((5, 28, 28, 1))
    # 6 * 26 + 16 * 151 + 120 * 257 + 84 * 121 + 10 * 85
    assert parameters(CNN(), x) == 44_426
    assert_same_function(CNN().apply, FlaxCNN().apply, random_params(FlaxCNN(), x), x)


@pytest.mark.parametrize(
    ("model", "shape", "out"),
    [
        (CNN(num_classes=7), (2, 32, 33, 3), (2, 7)),
        (CNN(), (2, 16, 16, 1), (2, 10)),
        (CNN(), (28, 28, 1), (10,)),
        (CNN(), (2, 3, 28, 28, 1), (2, 3, 10)),
        (MLP(), (4, 28, 28, 1), (4, 10)),
        (MLP(num_classes=3), (0, 5), (0, 3)),
        (Logistic(3), (4, 60), (4, 3)),
    ],
)
def test_output_shapes(model, shape, out):
    assert (
        jax.eval_shape(model.init_with_output, jax.random.key(0), jnp.zeros(shape))[0].shape == out
    )


def test_mlp_equals_its_formula():
    x = normal((4, 3, 5))
    model = MLP(features=(7, 6), num_classes=3)
    variables = random_params(model, x)
    hidden = np.asarray(x, np.float64).reshape(4, 15)
    for i in (1, 2, 3):
        layer = jax.tree.map(np.float64, variables["params"][f"dense{i}"])
        hidden = hidden @ layer["kernel"] + layer["bias"].reshape(1, -1)
        hidden = np.maximum(hidden, 0) if i < 3 else hidden
    np.testing.assert_allclose(model.apply(variables, x), hidden, rtol=0, atol=1e-5)


def test_logistic_equals_its_formula():
    x = normal((4, 6, 10))
    model = Logistic(num_classes=5)
    variables = random_params(model, x)
    dense = jax.tree.map(np.float64, variables["params"]["dense"])
    logits = np.float64(x).reshape(4, 60) @ dense["kernel"] + dense["bias"].reshape(1, 5)
    np.testing.assert_allclose(model.apply(variables, x), logits, rtol=0, atol=1e-5)


def test_dense_models_have_the_right_sizes():
    x = normal((1, 28, 28, 1))
    assert parameters(MLP(), x) == 784 * 200 + 200 + 200 * 10 + 10
    assert parameters(MLP(features=()), x) == parameters(Logistic(10), x) == 784 * 10 + 10


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (Conv(2, (3, 3), "CIRCULAR"), (1, 8, 8, 1), "padding is 'CIRCULAR', must be 'VALID'"),
        (Conv(2, (3, 3)), (1, 2, 8, 1), "(1, 2, 8, 1), must be [..., h, w, channels] with h >= 3"),
        (Conv(2, (3, 3), "SAME"), (8, 8), "must be [..., h, w, channels] with h >= 1 and w >= 1"),
        (Conv(2, 3), (1, 8, 8, 1), "kernel_size is 3, must be two numbers of 1 or more"),
        (Conv(2, (0, 3)), (1, 8, 8, 1), "kernel_size is (0, 3), must be two numbers"),
        (Conv(0, (3, 3)), (1, 8, 8, 1), "features is 0, must be 1 or more"),
        (ConvReluPool(2, (3, 5)), (1, 8, 5, 1), "with h >= 4 and w >= 6"),
        (ConvReluPool(2, (3, 5)), (8, 8), "input shape is (8, 8), must be [..., h, w, channels]"),
        (CNN(), (1, 15, 28, 1), "(1, 15, 28, 1), must be [..., h, w, channels] with 16 x 16"),
        (CNN(), (28, 28), "input shape is (28, 28), must be [..., h, w, channels]"),
        (CNN(num_classes=0), (1, 28, 28, 1), "num_classes is 0, must be 1 or more"),
        (MLP(features=(5, 0)), (1, 4), "layer widths are (5, 0, 10), must be 1 or more"),
        (MLP(), (4,), "input shape is (4,), must be [b, ...]"),
        (Logistic(0), (1, 4), "num_classes is 0, must be 1 or more"),
        (Logistic(2), (4,), "input shape is (4,), must be [b, ...]"),
    ],
)
def test_bad_input_is_refused_by_name(model, shape, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(shape))
    text = str(error.value)
    assert text.startswith(type(model).__name__) and "\n" not in text
