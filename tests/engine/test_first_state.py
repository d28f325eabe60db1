"""The state before round 0, of the task's model or of one's own."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from problems import assert_trees_equal, make_schedule
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.engine import run

VALUES = [np.random.default_rng(size).normal(size=size) for size in (6, 4, 9, 15)]
DATA = problems.values_of(*VALUES)
POINTS = ccfl.simulation(problems.points_task(), ccfl.cc_fedams(0.1), 0.1, batch_size=4)
STALE = ccfl.random_schedule(1, 12, 4, 3, max_delay=3)


def first(**more):
    return POINTS.init(jax.random.key(0), history_length=4, **more)


def test_a_warm_start_is_the_run_of_a_task_whose_model_starts_there():
    """And what is trained on from there is copied: the model given stays the caller's."""
    own = jax.tree.map(lambda a: a + 2, first().params)
    there = problems.points_task()._replace(init=lambda key: own)
    wanted = ccfl.simulation(there, ccfl.cc_fedams(0.1), 0.1, batch_size=4)
    state = wanted.init(jax.random.key(0), history_length=4)
    found = ccfl.run_rounds(POINTS.round, first(params=own), STALE, DATA, donate=True)
    assert_trees_equal(found, ccfl.run_rounds(wanted.round, state, STALE, DATA))
    assert_trees_equal(own, jax.tree.map(lambda a: a + 2, first().params))


@pytest.fixture(params=["by NumPy", "by a program"])
def compared(request, monkeypatch):
    """The two ways to compare parameters with the newest model of the history."""
    if request.param == "by a program":  # as where the arrays are on an accelerator
        monkeypatch.setattr(run, "_on_host", lambda array: False)


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("rounds", [0, 5])
def test_parameters_replaced_in_a_state_are_refused(rounds):
    """Clients would start from the history, which has the old ones."""
    state, _ = ccfl.run_rounds(POINTS.round, first(), STALE.rounds(0, rounds), DATA)
    other = state._replace(params=jax.tree.map(lambda a: a + 1e-3, state.params))
    rest = STALE.rounds(rounds, 12)
    message = "state: expected params that are the newest model of its history, found others (...)"
    refused(message, ccfl.run_rounds, POINTS.round, other, rest, DATA)
    trials = jax.tree.map(lambda *a: jnp.stack(a), state, other)
    at = jax.tree_util.Partial(lambda rate, *args: POINTS.round(*args), jnp.zeros(2))
    refused(message, ccfl.run_trials, at, trials, rest, DATA)
    ccfl.run_rounds(POINTS.round, state, rest, DATA)


@pytest.mark.usefixtures("compared")
def test_a_diverged_state_and_one_without_its_newest_model_go_on():
    """nan equals nan; a plan keeps no model that nobody reads."""
    lost = first(params=jax.tree.map(lambda a: a * np.nan, first().params))
    ccfl.run_rounds(POINTS.round, lost, STALE, DATA)
    plan = make_schedule([[0], [0], [1], [2]], [[0], [1], [2], [3]]).planned()
    assert plan.history_slots() == 1
    state = POINTS.init(jax.random.key(0), history_length=1)
    for t in range(4):
        state, _ = ccfl.run_rounds(POINTS.round, state, plan.rounds(t, t + 1), DATA)
    assert int(state.history.version[0]) == 0


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"x": jnp.zeros(2)}, "params: expected float32[] at ['x'], as the task has, found ...[2]"),
        ({"y": 0.0}, "params: expected float32[] at ['x'], as the task has, found nothing"),
        ({"x": 0.0, "y": 0.0}, "params: expected nothing at ['y'], as the task has, found ...[]"),
        ({"x": 1}, "params.x: expected floats, found int32"),
    ],
)
def test_a_model_of_another_form_is_refused(own, message):
    task = problems.quadratic_task()
    refused(message, ccfl.init_state, task, ccfl.cc_fedavg(), jax.random.key(0), params=own)


def test_parameters_on_a_cpu_are_compared_without_a_program(monkeypatch):
    monkeypatch.setattr(run, "_is_newest", None)
    ccfl.run_rounds(POINTS.round, first(), STALE, DATA)
