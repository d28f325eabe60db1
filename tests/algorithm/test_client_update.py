"""CC-Local for one client: counts, normalisation, padding, key discipline."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import drawn_batches, federated, slope_task, softmax_gradient, softmax_task

import ccfl_jax as ccfl
from ccfl_jax.algorithm import minibatches
from ccfl_jax.algorithm.client_update import Client, build_local

epoch_batch = jax.jit(minibatches.epoch_batch, static_argnums=3)


def client_of(data, i):
    begin, end = data.offsets[i], data.offsets[i + 1]
    return Client(data.arrays, data.indices, begin, end - begin)


def work(task, data, i, amount, optimiser=None, batch_size=32, key=0, start=None, **how):
    local = jax.jit(build_local(task, optimiser or optax.sgd(0.1), batch_size, **how))
    start = task.init(jax.random.key(9)) if start is None else start
    return local(start, client_of(data, i), jnp.int32(amount), jax.random.key(key)), start


@pytest.mark.parametrize(("size", "steps"), [(1, 1), (3, 1), (31, 1), (32, 1), (33, 2)])
def test_steps_of_one_epoch(size, steps):
    data, _, _ = federated([5, size])
    (_, info), _ = work(softmax_task(), data, 1, 1)
    assert int(info.steps) == steps
    assert int(info.samples) == size


def test_small_clients_step_is_the_mean_gradient_of_its_rows():
    """One client of 3 rows, batch 32, one epoch: one step of the full-batch gradient."""
    data, arrays, lists = federated([4, 3])
    (upload, info), start = work(softmax_task(), data, 1, 1)
    rows = lists[1]
    gradient = softmax_gradient(
        jax.tree.map(lambda a: np.asarray(a, np.float64), start),
        arrays["x"][rows],
        arrays["y"][rows],
    )
    for name in gradient:
        np.testing.assert_allclose(upload[name], 0.1 * gradient[name], rtol=1e-4, atol=1e-6)
    logits = arrays["x"][rows] @ np.asarray(start["w"]) + np.asarray(start["b"])
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(3), arrays["y"][rows]]
    assert float(info.loss) == pytest.approx(losses.mean(), rel=1e-5)
    accuracy = (logits.argmax(1) == arrays["y"][rows]).mean()
    assert float(info.metrics["accuracy"]) == pytest.approx(accuracy)


@pytest.mark.parametrize(
    ("unit", "normalise", "divisor"),
    [
        ("epochs", "steps", 6),  # 2 epochs of ceil(20 / 8) = 3 batches
        ("epochs", "epochs", 2),
        ("epochs", "none", 1),
        ("steps", "steps", 2),
        ("steps", "epochs", 2 * 8 / 20),
        ("steps", "none", 1),
    ],
)
def test_normalisation(unit, normalise, divisor):
    """Gradient 1 everywhere: K steps of rate 0.1 move 0.1 K."""
    data, _, _ = federated([20])
    (upload, info), _ = work(
        slope_task(), data, 0, 2, batch_size=8, work_unit=unit, normalise=normalise
    )
    assert int(info.steps) == (6 if unit == "epochs" else 2)
    assert float(upload["x"]) == pytest.approx(0.1 * int(info.steps) / divisor, rel=1e-6)


@pytest.mark.parametrize("unit", ["epochs", "steps"])
def test_no_work_and_no_samples_give_a_zero_upload(unit):
    data, _, _ = federated([5, 0])
    for client, amount in ((0, 0), (1, 3)):
        (upload, info), _ = work(softmax_task(), data, client, amount, work_unit=unit)
        assert int(info.steps) == 0 and int(info.samples) == 0
        assert all((leaf == 0).all() for leaf in jax.tree.leaves(upload))


def test_optimiser_state_is_fresh_in_every_round():
    """Momentum 0.9, rate 0.1, gradient 1, K = 2: 0.1 + 0.19 each time; carried on, 0.6149."""
    data, _, _ = federated([1])
    for key in (0, 1):
        (upload, _), _ = work(
            slope_task(), data, 0, 2, optax.sgd(0.1, momentum=0.9), key=key, normalise="none"
        )
        assert float(upload["x"]) == pytest.approx(0.29, rel=1e-6)


def visited_rows(data, key, work_amount, batch_size):
    """Rows in the order of visits, seen through a task that writes them into the model."""

    def loss(params, batch, mask, key):
        rows = jnp.where(mask, batch["row"], -1.0)
        # The gradient at entry `next` of the log is minus this batch: sgd(1) writes it down.
        place = jax.lax.stop_gradient(params["next"]).astype(jnp.int32)
        logged = jax.lax.dynamic_slice(params["log"], (place, 0), (1, batch_size))
        return -(logged * rows[None]).sum() - params["next"]

    task = ccfl.Task(
        lambda key: {"log": jnp.zeros((40, batch_size)), "next": jnp.zeros(())},
        loss,
        lambda params, batch, mask: {},
    )
    local = jax.jit(build_local(task, optax.sgd(1.0), batch_size, normalise="none"))
    upload, info = local(task.init(None), client_of(data, 0), jnp.int32(work_amount), key)
    log = -np.asarray(upload["log"])[: int(info.steps)]
    return [int(r) for r in log.ravel() if r >= 0]


def test_the_visits_are_fresh_permutations_of_the_clients_own_rows():
    rows = np.arange(30, dtype=np.float32)
    own = np.arange(5, 25)
    data = ccfl.FederatedData.from_indices({"row": rows}, [own])
    orders = []
    for key in (0, 1):
        visited = visited_rows(data, jax.random.key(key), 2, 7)
        assert visited == visited_rows(data, jax.random.key(key), 2, 7)
        orders += [tuple(visited[:20]), tuple(visited[20:])]
    assert all(sorted(order) == own.tolist() for order in orders)
    assert len(set(orders)) == 4


def test_padding_never_shows():
    """A client of 9 rows, batches of 8: the second has one row and seven masked copies."""
    data, arrays, lists = federated([9])
    (upload, _), start = work(softmax_task(), data, 0, 3, batch_size=8, normalise="none")
    source = minibatches.shuffle_seeds(jax.random.key(0))
    model = {name: np.asarray(a, np.float64) for name, a in start.items()}
    for k in range(6):
        positions, mask = epoch_batch(source, jnp.int32(k), jnp.int32(9), 8)
        rows = lists[0][np.asarray(positions)[np.asarray(mask)]]
        assert len(rows) == (8 if k % 2 == 0 else 1)
        gradient = softmax_gradient(model, arrays["x"][rows].astype(np.float64), arrays["y"][rows])
        model = {name: model[name] - 0.1 * gradient[name] for name in model}
    for name in model:
        np.testing.assert_allclose(start[name] - upload[name], model[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimiser", [optax.sgd(0.1), optax.adam(0.1)], ids=["sgd", "adam"])
def test_equal_work_equals_the_unmasked_loop(optimiser):
    """Sizes that fill their batches: the masked loop is a plain Python loop over them."""
    data, arrays, lists = federated([16, 16])
    task = softmax_task()
    (upload, _), start = work(task, data, 1, 2, optimiser, batch_size=8, normalise="none")
    params, state = start, optimiser.init(start)
    source = minibatches.shuffle_seeds(jax.random.key(0))
    for k in range(4):
        positions, _ = epoch_batch(source, jnp.int32(k), jnp.int32(16), 8)
        rows = lists[1][np.asarray(positions)]
        batch = {name: a[rows] for name, a in arrays.items()}
        gradient = jax.jit(jax.grad(task.loss))(params, batch, jnp.ones(8, bool), None)
        updates, state = optimiser.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    for name in start:
        np.testing.assert_allclose(start[name] - upload[name], params[name], rtol=1e-4, atol=1e-5)


def test_bfloat16_models_upload_float32():
    data, _, _ = federated([12], dtype=np.float32)
    task = softmax_task(jnp.bfloat16)
    (upload, _), _ = work(task, data, 0, 1, batch_size=4)
    assert {leaf.dtype for leaf in jax.tree.leaves(upload)} == {jnp.dtype(jnp.float32)}


def test_one_client_and_server_rate_one_is_plain_sgd():
    """m = 1, no delay, uploads not normalised: x_T is SGD over the same batches."""
    data, arrays, lists = federated([11])
    task, server = softmax_task(), ccfl.cc_fedavg()
    schedule = ccfl.random_schedule(0, 6, 1, buffer_size=1, max_delay=0)
    state = ccfl.init_state(task, server, jax.random.key(4))
    round_fn = ccfl.build_round(task, server, optax.sgd(0.1), 4, normalise="none")
    end, _ = ccfl.run_rounds(round_fn, state, schedule, data)
    model = {name: np.asarray(a, np.float64) for name, a in state.params.items()}
    for t in range(6):
        for positions in drawn_batches(state.key, t, 0, 0, 11, 4, schedule.work[t, 0]):
            rows = lists[0][positions]
            gradient = softmax_gradient(
                model, arrays["x"][rows].astype(np.float64), arrays["y"][rows]
            )
            model = {name: model[name] - 0.1 * gradient[name] for name in model}
    assert math.ceil(11 / 4) == 3
    for name in model:
        np.testing.assert_allclose(end.params[name], model[name], rtol=1e-4, atol=1e-5)


def test_a_number_is_the_rate_of_plain_sgd():
    data, _, _ = federated([20, 7])
    (plain, _), _ = work(softmax_task(), data, 0, 2, optax.sgd(0.3))
    (number, _), _ = work(softmax_task(), data, 0, 2, 0.3)
    for a, b in zip(jax.tree.leaves(number), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(a, b)
