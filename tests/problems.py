"""Small problems that several tests share: softmax regression in JAX and in NumPy, quadratics."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ccfl_jax as ccfl
from ccfl_jax import Schedule
from ccfl_jax.algorithm import minibatches
from experiments.corpora.stackoverflow_files import Example, write

FEATURES, CLASSES = 6, 3


def softmax_task(dtype=jnp.float32):
    """Softmax regression with parameters w `[FEATURES, CLASSES]` and b `[CLASSES]`."""

    def init(key):
        return {
            "w": jax.random.normal(key, (FEATURES, CLASSES), dtype),
            "b": jnp.zeros(CLASSES, dtype),
        }

    def losses(params, batch):
        logits = batch["x"] @ params["w"] + params["b"][None]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]), logits

    def loss(params, batch, mask, key):
        del key
        return jnp.where(mask, losses(params, batch)[0], 0).sum() / mask.sum()

    def metrics(params, batch, mask):
        each, logits = losses(params, batch)
        hits = logits.argmax(-1) == batch["y"]
        return {
            "loss": (jnp.where(mask, each, 0).sum(), mask.sum()),
            "accuracy": (jnp.where(mask, hits, 0).sum(), mask.sum()),
        }

    return ccfl.Task(init, loss, metrics)


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
    arrays = {
        "x": rng.normal(size=(total, FEATURES)).astype(dtype),
        "y": rng.integers(0, CLASSES, total).astype(np.int32),
    }
    lists = np.split(rng.permutation(total), np.cumsum(sizes)[:-1])
    return ccfl.FederatedData.from_indices(arrays, lists), arrays, lists


def quadratic_task():
    """f(x) = x^2 / 2 for a scalar x that starts at 1; the data do not matter."""
    return ccfl.Task(
        init=lambda key: {"x": jnp.ones(())},
        loss=lambda params, batch, mask, key: params["x"] ** 2 / 2,
        metrics=lambda params, batch, mask: {},
    )


def slope_task():
    """Constant gradient 1 for a scalar x that starts at 0."""
    return ccfl.Task(
        init=lambda key: {"x": jnp.zeros(())},
        loss=lambda params, batch, mask, key: params["x"],
        metrics=lambda params, batch, mask: {},
    )


def one_row_data(clients=1):
    """`clients` clients with one sample each."""
    return ccfl.FederatedData.from_indices(
        {"x": np.zeros((clients, 1), np.float32)}, [np.array([i]) for i in range(clients)]
    )


def values_task():
    """loss = x * mean of the batch's values, x from 0: the gradient is that mean."""

    def loss(params, batch, mask, key):
        return params["x"] * jnp.where(mask, batch["v"], 0.0).sum() / mask.sum()

    return ccfl.Task(lambda key: {"x": jnp.zeros(())}, loss, lambda params, batch, mask: {})


def values_of(*clients):
    """Each client's rows hold its numbers."""
    lists = np.split(np.arange(sum(map(len, clients))), np.cumsum([len(c) for c in clients])[:-1])
    return ccfl.FederatedData.from_indices({"v": np.concatenate(clients).astype(np.float32)}, lists)


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


def drawn_batches(state_key, t, client, visit, size, batch_size, work, unit="epochs"):
    """The row positions of one visit, batch by batch, as the engine promises to draw them."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(state_key, t), client), visit)
    draw = minibatches.epoch_batch if unit == "epochs" else minibatches.random_batch
    source = minibatches.shuffle_seeds(key) if unit == "epochs" else jax.random.fold_in(key, 0)
    steps = work * math.ceil(size / batch_size) if unit == "epochs" else work
    draw = jax.jit(draw, static_argnums=3)
    lists = []
    for k in range(steps):
        positions, mask = draw(source, jnp.int32(k), jnp.int32(size), batch_size)
        lists.append(np.asarray(positions)[np.asarray(mask)])
    return lists


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
