"""One contract for every server: ours and optax's. Any optax optimiser is a server optimiser."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import counting, federated, softmax_task

import ccfl_jax as ccfl

SERVERS = {
    "cc_fedavg": lambda: ccfl.cc_fedavg(),
    "cc_fedsgd": lambda: ccfl.cc_fedsgd(1.0),
    "cc_fedavgm": lambda: ccfl.cc_fedavgm(1.0),
    "cc_fedadagrad": lambda: ccfl.cc_fedadagrad(0.05),
    "cc_fedadam": lambda: ccfl.cc_fedadam(0.02),
    "cc_fedams": lambda: ccfl.cc_fedams(0.02),
    "sgd": lambda: optax.sgd(1.0),
    "adam": lambda: optax.adam(0.02),
    "yogi": lambda: optax.yogi(0.02),
    "amsgrad": lambda: optax.amsgrad(0.02),
    "adagrad": lambda: optax.adagrad(0.05),
    "rmsprop": lambda: optax.rmsprop(0.01),
    "radam": lambda: optax.radam(0.05),
    "adabelief": lambda: optax.adabelief(0.02),
    "lion": lambda: optax.lion(0.01),
    "adamw": lambda: optax.adamw(0.02, weight_decay=1e-3),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), ccfl.cc_fedams(0.02)),
    "schedule": lambda: ccfl.cc_fedams(optax.cosine_decay_schedule(0.02, 40)),
}
ROUNDS = 40


@pytest.fixture(scope="module")
def separable():
    """Clients whose labels a linear model can learn."""
    _, arrays, lists = federated([20, 8, 31, 16, 9, 25])
    truth = np.random.default_rng(1).normal(size=(6, 3))
    arrays["y"] = (arrays["x"] @ truth).argmax(1).astype(np.int32)
    return ccfl.FederatedData.from_indices(arrays, lists), arrays


@pytest.mark.parametrize("name", SERVERS)
def test_learns_keeps_its_structure_and_compiles_once(name, separable):
    data, arrays = separable
    task, server = softmax_task(), SERVERS[name]()
    round_fn = ccfl.build_round(task, server, optax.sgd(0.3), batch_size=8, normalise="none")
    counted, traces = counting(round_fn)
    state = ccfl.init_state(task, server, jax.random.key(0), history_length=3)
    before = ccfl.evaluate(task, state.params, arrays)
    shapes = jax.tree.map(lambda a: (a.shape, a.dtype), state)
    schedule = ccfl.random_schedule(0, ROUNDS, 6, 3, max_delay=2)
    state, _ = ccfl.run_rounds(counted, state, schedule.rounds(0, 5), data)
    compiled = len(traces)
    state, info = ccfl.run_rounds(counted, state, schedule.rounds(5, ROUNDS), data)
    assert len(traces) == compiled
    assert jax.tree.map(lambda a: (a.shape, a.dtype), state) == shapes
    after = ccfl.evaluate(task, state.params, arrays)
    assert after["loss"] < 0.8 * before["loss"]
    assert after["accuracy"] > before["accuracy"]
    assert (info.rejected == 0).all()


@pytest.mark.parametrize("name", SERVERS)
def test_makes_one_step_a_round_and_none_for_an_evaluation(name, separable):
    data, arrays = separable
    task, server = softmax_task(), SERVERS[name]()
    round_fn = ccfl.build_round(task, server, optax.sgd(0.3), batch_size=8)
    state = ccfl.init_state(task, server, jax.random.key(0), history_length=3)
    schedule = ccfl.random_schedule(0, 3, 6, 4, max_delay=2)
    for t in range(3):
        state, _ = ccfl.run_rounds(round_fn, state, schedule.rounds(t, t + 1), data)
        ccfl.evaluate(task, state.params, arrays)
    counts = [
        a
        for path, a in jax.tree_util.tree_leaves_with_path(state.server)
        if path and getattr(path[-1], "name", "") == "count"
    ]
    assert all(int(count) == 3 for count in counts)
    assert int(state.round) == 3


def test_a_server_schedule_goes_on_between_pieces(separable):
    """lr(c) = c + 1 over rounds run as 2 + 1: the third step has rate 3."""
    data, _ = separable
    task = ccfl.Task(
        init=lambda key: {"x": jnp.zeros(())},
        loss=lambda params, batch, mask, key: params["x"],
        metrics=lambda params, batch, mask: {},
    )
    server = ccfl.cc_fedsgd(lambda count: count + 1.0)
    round_fn = ccfl.build_round(task, server, optax.sgd(1.0), batch_size=8)
    state = ccfl.init_state(task, server, jax.random.key(0))
    schedule = ccfl.random_schedule(0, 3, 6, 2, max_delay=0)
    found = []
    for start, stop in ((0, 2), (2, 3)):
        state, _ = ccfl.run_rounds(round_fn, state, schedule.rounds(start, stop), data)
        found.append(float(state.params["x"]))
    assert found == [-3.0, -6.0]
