"""The networks against Flax's and their formulas: sizes, values, gradients, refusals."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusal import refused
from same_function import assert_close, assert_same_function, normal, random_params
from same_function import value_and_pullback as both_passes

import ccfl_jax as ccfl
from ccfl_jax.models import (
    CNN,
    EMNISTCNN,
    MLP,
    Logistic,
    McMahanCNN,
    ResNet18,
    ResNet20,
    TagLogistic,
)
from ccfl_jax.models.group_norm import GroupNorm
from ccfl_jax.models.resnet import _features

pytestmark = pytest.mark.usefixtures("quickly_compiled")
DIGITS, CIFAR = (1, 28, 28, 1), (1, 32, 32, 3)


def resnet(widths, blocks, project):
    """Kernels, norms (a scale and a bias after each kernel) and the dense layer."""
    kernels, norms, before = 9 * 3 * widths[0], 2 * widths[0], widths[0]
    for width in widths:
        kernels += 9 * before * width + (2 * blocks - 1) * 9 * width * width
        norms += 2 * blocks * 2 * width
        if project and width != before:
            kernels, norms = kernels + before * width, norms + 2 * width
        before = width
    return kernels + norms + before * 10 + 10


@pytest.mark.parametrize(("model", "shape", "expected"), [
    (CNN(), DIGITS, 6 * 26 + 16 * 151 + 120 * 257 + 84 * 121 + 10 * 85),
    # 28 x 28 pooled twice is 7 x 7.
    (McMahanCNN(), DIGITS, 32 * 26 + 64 * 801 + 512 * 3137 + 10 * 513),
    (EMNISTCNN(), DIGITS, 32 * 10 + 64 * 289 + 128 * 9217 + 62 * 129),
    (MLP(), DIGITS, 784 * 200 + 200 + 200 * 10 + 10),
    (MLP(features=()), DIGITS, 784 * 10 + 10),
    (Logistic(10), DIGITS, 784 * 10 + 10),
    (TagLogistic(), (1, 8), 10_000 * 500 + 500),
    (ResNet20(), CIFAR, resnet((16, 32, 64), 3, project=False)),
    (ResNet18(), CIFAR, resnet((64, 128, 256, 512), 2, project=True)),
])  # fmt: skip
def test_number_of_parameters_is_the_published_one(model, shape, expected):
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros(shape, np.int32))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected
    said = re.search(r"([\d,]{6,}) parameters", type(model).__doc__)
    assert said is None or int(said[1].replace(",", "")) == expected


class FlaxCNN(nn.Module):
    """Convolutions, relu and pooling, then a dense layer of each width."""

    convolutions: tuple
    padding: str
    dense: tuple

    @nn.compact
    def __call__(self, x):
        for k, features in enumerate(self.convolutions, 1):
            x = nn.relu(nn.Conv(features, (5, 5), padding=self.padding, name=f"conv{k}")(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        for k, width in enumerate(self.dense, 1):
            x = nn.Dense(width, name=f"dense{k}")(x if k == 1 else nn.relu(x))
        return x


class Narrow(nn.Module):
    """The ResNets' stages with few features."""

    blocks: int
    project: bool

    @nn.compact
    def __call__(self, x):
        x = _features(x, (4, 6), self.blocks, self.project, "xla")
        return nn.Dense(3, name="dense")(x)


class FlaxBlock(nn.Module):
    features: int
    stride: int
    project: bool

    @nn.compact
    def __call__(self, x):
        def normed(x, size, stride, name, norm):
            sizes = (size, size), (stride, stride), "SAME"
            x = nn.Conv(self.features, *sizes, use_bias=False, name=name)(x)
            return nn.GroupNorm(2, name=norm)(x)

        y = nn.relu(normed(x, 3, self.stride, "conv1", "norm1"))
        y = normed(y, 3, 1, "conv2", "norm2")
        if x.shape != y.shape and self.project:
            x = normed(x, 1, self.stride, "shortcut", "shortcut_norm")
        elif x.shape != y.shape:
            x = jnp.zeros_like(y).at[..., 1 : self.features - 1].set(x[:, ::2, ::2])
        return nn.relu(x + y)


class FlaxResNet(nn.Module):
    blocks: int
    project: bool

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3), padding="SAME", use_bias=False, name="conv")(x)
        x = nn.relu(nn.GroupNorm(2, name="norm")(x))
        for stage, features in ((1, 4), (2, 6)):
            for block in range(1, self.blocks + 1):
                stride = 2 if stage > 1 and block == 1 else 1
                name = f"stage{stage}_block{block}"
                x = FlaxBlock(features, stride, self.project, name=name)(x)
        return nn.Dense(3, name="dense")(x.mean((1, 2)))


@pytest.mark.parametrize(("model", "flax", "shape"), [
    (CNN(), FlaxCNN((6, 16), "VALID", (120, 84, 10)), (2, 18, 17, 1)),
    (McMahanCNN(lowering="xla"), FlaxCNN((32, 64), "SAME", (512, 10)), (2, 6, 5, 2)),
    (Narrow(1, False), FlaxResNet(1, False), (2, 6, 6, 3)),
    (Narrow(1, True), FlaxResNet(1, True), (2, 6, 6, 3)),
    pytest.param(Narrow(2, True), FlaxResNet(2, True), (2, 6, 6, 3), marks=pytest.mark.slow),
], ids=["NIID-Bench", "McMahan", "ResNet20", "ResNet18", "ResNet18, two blocks"])  # fmt: skip
def test_convolutional_networks_are_those_of_flax(model, flax, shape):
    """Values and gradients, and so a step of SGD; no row has a part in another's."""
    x = normal(shape)
    assert_same_function(model.apply, flax.apply, random_params(flax, x), x)


@pytest.mark.parametrize(("shape", "groups", "dtype", "tolerance"), [
    ((3, 4, 5, 6), 2, np.float32, 1e-5),
    ((2, 3, 4), 4, np.float32, 1e-5),
    ((3, 4, 5, 6), 3, np.float64, 1e-13),
])  # fmt: skip
def test_group_norm_is_that_of_flax_with_gradients(shape, groups, dtype, tolerance):
    with jax.enable_x64(dtype == np.float64):
        ours, flax = GroupNorm(groups), nn.GroupNorm(groups)
        x = 2 * normal(shape, 3, dtype=dtype) + 1
        assert_same_function(ours.apply, flax.apply, random_params(flax, x, dtype), x, tolerance)


def test_group_norm_of_images_without_variance_is_that_of_flax():
    """1024 is exact in every sum, so the variance is 0 and nothing passes through it."""
    x = jnp.full((2, 4, 4, 4), 1024.0)
    variables = random_params(nn.GroupNorm(2), x)
    weight = normal(x.shape, 5)
    got, want = (
        both_passes(norm(2).apply, variables, x, weight) for norm in (GroupNorm, nn.GroupNorm)
    )
    assert_close(got, want, 1e-5)


def test_group_norm_computes_in_float32_and_keeps_bfloat16():
    x = normal((2, 3, 3, 4), 3).astype(jnp.bfloat16)
    variables = random_params(nn.GroupNorm(2), x, jnp.bfloat16)
    got, want = (norm(2).apply(variables, x) for norm in (GroupNorm, nn.GroupNorm))
    assert got.dtype == want.dtype == jnp.bfloat16
    assert_close(got.astype(np.float32), want.astype(np.float32), 2**-8)


@pytest.mark.slow
def test_every_parameter_of_resnet20_has_a_gradient():
    x = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    batch, key = {"x": x, "y": np.array([3, 7])}, jax.random.key(0)
    task = ccfl.classification_task(ResNet20(), (32, 32, 3), 10)
    observe = jax.jit(jax.value_and_grad(task.observe, has_aux=True))
    (loss, _), gradient = observe(task.init(key), batch, np.ones(2, bool), key)
    assert 1 < float(loss) < 5  # about log 10 before training
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0, path


def test_a_metrics_pass_on_the_same_batch_costs_no_product():
    x, y = normal((4, 16, 16, 1)), np.arange(4)
    params = random_params(CNN(), x)

    def loss(params, x, y):
        logits = CNN().apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step_and_metrics(params, x, y):
        gradients = jax.value_and_grad(loss)(params, x, y)
        return gradients, (CNN().apply(params, x).argmax(-1) == y).sum()

    program = jax.jit(step_and_metrics).lower(params, x, y).compile().as_text()
    # Forward 5; backward two for each layer but the first, whose input gradient nobody uses.
    assert len(re.findall(r" dot\(", program)) == 5 + 2 * 5 - 1


@pytest.mark.parametrize(("model", "shape", "out"), [
    (CNN(num_classes=7), (32, 33, 3), (7,)),
    (CNN(), (2, 3, 28, 28, 1), (2, 3, 10)),
    (McMahanCNN(num_classes=7), (2, 4, 4, 3), (2, 7)),
    (McMahanCNN(), (2, 3, 28, 28, 1), (2, 3, 10)),
    (MLP(num_classes=3), (0, 5), (0, 3)),
])  # fmt: skip
def test_output_shapes(model, shape, out):
    found, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), np.zeros(shape, "f"))
    assert found.shape == out


@pytest.mark.parametrize(("model", "layers"), [
    (MLP((7, 6), 3), ("dense1", "dense2", "dense3")), (Logistic(3), ("dense",)),
])  # fmt: skip
def test_dense_models_equal_their_formula(model, layers):
    x = normal((4, 3, 5))
    variables = random_params(model, x)
    hidden = np.float64(x).reshape(4, 15)
    for k, name in enumerate(layers):
        layer = jax.tree.map(np.float64, variables["params"][name])
        hidden = (np.maximum(hidden, 0) if k else hidden) @ layer["kernel"] + layer["bias"][None]
    np.testing.assert_allclose(model.apply(variables, x), hidden, rtol=0, atol=1e-5)


IMAGES = "expected [..., h, w, channels] with {0} x {0} pixels or more, found input shape {1}"
CLASSES = "expected num_classes >= 1, found 0"


@pytest.mark.parametrize(("model", "shape", "message"), [
    (CNN(), (1, 15, 28, 1), IMAGES.format(16, (1, 15, 28, 1))),
    (CNN(), (28, 28), IMAGES.format(16, (28, 28))),
    (CNN(num_classes=0), DIGITS, CLASSES),
    (McMahanCNN(), (1, 3, 28, 1), IMAGES.format(4, (1, 3, 28, 1))),
    (McMahanCNN(num_classes=0), DIGITS, CLASSES),
    (EMNISTCNN(), (1, 5, 28, 1), IMAGES.format(6, (1, 5, 28, 1))),
    (MLP(features=(5, 0)), (1, 4), "expected layer widths >= 1, found (5, 0, 10)"),
    (MLP(), (4,), "expected [b, ...], found input shape (4,)"),
    (Logistic(0), (1, 4), CLASSES),
    (Logistic(2), (4,), "expected [b, ...], found input shape (4,)"),
    (GroupNorm(3), (1, 2, 4), "expected num_groups that divides 4 features, found 3"),
    (ResNet18(0), CIFAR, CLASSES),
    (ResNet20(0), CIFAR, CLASSES),
    (ResNet18(), CIFAR[1:], "expected [b, h, w, channels], found input shape (32, 32, 3)"),
    (ResNet20(), CIFAR[1:], "expected [b, h, w, channels], found input shape (32, 32, 3)"),
])  # fmt: skip
def test_bad_input_is_refused_by_name(model, shape, message):
    x = np.zeros(shape, np.float32)
    refused(f"{type(model).__name__}: {message}", jax.eval_shape, model.init, jax.random.key(0), x)
