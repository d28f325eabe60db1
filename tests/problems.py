"""What several tests share: small problems in JAX and in NumPy, comparisons."""

import math
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ccfl_jax as ccfl
from ccfl_jax import Schedule
from ccfl_jax.algorithm import minibatches
from experiments.corpora.stackoverflow_files import Example, write

FEATURES, CLASSES = 6, 3


def task_of(init, rows):
    """The task whose metrics are means of `rows(params, batch)`, of which the first is the loss."""

    def metrics(params, batch, mask):
        found = rows(params, batch).items()
        return {name: (jnp.where(mask, each, 0).sum(), mask.sum()) for name, each in found}

    def loss(params, batch, mask, key):
        total, count = next(iter(metrics(params, batch, mask).values()))
        return total / count

    return ccfl.Task(init, loss, metrics)


def softmax_task(dtype=jnp.float32):
    """Softmax regression with parameters w `[FEATURES, CLASSES]` and b `[CLASSES]`."""

    def init(key):
        w = jax.random.normal(key, (FEATURES, CLASSES), dtype)
        return {"w": w, "b": jnp.zeros(CLASSES, dtype)}

    def rows(params, batch):
        logits = batch["x"] @ params["w"] + params["b"][None]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        return {"loss": losses, "accuracy": logits.argmax(-1) == batch["y"]}

    return task_of(init, rows)


def softmax_gradient(model, x, y):
    """NumPy: gradient of the mean softmax cross-entropy over the rows."""
    logits = x @ model["w"] + model["b"]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return {"w": x.T @ p / len(y), "b": p.mean(axis=0)}


def federated(sizes, seed=0, dtype=np.float32):
    """Clients of the given sizes with rows scattered over the arrays; also the index lists."""
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    x = rng.normal(size=(total, FEATURES)).astype(dtype)
    arrays = {"x": x, "y": rng.integers(0, CLASSES, total).astype(np.int32)}
    lists = np.split(rng.permutation(total), np.cumsum(sizes)[:-1])
    return ccfl.FederatedData.from_indices(arrays, lists), arrays, lists


def quadratic_task():
    """f(x) = x^2 / 2 for a scalar x that starts at 1; the data do not matter."""
    return slope_task()._replace(
        init=lambda key: {"x": jnp.ones(())}, loss=lambda params, *batch: params["x"] ** 2 / 2
    )


def slope_task():
    """Constant gradient 1 for a scalar x that starts at 0; the data do not matter."""
    return ccfl.Task(
        lambda key: {"x": jnp.zeros(())}, lambda params, *batch: params["x"], lambda *batch: {}
    )


def one_row_data(clients=1):
    """`clients` clients with one sample each."""
    return values_of(*[[0.0]] * clients)


def values_of(*clients):
    """Each client's rows hold its numbers."""
    lists = np.split(np.arange(sum(map(len, clients))), np.cumsum([len(c) for c in clients])[:-1])
    return ccfl.FederatedData.from_indices({"v": np.concatenate(clients).astype(np.float32)}, lists)


def points_task():
    """loss = mean of (x - v)^2 / 2 over a batch's values v, x drawn: the slope is x - mean(v)."""

    def rows(params, batch):
        return {"loss": (params["x"] - batch["v"]) ** 2 / 2}

    return task_of(lambda key: {"x": jax.random.normal(key)}, rows)


def side_by_side(task, servers):
    """A task and a server that train an independent copy of `task` under each of `servers`.

    Parameters are {name: those of its copy}; so one program runs all methods.
    """

    def init(key):
        return {name: task.init(jax.random.fold_in(key, k)) for k, name in enumerate(servers)}

    def loss(params, *batch):
        return sum(task.loss(params[name], *batch) for name in servers)

    def metrics(params, *batch):
        return {name: task.metrics(params[name], *batch)["loss"] for name in servers}

    labels = {name: name for name in servers}
    return ccfl.Task(init, loss, metrics), optax.multi_transform(servers, labels)


def make_schedule(client, staleness=0, work=1, present=True):
    """A schedule from nested lists; scalars fill every slot."""
    client = np.asarray(client, np.int32)

    def full(value, dtype):
        return np.broadcast_to(np.asarray(value, dtype), client.shape).copy()

    return Schedule(client, full(staleness, np.int32), full(work, np.int32), full(present, bool))


def mesh_of(devices):
    """So many of the host devices, in one axis."""
    return jax.make_mesh((devices,), ("clients",), devices=jax.devices()[:devices])


def counting(round_fn):
    """`round_fn`, and a list that grows by one whenever it is traced."""
    traces = []

    def counted(*arguments):
        traces.append(1)
        return round_fn(*arguments)

    return counted, traces


def run_pieces(round_fn, state, pieces):
    """The states before the first of the pieces (schedule, data) and after each; all the infos."""
    states, infos = [state], []
    for piece, data in pieces:
        state, info = ccfl.run_rounds(round_fn, states[-1], piece, data)
        states.append(state)
        infos.append(info)
    return states, jax.tree.map(lambda *a: np.concatenate(a), *infos)


def cut(schedule, ends, data):
    """The pieces of a schedule between these rounds."""
    return [(schedule.rounds(start, stop), data) for start, stop in pairwise(ends)]


def drawn_batches(state_key, t, client, visit, size, batch_size, work, unit="epochs"):
    """The row positions of one visit, batch by batch, as the engine promises to draw them."""
    steps = int(work) * (math.ceil(size / batch_size) if unit == "epochs" else 1)
    place = jnp.array([t, client, visit], jnp.int32)
    drawn = _draw(state_key, place, jnp.int32(size), batch_size, unit, steps + -steps % 64)
    positions, mask = map(np.asarray, drawn)
    return [positions[k][mask[k]] for k in range(steps)]


@partial(jax.jit, static_argnums=(3, 4, 5))
def _draw(key, place, size, batch_size, unit, steps):
    for k in range(3):
        key = jax.random.fold_in(key, place[k])
    draw = minibatches.epoch_batch if unit == "epochs" else minibatches.random_batch
    source = minibatches.shuffle_seeds(key) if unit == "epochs" else jax.random.fold_in(key, 0)
    return jax.vmap(lambda k: draw(source, k, size, batch_size))(jnp.arange(steps, dtype=jnp.int32))


def small_corpus(folder, seed=0):
    """A small corpus in the format of the Stack Overflow release, and what is read of it."""
    words = [f"w{k}" for k in range(6)]
    examples = [
        Example(split, client, words[k:], words[: k + 3], [f"t{(client + k) % 3}"])
        for split in ("train", "test") for client in range(1, 9) for k in range(3)
    ]  # fmt: skip
    write(folder, examples)
    limits = {"vocabulary": 5, "num_tags": 3, "cache_dir": folder / "cache", "max_test": 5}
    return ccfl.load_stackoverflow(folder, 4, seed, **limits)


def assert_trees_close(found, expected, tolerance=1e-6):
    """Equal structures, and leaves within `tolerance`, relative or absolute."""
    for a, b in zip(_leaves(found), _leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def assert_trees_equal(found, expected):
    """Equal structures, dtypes and values."""
    for a, b in zip(_leaves(found), _leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def _leaves(tree):
    def numbers(leaf):
        is_key = jnp.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    leaves = jax.tree.leaves(tree)
    assert leaves
    return map(numbers, leaves)
