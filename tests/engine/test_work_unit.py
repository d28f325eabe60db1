"""A schedule says in which unit its work is; that holds, whatever way it comes to a round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import federated, make_schedule, softmax_task

import ccfl_jax as ccfl
from ccfl_jax.clock import availability, event_clock, speed

SIZES, BATCH = [9, 4, 7], 4
WORK = np.array([[1, 2], [3, 1], [2, 2], [1, 3]])
CLIENT = np.array([[0, 1], [2, 0], [1, 2], [0, 2]])
PER_EPOCH = -(-np.array(SIZES) // BATCH)
STEPS = {"steps": WORK, "epochs": WORK * PER_EPOCH[CLIENT], None: WORK * PER_EPOCH[CLIENT]}
TASK, SERVER = softmax_task(), ccfl.cc_fedsgd(1.0)
DATA = federated(SIZES)[0]


def schedule_in(unit):
    return make_schedule(CLIENT, work=WORK).replace(work_unit=unit)


def steps_of(*pieces, asked=None):
    """The local steps of every slot, `[rounds, slots]`."""
    simulation = ccfl.simulation(TASK, SERVER, 0.1, BATCH, work_unit=asked)
    state, found = simulation.init(jax.random.key(0), 2), []
    for piece, data in pieces:
        state, info = ccfl.run_rounds(simulation.round, state, piece, data)
        found.append(info.steps)
    return np.concatenate(found)


def saved(schedule, folder):
    schedule.save(folder / "a.npz")
    return ccfl.Schedule.load(folder / "a.npz")


WAYS = {
    "whole": lambda s, _: [(s, DATA)],
    "pieces": lambda s, _: [(s.rounds(0, 1), DATA), (s.rounds(1, 4), DATA)],
    "planned": lambda s, _: [(s.planned().rounds(0, 3), DATA), (s.planned().rounds(3, 4), DATA)],
    "file": lambda s, folder: [(saved(s, folder), DATA)],
    "stream": lambda s, _: ccfl.stream_rounds(s, DATA, 2000),
    "tree": lambda s, _: [(jax.tree.map(np.copy, s), DATA)],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("unit", STEPS)
def test_the_schedules_unit_decides(way, unit, tmp_path):
    np.testing.assert_array_equal(steps_of(*WAYS[way](schedule_in(unit), tmp_path)), STEPS[unit])


@pytest.mark.parametrize("asked", ["steps", "epochs"])
def test_a_schedule_without_a_unit_takes_the_rounds(asked):
    np.testing.assert_array_equal(steps_of((schedule_in(None), DATA), asked=asked), STEPS[asked])


@pytest.mark.parametrize(("asked", "unit"), [("steps", "epochs"), ("epochs", "steps")])
def test_another_unit_than_the_schedules_is_refused(asked, unit):
    with pytest.raises(ValueError, match=f"^work_unit: found '{asked}' with a schedule in {unit}"):
        steps_of((schedule_in(unit), DATA), asked=asked)
    assert steps_of((schedule_in(unit), DATA), asked=unit).any()


def trials_of(schedules, asked=None):
    def round_at(rate, *arguments):
        return ccfl.build_round(TASK, ccfl.cc_fedsgd(rate), 0.1, BATCH, asked)(*arguments)

    keys = jax.vmap(jax.random.key)(jnp.zeros(2, jnp.uint32))
    states = jax.vmap(lambda key: ccfl.init_state(TASK, SERVER, key))(keys)
    round_fn = jax.tree_util.Partial(round_at, jnp.ones(2))
    return ccfl.run_trials(round_fn, states, schedules, DATA)[1].steps


@pytest.mark.parametrize("unit", STEPS)
def test_trials_keep_it_too(unit):
    for schedules in (schedule_in(unit), [schedule_in(unit)] * 2):
        np.testing.assert_array_equal(trials_of(schedules), [STEPS[unit]] * 2)


def test_trials_in_other_units_are_refused():
    with pytest.raises(ValueError, match="^work_unit: found epochs, steps in the schedules, legal"):
        trials_of([schedule_in("steps"), schedule_in("epochs")])
    with pytest.raises(ValueError, match="^work_unit: found 'epochs' with a schedule in steps"):
        trials_of(schedule_in("steps"), "epochs")


@pytest.mark.parametrize("epochs", [False, True])
def test_the_clocks_schedules_are_trained_as_the_clock_counted(epochs):
    devices = speed.draw_devices(0, 3, speed.constant(1.0))
    work = event_clock.Work(2, 2, epoch_steps=PER_EPOCH if epochs else None)
    server = event_clock.Server(buffer_size=2, concurrency=2)
    made, log = ccfl.clock_schedule(0, 4, devices, availability.always(3), server, work)
    taken = made.work * (PER_EPOCH[made.client] if epochs else 1)
    state = ccfl.init_state(TASK, SERVER, jax.random.key(0), 8)
    steps = ccfl.run_rounds(ccfl.build_round(TASK, SERVER, 0.1, BATCH), state, made, DATA)[1].steps
    np.testing.assert_array_equal(steps, taken)
    # A step takes a second: what was trained is what the clock let pass.
    assert steps.sum() == (log.stop - log.start)[log.fate == event_clock.USED].sum()
