"""Models: the networks against Flax's and against their formulas."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from same_function import assert_same_function, normal, random_params

from ccfl_jax.models import CNN, MLP, Logistic, McMahanCNN


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


class FlaxMcMahanCNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        for name, features in [("conv1", 32), ("conv2", 64)]:
            x = nn.relu(nn.Conv(features, (5, 5), padding="SAME", name=name)(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(512, name="dense1")(x))
        return nn.Dense(10, name="dense2")(x)


def test_mcmahans_cnn_is_that_of_flax():
    """Values and gradients, and so a step of SGD; the size is that of the paper."""
    # 28 x 28 pooled twice is 7 x 7: 32 * 26 + 64 * 801 + 512 * 3137 + 10 * 513
    assert parameters(McMahanCNN(), normal((1, 28, 28, 1))) == 1_663_370
    x = normal((3, 12, 9, 2))
    variables = random_params(FlaxMcMahanCNN(), x)
    assert_same_function(McMahanCNN().apply, FlaxMcMahanCNN().apply, variables, x)


@pytest.mark.parametrize(
    ("model", "shape", "out"),
    [
        (CNN(num_classes=7), (2, 32, 33, 3), (2, 7)),
        (CNN(), (2, 16, 16, 1), (2, 10)),
        (CNN(), (28, 28, 1), (10,)),
        (CNN(), (2, 3, 28, 28, 1), (2, 3, 10)),
        (McMahanCNN(num_classes=7), (2, 4, 4, 3), (2, 7)),
        (McMahanCNN(), (2, 3, 28, 28, 1), (2, 3, 10)),
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
        (CNN(), (1, 15, 28, 1), "(1, 15, 28, 1), legal: [..., h, w, channels] with 16 x 16"),
        (CNN(), (28, 28), "expected [..., h, w, channels], found input shape (28, 28)"),
        (CNN(num_classes=0), (1, 28, 28, 1), "expected num_classes >= 1, found 0"),
        (McMahanCNN(), (1, 3, 28, 1), "(1, 3, 28, 1), legal: [..., h, w, channels] with 4 x 4"),
        (McMahanCNN(num_classes=0), (1, 28, 28, 1), "expected num_classes >= 1, found 0"),
        (MLP(features=(5, 0)), (1, 4), "expected layer widths >= 1, found (5, 0, 10)"),
        (MLP(), (4,), "expected [b, ...], found input shape (4,)"),
        (Logistic(0), (1, 4), "expected num_classes >= 1, found 0"),
        (Logistic(2), (4,), "expected [b, ...], found input shape (4,)"),
    ],
)
def test_bad_input_is_refused_by_name(model, shape, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(shape))
    text = str(error.value)
    assert text.startswith(type(model).__name__) and "\n" not in text
