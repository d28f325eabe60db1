"""Clients of a round spread over devices: the one-device result, whatever the numbers of both."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from problems import counting, federated, mesh_of, softmax_task

import ccfl_jax as ccfl

SIZES = [6, 4, 9, 15, 3, 31, 8, 1, 12, 5]


def run(slots, devices=None, lanes=None, server=None, pieces=((0, 8),)):
    data, _, _ = federated(SIZES)
    task, server = softmax_task(), server or ccfl.cc_fedams(0.1)
    mesh = devices and mesh_of(devices)
    round_fn = ccfl.build_round(task, server, optax.sgd(0.1), 4, lanes=lanes, mesh=mesh)
    state = ccfl.init_state(task, server, jax.random.key(0), history_length=4)
    if mesh:
        data, state = jax.device_put((data, state), NamedSharding(mesh, P()))
    schedule = ccfl.random_schedule(2, 8, len(SIZES), slots, max_delay=3)
    present = np.random.default_rng(0).random(schedule.present.shape) < 0.8
    schedule = schedule._replace(present=present)
    counted, traces = counting(round_fn)
    infos, counts = [], []
    for start, stop in pieces:
        state, info = ccfl.run_rounds(counted, state, schedule.rounds(start, stop), data)
        infos.append(info)
        counts.append(len(traces))
    return state, jax.tree.map(lambda *a: np.concatenate(a), *infos), counts


def assert_same(a, b):
    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("slots", "devices", "lanes"),
    [(10, 4, 1), (10, 4, 2), (10, 2, 10), (3, 4, 1), (3, 4, 2), (1, 2, 1), (4, 1, 1)],
)
def test_any_clients_on_any_devices(slots, devices, lanes):
    alone, alone_info, _ = run(slots)
    spread, info, _ = run(slots, devices, lanes)
    assert_same(alone.params, spread.params)
    assert_same(alone.server, spread.server)
    assert_same(alone_info, info)


def test_spread_rounds_compile_once():
    _, _, counts = run(5, 2, pieces=((0, 3), (3, 4), (4, 8)))
    assert counts[0] == counts[-1]


def test_initial_model_and_orders_do_not_depend_on_the_devices():
    states = [run(4, devices, pieces=((0, 1),))[0] for devices in (None, 2, 4)]
    for state in states[1:]:
        first = jax.tree.map(lambda a: a[0], state.history.models)
        np.testing.assert_array_equal(first["w"], states[0].history.models["w"][0])
        np.testing.assert_array_equal(
            jax.random.key_data(state.key), jax.random.key_data(states[0].key)
        )


def test_trials_spread_over_devices_are_the_same_runs():
    """Eight rates on four devices, two of them one after another on each."""
    data, _, _ = federated(SIZES)
    task, rates = softmax_task(), np.linspace(0, 0.7, 8, dtype=np.float32)
    schedule = ccfl.random_schedule(2, 4, len(SIZES), 3, max_delay=0)
    slots = jax.tree.map(jnp.asarray, schedule)

    def trial(rate):
        round_fn = ccfl.build_round(task, ccfl.cc_fedams(rate), 0.1, 4)
        state = ccfl.init_state(task, ccfl.cc_fedams(rate), jax.random.key(0))
        return jax.lax.scan(lambda s, row: round_fn(s, row, data), state, slots)[0].params

    mesh, axis = mesh_of(4), P("clients")
    spread = jax.shard_map(
        lambda own: jax.lax.map(trial, own),
        mesh=mesh, in_specs=axis, out_specs=axis, check_vma=False,
    )  # fmt: skip
    found = jax.jit(spread)(jax.device_put(rates, NamedSharding(mesh, axis)))
    alone = jax.jit(trial)
    for k, rate in enumerate(rates):
        assert_same(jax.tree.map(lambda a, k=k: np.asarray(a)[k], found), alone(rate))
