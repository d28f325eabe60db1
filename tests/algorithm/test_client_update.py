"""CC-Local for one client: counts, normalisation, padding, key discipline."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
from problems import assert_trees_close, assert_trees_equal, softmax_gradient

from ccfl_jax.algorithm import minibatches
from ccfl_jax.algorithm.client_update import Client, build_local

SOFTMAX, SLOPE, SGD = problems.softmax_task(), problems.slope_task(), optax.sgd(0.1)
SIZES, BATCH = [1, 3, 7, 8, 9, 20, 0], 8
DATA, ARRAYS, LISTS = problems.federated(SIZES)

epoch_batch = jax.jit(minibatches.epoch_batch, static_argnums=3)


def client_of(data, i):
    begin, end = data.offsets[i], data.offsets[i + 1]
    return Client(data.arrays, data.indices, begin, end - begin)


@cache
def program(task, optimiser=SGD, unit="epochs", normalise="none"):
    return jax.jit(build_local(task, optimiser, BATCH, unit, normalise))


def work(task, size, amount, *how, key=0):
    """The upload and the info of the client of that many samples, and the model it starts from."""
    client, start = client_of(DATA, SIZES.index(size)), task.init(jax.random.key(9))
    local = program(task, *how)
    end = local(start, client, jnp.int32(amount), jax.random.key(key))
    return end.upload, end.info, start


@pytest.mark.parametrize(("size", "steps"), [(1, 1), (3, 1), (7, 1), (8, 1), (9, 2)])
def test_steps_of_one_epoch(size, steps):
    _, info, _ = work(SOFTMAX, size, 1)
    assert int(info.steps) == steps and int(info.samples) == size


def test_small_clients_step_is_the_mean_gradient_of_its_rows():
    """One client of 3 rows, batch 8, one epoch: one step of the full-batch gradient."""
    upload, info, start = work(SOFTMAX, 3, 1)
    x, y = (ARRAYS[name][LISTS[1]] for name in "xy")
    gradient = softmax_gradient(jax.tree.map(np.float64, start), x, y)
    assert_trees_close(upload, jax.tree.map(lambda g: 0.1 * g, gradient), 1e-5)
    logits = x @ np.asarray(start["w"]) + np.asarray(start["b"])
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(3), y]
    assert float(info.loss) == pytest.approx(losses.mean(), rel=1e-5)
    assert float(info.metrics["accuracy"]) == pytest.approx((logits.argmax(1) == y).mean())


@pytest.mark.parametrize(
    ("unit", "normalise", "divisor"),
    [  # two epochs of ceil(20 / 8) = 3 batches
        ("epochs", "steps", 6), ("epochs", "epochs", 2), ("epochs", "none", 1),
        ("steps", "steps", 2), ("steps", "epochs", 2 * 8 / 20), ("steps", "none", 1),
    ],
)  # fmt: skip
def test_normalisation(unit, normalise, divisor):
    """Gradient 1 everywhere: K steps of rate 0.1 move 0.1 K."""
    upload, info, _ = work(SLOPE, 20, 2, SGD, unit, normalise)
    assert int(info.steps) == (6 if unit == "epochs" else 2)
    assert float(upload["x"]) == pytest.approx(0.1 * int(info.steps) / divisor, rel=1e-6)


@pytest.mark.parametrize("unit", ["epochs", "steps"])
@pytest.mark.parametrize(("size", "amount"), [(7, 0), (0, 3)])
def test_no_work_and_no_samples_give_a_zero_upload(unit, size, amount):
    upload, info, _ = work(SLOPE, size, amount, SGD, unit, "steps")
    assert int(info.steps) == int(info.samples) == float(upload["x"]) == 0


def test_optimiser_state_is_fresh_in_every_round():
    """Momentum 0.9, rate 0.1, gradient 1, K = 2: 0.1 + 0.19 each time; carried on, 0.6149."""
    for key in (0, 1):
        upload, *_ = work(SLOPE, 1, 2, optax.sgd(0.1, momentum=0.9), key=key)
        assert float(upload["x"]) == pytest.approx(0.29, rel=1e-6)


@pytest.mark.parametrize("optimiser", [SGD, optax.adam(0.1)], ids=["sgd", "adam"])
def test_a_visit_is_a_plain_loop_over_its_batches(optimiser):
    """A client of 9 rows, batches of 8: the second has one row and seven masked copies."""
    upload, _, start = work(SOFTMAX, 9, 3, optimiser)
    source, model = minibatches.shuffle_seeds(jax.random.key(0)), start
    state, update = optimiser.init(model), jax.jit(optimiser.update)
    for k in range(6):
        positions, mask = epoch_batch(source, jnp.int32(k), jnp.int32(9), BATCH)
        rows = LISTS[SIZES.index(9)][np.asarray(positions)[np.asarray(mask)]]
        assert len(rows) == (8 if k % 2 == 0 else 1)
        x, y = (ARRAYS[name][rows] for name in "xy")
        gradient = softmax_gradient(jax.tree.map(np.float64, model), x, y)
        updates, state = update(jax.tree.map(np.float32, gradient), state, model)
        model = optax.apply_updates(model, updates)
    assert_trees_close(upload, jax.tree.map(jnp.subtract, start, model), 1e-4)


def test_bfloat16_models_upload_float32():
    task = problems.softmax_task(jnp.bfloat16)
    start, client = jax.eval_shape(task.init, jax.random.key(0)), client_of(DATA, 0)
    upload = jax.eval_shape(program(task), start, client, 1, jax.random.key(0)).upload
    assert {leaf.dtype for leaf in jax.tree.leaves(upload)} == {jnp.dtype(jnp.float32)}


def test_a_number_is_the_rate_of_plain_sgd():
    assert_trees_equal(work(SOFTMAX, 20, 2, 0.1), work(SOFTMAX, 20, 2, SGD))
