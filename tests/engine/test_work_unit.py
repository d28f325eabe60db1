"""A schedule says in which unit its work is; that holds, whatever way it comes to a round."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import make_schedule, run_pieces, slope_task, values_of
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.clock import availability, event_clock, speed

SIZES, BATCH = [9, 4, 7], 4
WORK = np.array([[1, 2], [3, 1], [2, 2], [1, 3]])
CLIENT = np.array([[0, 1], [2, 0], [1, 2], [0, 2]])
PER_EPOCH = -(-np.array(SIZES) // BATCH)
STEPS = {"steps": WORK, "epochs": WORK * PER_EPOCH[CLIENT]}
TASK, SERVER = slope_task(), ccfl.cc_fedsgd(1.0)
DATA = values_of(*(np.zeros(size) for size in SIZES))


def schedule_in(unit):
    return make_schedule(CLIENT, work=WORK).replace(work_unit=unit)


@cache
def round_in(unit):
    return ccfl.build_round(TASK, SERVER, 0.1, BATCH, unit)


def steps_of(*pieces, unit=None):
    """The local steps of every slot, `[rounds, slots]`."""
    state = ccfl.init_state(TASK, SERVER, jax.random.key(0), 8)
    return run_pieces(round_in(unit), state, pieces)[1].steps


def saved(schedule, folder):
    schedule.save(folder / "a.npz")
    return ccfl.Schedule.load(folder / "a.npz")


WAYS = {
    "pieces": lambda s, _: [(s.rounds(0, 1), DATA), (s.rounds(1, 4), DATA)],
    "planned": lambda s, _: [(s.planned().rounds(0, 3), DATA), (s.planned().rounds(3, 4), DATA)],
    "file": lambda s, folder: [(saved(s, folder), DATA)],
    "stream": lambda s, _: ccfl.stream_rounds(s, DATA, 2000),
    "tree": lambda s, _: [(jax.tree.map(np.copy, s), DATA)],
}


@pytest.mark.parametrize("way", WAYS)
def test_the_schedules_unit_decides(way, tmp_path):
    """Steps, which are not the default: a unit that got lost would be epochs."""
    np.testing.assert_array_equal(steps_of(*WAYS[way](schedule_in("steps"), tmp_path)), WORK)


@pytest.mark.parametrize(
    ("own", "of_round"),
    [(None, None), ("epochs", None), (None, "steps"), (None, "epochs"), ("steps", "steps")],
)
def test_the_unit_is_the_schedules_else_the_rounds_else_epochs(own, of_round):
    found = steps_of((schedule_in(own), DATA), unit=of_round)
    np.testing.assert_array_equal(found, STEPS[own or of_round or "epochs"])


@pytest.mark.parametrize(("of_round", "own"), [("steps", "epochs"), ("epochs", "steps")])
def test_another_unit_than_the_schedules_is_refused(of_round, own):
    message = f"work_unit: expected '{own}', as in the schedule, or None, found '{of_round}'"
    refused(message, steps_of, (schedule_in(own), DATA), unit=of_round)


def trials_of(schedules, unit=None):
    def round_at(rate, *arguments):
        return ccfl.build_round(TASK, ccfl.cc_fedsgd(rate), 0.1, BATCH, unit)(*arguments)

    keys = jax.vmap(jax.random.key)(jnp.zeros(2, jnp.uint32))
    states = jax.vmap(lambda key: ccfl.init_state(TASK, SERVER, key))(keys)
    round_fn = jax.tree_util.Partial(round_at, jnp.ones(2))
    return ccfl.run_trials(round_fn, states, schedules, DATA)[1].steps


def test_trials_keep_it_too():
    steps, epochs = schedule_in("steps"), schedule_in("epochs")
    for schedules in (steps, [steps, steps]):
        np.testing.assert_array_equal(trials_of(schedules), [WORK] * 2)
    message = "work_unit: expected the same in each trial, found epochs, steps"
    refused(message, trials_of, [steps, epochs])
    message = "work_unit: expected 'steps', as in the schedule, or None, found 'epochs'"
    refused(message, trials_of, steps, "epochs")


@pytest.mark.parametrize("epochs", [False, True])
def test_the_clocks_schedules_are_trained_as_the_clock_counted(epochs):
    devices = speed.draw_devices(0, 3, speed.constant(1.0))
    work = event_clock.Work(2, 2, epoch_steps=PER_EPOCH if epochs else None)
    server = event_clock.Server(buffer_size=2, concurrency=2)
    made, log = ccfl.clock_schedule(0, 4, devices, availability.always(3), server, work)
    steps = steps_of((made, DATA))
    np.testing.assert_array_equal(steps, made.work * (PER_EPOCH[made.client] if epochs else 1))
    # A step takes a second: what was trained is what the clock let pass.
    assert steps.sum() == (log.stop - log.start)[log.fate == event_clock.USED].sum()
