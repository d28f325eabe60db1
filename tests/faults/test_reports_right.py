"""Faults that people reported for other tools (see the README): what was right, and stays so."""

import asyncio
import copy
import pickle  # noqa: S403, of our own objects

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import assert_trees_close, make_schedule, points_task, slope_task, values_of
from small_runs import restored

import ccfl_jax as ccfl
from ccfl_jax import clock, speed
from ccfl_jax.runs import checkpoints

pytestmark = pytest.mark.usefixtures("quickly_compiled")
KEY = jax.random.key(0)


def assert_same_bits(found, expected):
    def words(leaf):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    jax.tree.map(lambda a, b: np.testing.assert_array_equal(words(a), words(b)), found, expected)
    assert jax.tree.map(lambda a: a.dtype, found) == jax.tree.map(lambda a: a.dtype, expected)


def trained(task=None, rounds=2):
    """The state after some rounds of CC-FedAMS with momentum."""
    task = task or points_task()
    simulation = ccfl.simulation(task, ccfl.cc_fedams(0.1), 0.1, 1, "steps")
    data = values_of([1.0, 2.0], [3.0])
    schedule = make_schedule([[0, 1]] * 2).rounds(0, rounds)
    return ccfl.run_rounds(simulation.round, simulation.init(KEY), schedule, data)[0]


@pytest.mark.parametrize("server", [
    optax.masked(ccfl.cc_fedsgd(1.0), {"x": True, "y": False}),
    optax.multi_transform(
        {"moves": ccfl.cc_fedsgd(1.0), "stays": optax.set_to_zero()}, {"x": "moves", "y": "stays"}
    ),
])  # fmt: skip
def test_nf_32_masked_does_not_freeze_and_set_to_zero_does(server):
    """Slopes 1, rate 0.1: uploads 0.1; x goes down by it; y, left out by masked, goes up by it."""
    task = slope_task()._replace(
        init=lambda key: {"x": jnp.zeros(()), "y": jnp.zeros(())},
        loss=lambda params, *batch: params["x"] + params["y"],
    )
    simulation = ccfl.simulation(task, server, 0.1, 1, "steps", "none")
    data, schedule = values_of([0.0]), make_schedule([[0]])
    state, _ = ccfl.run_rounds(simulation.round, simulation.init(KEY), schedule, data)
    is_masked = not isinstance(simulation.init(KEY).server, optax.MultiTransformState)
    right = {"x": -0.1, "y": 0.1 if is_masked else 0.0}
    assert_trees_close({k: float(v) for k, v in state.params.items()}, right)


def test_nf_33_checkpoints_are_saved_and_restored_inside_a_running_event_loop(tmp_path):
    state = trained()

    async def inside():
        kept = checkpoints.open_checkpoints(tmp_path)
        checkpoints.save(kept, state)
        checkpoints.close(kept)
        return restored(tmp_path, trained(rounds=0))

    assert_same_bits(asyncio.run(inside()), state)


def test_nf_34_bfloat16_parameters_are_saved_and_restored_to_the_bit(tmp_path):
    task = points_task()
    short = task._replace(init=lambda key: jax.tree.map(jnp.bfloat16, task.init(key)))
    state = trained(short)
    assert state.params["x"].dtype == jnp.bfloat16
    kept = checkpoints.open_checkpoints(tmp_path)
    checkpoints.save(kept, state)
    checkpoints.close(kept)
    assert_same_bits(restored(tmp_path, trained(short, rounds=0)), state)


def test_nf_35_a_state_with_its_typed_key_can_be_copied():
    state = trained()
    assert_same_bits(copy.deepcopy(state), state)
    assert_same_bits(pickle.loads(pickle.dumps(state)), state)  # noqa: S301


def test_nf_36_no_alarm_where_a_nan_is_meant():
    """The loss of an absent slot, and of a client without samples, is 0/0 inside the round."""
    data = ccfl.FederatedData.from_indices({"v": np.ones(2, np.float32)}, [[0, 1], []])
    schedule = make_schedule([[0, 1], [0, 0]], present=[[True, True], [False, True]])
    simulation = ccfl.simulation(points_task(), ccfl.cc_fedams(0.1), 0.1, 1, "steps")
    with jax.debug_nans(True):
        _, info = ccfl.run_rounds(simulation.round, simulation.init(KEY), schedule, data)
    assert info.participants.tolist() == [1, 1] and np.isfinite(info.train_loss).all()


def test_nf_37_a_clock_ends_where_clients_seldom_check_in():
    """Two clients, 10 ms a day, tasks of no time: both come in each window, a round a day."""
    devices = speed.Devices(*(np.full(2, s) for s in (0.0, 0.02, 0.0)), None, None)
    seldom = ccfl.availability.cyclic(2, 86_400.0, 0.01)
    server = clock.Server(buffer_size=2, concurrency=2)
    work = clock.Work(local_work=1, randomness=1)
    schedule, _ = ccfl.clock_schedule(0, 10, devices, seldom, server, work)
    assert schedule.present.all()
    np.testing.assert_allclose(np.diff(schedule.time), 86_400.0, atol=0.02)
