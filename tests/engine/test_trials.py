"""trials.py: a trial is the single run, wherever it runs and whatever its neighbours do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from problems import counting, federated, mesh_of, softmax_task

import ccfl_jax as ccfl

SIZES = (9, 4, 0, 13, 7, 5)
RATES = np.array([0.3, 0.01, 0.05, 0.1, 0.0], np.float32)
SEEDS = (3, 0, 7, 3, 1)


def round_at(task, rates, state, slots, data):
    server = ccfl.cc_fedams(rates["server_lr"], eps=rates["eps"])
    return ccfl.build_round(task, server, rates["local_lr"], 4)(state, slots, data)


def problem():
    """Five trials of unlike rates and seeds: rounds, states and schedules, and each one's own."""
    data, _, _ = federated(SIZES)
    task = softmax_task()
    rates = {"server_lr": RATES, "local_lr": RATES[::-1] + 0.1, "eps": RATES + 1e-3}
    round_fn = Partial(partial(round_at, task), rates)
    schedules = [ccfl.random_schedule(s, 7, len(SIZES), 3, 2, 1, 3) for s in SEEDS]
    keys = jax.vmap(jax.random.key)(jnp.array(SEEDS))
    states = jax.vmap(lambda key: ccfl.init_state(task, ccfl.cc_fedams(1.0), key, 3))(keys)
    return task, data, round_fn, states, schedules


def pick(tree, k):
    return jax.tree.map(lambda a: a[k], tree)


def assert_same(found, expected, tolerance=1e-6):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def alone():
    """Every trial as a run of its own."""
    _, data, round_fn, states, schedules = problem()
    return [
        ccfl.run_rounds(pick(round_fn, k), pick(states, k), schedules[k], data)
        for k in range(len(SEEDS))
    ]


@pytest.mark.parametrize(
    ("devices", "together"), [(None, None), (None, 2), (None, 5), (2, None), (4, 2)]
)
def test_a_trial_is_the_single_run(alone, devices, together):
    _, data, round_fn, states, schedules = problem()
    mesh = None if devices is None else mesh_of(devices)
    for first, last in ((0, 4), (4, 7)):
        pieces = [schedule.rounds(first, last) for schedule in schedules]
        states, infos = ccfl.run_trials(round_fn, states, pieces, data, mesh, together)
    for k, (state, info) in enumerate(alone):
        assert_same(pick(states, k), state)
        assert_same(pick(infos, k), jax.tree.map(lambda a: a[4:], info))


def test_one_schedule_serves_all_trials(alone):
    """Trials 0 and 3 share their seed."""
    _, data, round_fn, states, schedules = problem()
    two = np.array([0, 3])
    found, _ = ccfl.run_trials(pick(round_fn, two), pick(states, two), schedules[0], data)
    for place, k in enumerate(two):
        assert_same(pick(found, place), alone[k][0])


def test_clients_may_differ_between_trials():
    """Each trial has other owners of the same rows, as another seed's partition gives."""
    task, data, round_fn, states, schedules = problem()
    rows = np.random.default_rng(0).permuted(np.tile(data.indices, (5, 1)), axis=1)
    offsets = np.stack([np.asarray(data.offsets)] * 5)
    offsets[1] = np.linspace(0, offsets[0, -1], offsets.shape[1]).astype(np.int32)
    both = ccfl.FederatedData(data.arrays, jnp.asarray(rows), jnp.asarray(offsets))
    found, _ = ccfl.run_trials(round_fn, states, schedules, both)
    for k in (0, 1):
        own = ccfl.FederatedData(data.arrays, both.indices[k], both.offsets[k])
        one = ccfl.run_rounds(pick(round_fn, k), pick(states, k), schedules[k], own)[0]
        assert_same(pick(found, k), one)
    del task


@pytest.mark.parametrize("together", [1, 5])
def test_a_diverging_trial_touches_no_other(alone, together):
    _, data, round_fn, states, schedules = problem()
    (rates,) = round_fn.args
    rate = np.where(np.arange(5) == 2, np.nan, RATES).astype(np.float32)
    wild = Partial(round_fn.func, rates | {"server_lr": rate})
    found, _ = ccfl.run_trials(wild, states, schedules, data, together=together)
    for k, (state, _) in enumerate(alone):
        if k == 2:
            assert not all(np.isfinite(a[k]).all() for a in jax.tree.leaves(found.params))
        else:
            assert_same(pick(found, k), state)


@pytest.mark.parametrize("devices", [None, 2])
def test_rates_seeds_and_pieces_compile_once(devices):
    _, data, round_fn, states, schedules = problem()
    counted, traces = counting(round_fn.func)
    mesh, six = None if devices is None else mesh_of(devices), np.array([0, 1, 2, 3, 4, 4])
    schedules, states = [schedules[k] for k in six], pick(states, six)
    tracings = []
    for rates in (pick(round_fn.args[0], six), pick(round_fn.args[0], six[::-1])):
        at = states
        for first, last in ((0, 3), (3, 4), (4, 7)):
            pieces = [schedule.rounds(first, last) for schedule in schedules]
            at, _ = ccfl.run_trials(Partial(counted, rates), at, pieces, data, mesh)
            tracings.append(len(traces))
    assert tracings == [tracings[0]] * 6


def test_donated_states_leave_the_rates_alone(alone):
    _, data, round_fn, states, schedules = problem()
    for first, last in ((0, 4), (4, 7)):
        pieces = [schedule.rounds(first, last) for schedule in schedules]
        states, _ = ccfl.run_trials(round_fn, states, pieces, data, donate=True)
    for k, (state, _) in enumerate(alone):
        assert_same(pick(states, k), state)


@pytest.mark.parametrize(("devices", "together"), [(None, None), (None, 3), (4, None)])
def test_evaluation_of_trials_is_the_evaluation_of_each(devices, together):
    task, data, _, states, _ = problem()
    mesh = None if devices is None else mesh_of(devices)
    params = jax.tree.map(lambda a: a.at[3].set(jnp.nan), states.params)
    found = ccfl.evaluate_trials(task, params, data.arrays, 8, mesh, together)
    for k in range(len(SEEDS)):
        expected = ccfl.evaluate(task, pick(params, k), data.arrays, 8)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name][k], value, rtol=1e-6)
    assert np.isnan(found["loss"]).tolist() == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": 4}, "schedule: expected 5, found 4 trials"),
        ({"rates": 3}, "argument 0 of round_fn: expected 5, found 3 trials"),
        ({"lists": 2}, "data: expected 5, found 2 trials"),
        ({"length": 1}, "schedule: found rounds [1, 7]"),
        ({"round": 1}, "states: found rounds [0, 1]"),
        ({"stale": 1}, "history_length: found 3"),
    ],
)
def test_trials_that_do_not_fit_are_refused(change, message):
    _, data, round_fn, states, schedules = problem()
    if "schedule" in change:
        schedules = schedules[:4]
    if "rates" in change:
        round_fn = pick(round_fn, slice(3))
    if "lists" in change:
        data = ccfl.FederatedData(data.arrays, data.indices, jnp.stack([data.offsets] * 2))
    if "length" in change:
        schedules[1] = schedules[1].rounds(0, 1)
    if "round" in change:
        states = states._replace(round=states.round.at[1].set(1))
    if "stale" in change:
        schedules[4] = ccfl.random_schedule(0, 7, len(SIZES), 3, 6, 1, 3)
    with pytest.raises(ValueError, match=message.replace("[", r"\[").replace("]", r"\]")):
        ccfl.run_trials(round_fn, states, schedules, data)
