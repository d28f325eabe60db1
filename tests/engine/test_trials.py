"""Trials: each is the single run, wherever it runs and whatever its neighbours do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from problems import assert_trees_close, counting, mesh_of, points_task, values_of
from refusal import refused

import ccfl_jax as ccfl

SIZES = (9, 4, 0, 13, 7, 5)
SEEDS = (3, 0, 7, 3, 1)
RATES = np.array([0.3, 0.01, 0.05, 0.1, 0.0], np.float32)
NUMBERS = {"server_lr": RATES, "local_lr": RATES[::-1] + 0.1, "eps": RATES + 1e-3}
DATA = values_of(*(np.random.default_rng(size).normal(size=size) for size in SIZES))
SCHEDULES = [ccfl.random_schedule(s, 7, len(SIZES), 3, 2, 1, 3) for s in SEEDS]
TASK = points_task()


def round_at(rates, state, slots, data):
    server = ccfl.cc_fedams(rates["server_lr"], eps=rates["eps"])
    return ccfl.build_round(TASK, server, rates["local_lr"], 4)(state, slots, data)


def first_states():
    keys = jax.vmap(jax.random.key)(jnp.array(SEEDS))
    return jax.vmap(lambda key: ccfl.init_state(TASK, ccfl.cc_fedams(1.0), key, 3))(keys)


def pick(tree, k):
    return jax.tree.map(lambda a: a[k], tree)


def alone(k, schedule, data=DATA):
    """Trial k as a run of its own."""
    round_fn, state = Partial(round_at, pick(NUMBERS, k)), pick(first_states(), k)
    return ccfl.run_rounds(round_fn, state, schedule, data)


@pytest.fixture(scope="module")
def singles():
    return [alone(k, schedule) for k, schedule in enumerate(SCHEDULES)]


@pytest.mark.parametrize(
    ("devices", "together", "donate"),
    [(None, None, False), pytest.param(None, 2, False, marks=pytest.mark.slow), (4, 2, True)],
)
def test_a_trial_is_the_single_run(singles, devices, together, donate):
    """In two pieces; other rates, seeds and pieces compile nothing."""
    how, compiled = (devices and mesh_of(devices), together, donate), []
    round_fn, traces = counting(round_at)
    for order in (np.arange(5), np.arange(5)[::-1]):
        states, trial = pick(first_states(), order), Partial(round_fn, pick(NUMBERS, order))
        for piece in ((0, 4), (4, 7)):
            schedules = [SCHEDULES[k].rounds(*piece) for k in order]
            states, infos = ccfl.run_trials(trial, states, schedules, DATA, *how)
            compiled.append(len(traces))
        for place, k in enumerate(order):
            state, info = singles[k]
            assert_trees_close(pick((states, infos), place), (state, pick(info, slice(4, None))))
    assert compiled == compiled[:1] * 4


def test_one_schedule_may_serve_all_trials_and_clients_may_differ():
    """Each trial has other owners of the same rows, as another seed's partition gives."""
    rows = np.random.default_rng(0).permuted(np.tile(DATA.indices, (5, 1)), axis=1)
    offsets = np.stack([np.asarray(DATA.offsets)] * 5)
    offsets[1] = np.linspace(0, offsets[0, -1], offsets.shape[1]).astype(np.int32)
    data = ccfl.FederatedData(DATA.arrays, jnp.asarray(rows), jnp.asarray(offsets))
    found, _ = ccfl.run_trials(Partial(round_at, NUMBERS), first_states(), SCHEDULES[0], data)
    for k in (0, 1, 3):
        own = ccfl.FederatedData(data.arrays, data.indices[k], data.offsets[k])
        assert_trees_close(pick(found, k), alone(k, SCHEDULES[0], own)[0])


@pytest.mark.parametrize(("devices", "of_many"), [(4, False), (4, True), (3, False), (None, False)])
def test_trials_that_do_not_fill_the_devices_take_no_further_steps(singles, devices, of_many):
    """Five trials on four devices are eight places; `of_many`: with states for all of these."""
    calls, each = [], []

    def counted(rates, state, slots, data):
        state, info = round_at(rates, state, slots, data)
        jax.debug.callback(lambda steps: calls.append(int(steps.sum())), info.steps)
        return state, info

    mesh, states = devices and mesh_of(devices), first_states()
    if of_many:
        states = pick(states, np.array([0, 1, 2, 3, 4, 4, 4, 4]))
    for piece in ((0, 4), (4, 7)):
        schedules = [one.rounds(*piece) for one in SCHEDULES]
        states, infos = ccfl.run_trials(Partial(counted, NUMBERS), states, schedules, DATA, mesh)
        each.append(infos)
    jax.effects_barrier()
    assert len(calls) == 5 * 7 and sum(calls) == sum(info.steps.sum() for _, info in singles)
    assert len(states.round) == (8 if of_many else 5) and len(each[0].steps) == 5
    for k, (state, info) in enumerate(singles):
        assert_trees_close(pick((states, each[1]), k), (state, pick(info, slice(4, None))))
    if of_many:  # these have not moved
        assert states.round.tolist() == [7] * 5 + [0] * 3


@pytest.mark.parametrize("together", [1, 2])
def test_a_diverging_trial_touches_no_other(singles, together):
    rate = np.where(np.arange(5) == 2, np.nan, RATES).astype(np.float32)
    wild = Partial(round_at, NUMBERS | {"server_lr": rate})
    found, _ = ccfl.run_trials(wild, first_states(), SCHEDULES, DATA, together=together)
    assert np.isnan(found.params["x"]).tolist() == [False, False, True, False, False]
    for k in (0, 1, 3, 4):
        assert_trees_close(pick(found, k), singles[k][0])


@pytest.mark.parametrize(("devices", "together"), [(None, None), (None, 3), (4, None)])
def test_evaluation_of_trials_is_the_evaluation_of_each(devices, together):
    mesh = devices and mesh_of(devices)
    params = jax.tree.map(lambda a: a.at[3].set(jnp.nan), first_states().params)
    found = ccfl.evaluate_trials(TASK, params, DATA.arrays, 8, mesh, together)
    each = [ccfl.evaluate(TASK, pick(params, k), DATA.arrays, 8) for k in range(5)]
    assert_trees_close(found, {"loss": np.array([one["loss"] for one in each])})
    assert np.isnan(found["loss"]).tolist() == [False, False, False, True, False]


STATES = first_states()
LISTS = ccfl.FederatedData(DATA.arrays, DATA.indices, jnp.stack([DATA.offsets] * 2))
STALE = ccfl.random_schedule(0, 7, len(SIZES), 3, 6, 1, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": SCHEDULES[:4]}, "schedule: expected 5 trials, as in states, found 4"),
        ({"round_fn": Partial(round_at, pick(NUMBERS, slice(3)))},
         "argument 0 of round_fn: expected 5 trials, as in states, found 3"),
        ({"data": LISTS}, "data: expected 5 trials, as in states, found 2"),
        ({"schedule": [SCHEDULES[0].rounds(0, 1), *SCHEDULES[1:]]},
         "schedule: expected the same number of rounds in each trial, found [1, 7]"),
        ({"states": STATES._replace(round=STATES.round.at[1].set(1))},
         "states: expected the same number of rounds in each trial, found [0, 1]"),
        ({"schedule": [*SCHEDULES[:4], STALE]}, "history_length: expected at least ..., found 3"),
    ],
)  # fmt: skip
def test_trials_that_do_not_fit_are_refused(changes, message):
    usual = {"round_fn": Partial(round_at, NUMBERS), "states": STATES, "schedule": SCHEDULES}
    refused(message, ccfl.run_trials, **{**usual, "data": DATA, **changes})
