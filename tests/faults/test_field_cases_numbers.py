"""Faults people met in other simulators, as `test_field_cases.py`: sums, metrics and numerics."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import make_schedule

import ccfl_jax as ccfl
from ccfl_jax.algorithm import tree_util
from ccfl_jax.models import Conv, TagLogistic
from ccfl_jax.models.resnet import _norm

pytestmark = pytest.mark.usefixtures("quickly_compiled")


def test_so_13_each_upload_that_is_there_counts_the_same():
    """Uploads 1 and 0, each there half the time: both give 1/2; by sizes 1 and 9 it were 0.1."""
    there = np.random.default_rng(0).random((10_000, 2)) < 0.5
    none = jnp.zeros(2, jnp.int32)

    def combine(counted):
        total = tree_util.masked_sum({"x": jnp.array([1.0, 0.0])}, counted)
        arrivals = ccfl.Arrivals(none, none, none, none, counted, counted.sum(dtype=jnp.int32))
        return ccfl.mean().finish(total, arrivals, ())[0]["x"]

    found = np.asarray(jax.jit(jax.vmap(combine))(there))
    assert set(found[there.all(axis=1)]) == {0.5}
    assert set(found[there[:, 0] & ~there[:, 1]]) == {1.0}
    assert set(found[~there[:, 0]]) == {0.0}


class SmallCNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(Conv(4, (2, 2))(x)).reshape(len(x), -1))


@pytest.mark.slow
def test_mc_04_convolutions_of_clients_together_are_those_of_each():
    """Three clients of a small CNN, all at once and one after another."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(12, 3, 3, 1)).astype("f"), "y": rng.integers(0, 3, 12)}
    data = ccfl.FederatedData.from_indices(arrays, list(np.arange(12).reshape(3, 4)))
    task, server = ccfl.classification_task(SmallCNN(), (3, 3, 1), 3), ccfl.cc_fedavg()
    state = ccfl.init_state(task, server, jax.random.key(0))
    schedule = make_schedule([range(3)] * 2, work=[[1, 2, 3]] * 2)
    ends = []
    for lanes in (3, 1):
        round_fn = ccfl.build_round(task, server, 0.1, 4, "steps", lanes=lanes)
        ends.append(ccfl.run_rounds(round_fn, state, schedule, data)[0].params)
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_me_07_precision_is_pooled_over_batches_and_clients():
    """TP 1 of 1 predicted, and TP 9 of 18: 10/19; the mean of both precisions is 0.75."""
    task = ccfl.Task(None, None, lambda params, batch, mask: {
        "precision": ((mask * batch["hit"]).sum(), (mask * batch["predicted"]).sum())})  # fmt: skip
    predicted = np.array([1] + [0] * 9 + [1] * 18 + [0])
    hit = np.array([1] + [0] * 9 + [1] * 9 + [0] * 10)
    found = ccfl.evaluate(task, {}, {"hit": hit, "predicted": predicted}, 10)
    assert found["precision"] == pytest.approx(10 / 19, rel=1e-9)


def test_me_09_recall_of_constant_logits_is_exact():
    """Ten tags, each that of a hundred of the thousand texts: the five lowest are recalled."""
    task = ccfl.tags_task(TagLogistic(2, 10), (1,), 10)
    params = {"table": jnp.zeros((2, 10)), "bias": jnp.zeros(10)}
    arrays = {"x": np.zeros((1000, 1), np.int32), "y": np.arange(1000)[:, None] % 10}
    assert ccfl.evaluate(task, params, arrays, 300)["recall_at_5"] == 0.5


def test_nu_03_clipping_nothing_gives_nothing():
    delta = {"x": jnp.zeros(3)}
    server = optax.chain(optax.clip_by_global_norm(1.0), ccfl.cc_fedams(0.1))
    updates, _ = jax.jit(server.update)(delta, server.init(delta), delta)
    np.testing.assert_array_equal(updates["x"], np.zeros(3))


@pytest.mark.parametrize("method", [ccfl.cc_fedadagrad, ccfl.cc_fedadam, ccfl.cc_fedams])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_nu_04_no_pseudo_gradient_is_no_step_in_short_floats(method, dtype):
    """eps 1e-8 is zero in float16: the root must not be taken there."""
    params, server = jnp.ones(3, dtype), method(0.1, eps=1e-8)
    updates, _ = server.update(jnp.zeros(3, dtype), server.init(params), params)
    np.testing.assert_array_equal(updates, np.zeros(3))
    np.testing.assert_array_equal(optax.apply_updates(params, updates), params)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_nu_05_counts_do_not_take_the_models_dtype(dtype):
    """A bfloat16 sum of 70,000 ones is 256, a float16 sum of them inf."""
    task = ccfl.classification_task(nn.Dense(3, dtype=dtype, param_dtype=dtype), (1,), 3)
    params = {"kernel": jnp.ones((1, 3), dtype), "bias": jnp.array([1, 0, 0], dtype)}
    arrays = {"x": jnp.ones((70_000, 1)), "y": jnp.zeros(70_000, jnp.int32)}
    hits, count = jax.jit(task.metrics)(params, arrays, jnp.ones(70_000, bool))["accuracy"]
    assert (float(hits), int(count)) == (70_000, 70_000)


def test_nu_09_a_variance_of_almost_equal_inputs_is_not_negative():
    """A ResNet's norm of one image with numbers near 1000: finite, and so is its derivative."""
    noise, norm = np.random.default_rng(0).normal(size=(1, 4, 4, 2)), _norm("norm")
    variables = norm.init(jax.random.key(0), jnp.zeros((1, 4, 4, 2)))
    slope_of = jax.jit(jax.value_and_grad(lambda x: norm.apply(variables, x).sum()))
    for spread in (0.0, 1e-4, 1e-1):
        out, slope = slope_of(jnp.asarray(1000 + spread * noise, jnp.float32))
        assert np.isfinite(out) and np.isfinite(slope).all()
