"""The ResNets' stages against Flax's own layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from same_function import assert_same_function, normal, random_params

import ccfl_jax as ccfl
from ccfl_jax.models import ResNet20
from ccfl_jax.models.resnet import _features

pytestmark = pytest.mark.usefixtures("quickly_compiled")


class Narrow(nn.Module):
    """Our stages with few features."""

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


@pytest.mark.parametrize(
    ("blocks", "project"), [(1, False), (2, True)], ids=["padded", "projected"]
)
def test_stages_are_those_of_flax(blocks, project):
    """Values and gradients, and so a step of SGD; no row has a part in another's."""
    x = normal((2, 6, 6, 3))
    ours, flax = (model(blocks, project) for model in (Narrow, FlaxResNet))
    assert_same_function(ours.apply, flax.apply, random_params(flax, x), x)


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
