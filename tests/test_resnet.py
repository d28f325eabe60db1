"""ResNet20: size, shapes, the shortcut, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ccfl_jax as ccfl
from ccfl_jax.models import ResNet20
from ccfl_jax.models.resnet import _Block


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
    with pytest.raises(ValueError, match="num_classes is 0"):
        ResNet20(0).init(key, jnp.zeros((1, 32, 32, 3)))
    with pytest.raises(ValueError, match=r"\(32, 32, 3\)"):
        ResNet20().init(key, jnp.zeros((32, 32, 3)))
