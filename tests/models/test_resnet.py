"""The ResNets: sizes, Flax's own layers, the shortcut, refusals."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from same_function import assert_same_function, normal, random_params

import ccfl_jax as ccfl
from ccfl_jax.models import ResNet18, ResNet20
from ccfl_jax.models.resnet import _Block, _features


@pytest.fixture(scope="module")
def params():
    return ccfl.classification_task(ResNet20(), (32, 32, 3), 10).init(jax.random.key(0))


def test_number_of_parameters(params):
    convolutions = 3 * 3 * 3 * 16  # the first
    convolutions += 6 * 9 * 16 * 16
    convolutions += 9 * 16 * 32 + 5 * 9 * 32 * 32
    convolutions += 9 * 32 * 64 + 5 * 9 * 64 * 64
    norms = 2 * (7 * 16 + 6 * 32 + 6 * 64)  # a scale and a bias after each convolution
    dense = 64 * 10 + 10
    assert convolutions + norms + dense == 269_722
    assert sum(a.size for a in jax.tree.leaves(params)) == 269_722


def test_number_of_parameters_of_resnet18():
    convolutions = 3 * 3 * 3 * 64 + 4 * 9 * 64 * 64  # the first and stage 1
    norms = 2 * 5 * 64
    for before, width in ((64, 128), (128, 256), (256, 512)):
        convolutions += 9 * before * width + 3 * 9 * width * width + before * width  # 1 x 1 last
        norms += 2 * 5 * width
    dense = 512 * 10 + 10
    assert convolutions + norms + dense == 11_173_962
    shapes = jax.eval_shape(ResNet18().init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    assert sum(a.size for a in jax.tree.leaves(shapes)) == 11_173_962


class Narrow(nn.Module):
    """Our stages with few features."""

    blocks: int
    project: bool

    @nn.compact
    def __call__(self, x):
        x = _features(x, (4, 6), self.blocks, self.project, None)
        return nn.Dense(3, name="dense")(x)


class FlaxBlock(nn.Module):
    features: int
    stride: int
    project: bool

    @nn.compact
    def __call__(self, x):
        def conv(size, stride, name):
            return nn.Conv(
                self.features, (size,) * 2, (stride,) * 2, "SAME", use_bias=False, name=name
            )

        y = conv(3, self.stride, "conv1")(x)
        y = nn.relu(nn.GroupNorm(2, name="norm1")(y))
        y = nn.GroupNorm(2, name="norm2")(conv(3, 1, "conv2")(y))
        if x.shape == y.shape:
            return nn.relu(x + y)
        if self.project:
            x = nn.GroupNorm(2, name="shortcut_norm")(conv(1, self.stride, "shortcut")(x))
            return nn.relu(x + y)
        kept = jnp.zeros_like(y).at[..., 1 : self.features - 1].set(x[:, ::2, ::2])
        return nn.relu(kept + y)


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


@pytest.mark.parametrize("project", [False, True], ids=["padded", "projected"])
def test_stages_are_those_of_flax(project):
    """Values and gradients, and so a step of SGD."""
    x = normal((2, 8, 8, 3))
    ours, flax = (model(blocks=2, project=project) for model in (Narrow, FlaxResNet))
    assert_same_function(ours.apply, flax.apply, random_params(flax, x), x)


def test_every_parameter_has_a_gradient(params):
    rng = np.random.default_rng([0])
    batch = {
        "x": jnp.asarray(rng.integers(0, 256, (2, 32, 32, 3)), jnp.uint8),
        "y": jnp.array([3, 7]),
    }
    task = ccfl.classification_task(ResNet20(), (32, 32, 3), 10)
    loss, gradient = jax.jit(jax.value_and_grad(task.loss))(
        params, batch, jnp.ones(2, bool), jax.random.key(0)
    )
    assert 1 < float(loss) < 5  # about log 10 before training
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0, path


def test_a_block_without_convolutions_is_its_shortcut():
    """With zero kernels the norms give zero, and relu(shortcut) is left."""
    x = jnp.asarray(np.random.default_rng([1]).normal(size=(2, 6, 6, 4)), jnp.float32)
    block = _Block(8, 2)
    shapes = jax.eval_shape(block.init, jax.random.key(0), x)
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    y = np.asarray(jax.jit(block.apply)(zeros, x))
    expected = np.zeros((2, 3, 3, 8))
    expected[..., 2:6] = np.maximum(np.asarray(x)[:, ::2, ::2], 0)
    np.testing.assert_array_equal(y, expected)


def test_rows_do_not_mix(params):
    x = jnp.asarray(np.random.default_rng([2]).normal(size=(2, 32, 32, 3)), jnp.float32)
    apply = jax.jit(lambda x: ResNet20().apply({"params": params}, x))
    np.testing.assert_array_equal(apply(x)[0], apply(x.at[1].set(1e3))[0])


def test_what_is_refused():
    key = jax.random.key(0)
    for model in (ResNet18, ResNet20):
        with pytest.raises(ValueError, match=f"{model.__name__}: found num_classes 0, legal"):
            model(0).init(key, jnp.zeros((1, 32, 32, 3)))
        with pytest.raises(ValueError, match=rf"{model.__name__}: .*\(32, 32, 3\)"):
            model().init(key, jnp.zeros((32, 32, 3)))
