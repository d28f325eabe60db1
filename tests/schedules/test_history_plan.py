"""History sized by use: a plan is right, has the fewest slots, and gives the ring's run."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.tree_util import Partial
from problems import make_schedule
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.engine.run import check_schedule

SIZES = (6, 4, 9, 15)
ROUNDS, SLOTS = 14, 3


def drawn(seed, rounds=ROUNDS, tail=1.0, away=0.3):
    """Staleness with a Pareto tail, absent slots, slots without work, a client in two slots."""
    rng = np.random.default_rng([seed, 1])
    shape, oldest = (rounds, SLOTS), np.arange(rounds)[:, None]
    present = rng.random(shape) >= away
    late = np.minimum(rng.pareto(tail, shape), oldest).astype(np.int64)
    late[~present] = rng.integers(0, 1000)  # of no meaning
    client, work = rng.integers(0, len(SIZES), shape), rng.integers(0, 3, shape)
    return make_schedule(client, late, work, present)


tails, shares_away = st.sampled_from([0.2, 0.7, 1.5, 5.0]), st.sampled_from([0.0, 0.3, 0.9])
schedules = st.builds(drawn, st.integers(0, 2**32 - 1), st.integers(0, 40), tails, shares_away)


def starts(schedule):
    """(t, slot, version) of everyone who starts from a model, in order."""
    for t, slot in np.argwhere(schedule.present & (schedule.work > 0)).tolist():
        yield t, slot, t - int(schedule.staleness[t, slot])


def live_at_once(schedule):
    """For each t, the versions that exist and are read in t or later; their largest number."""
    reads = [(t, version) for t, _, version in starts(schedule)]
    rounds = range(schedule.num_rounds)
    return max([1, *(len({v for t, v in reads if v <= now <= t}) for now in rounds)])


@given(schedules)
def test_every_read_finds_its_version_in_as_few_slots_as_can_be(schedule):
    """A twin whose slots hold version numbers: None before the first, x_0 in slot 0."""
    planned, slots = schedule.planned(), schedule.history_slots()
    assert slots == live_at_once(schedule) == planned.history_slots()
    held = [0] + [None] * (slots - 1)
    reads = {(t, slot): version for t, slot, version in starts(schedule)}
    wanted = set(reads.values())
    assert planned.read.dtype == planned.write.dtype == np.int32
    for t, row in enumerate(planned.read.tolist()):
        for slot, place in enumerate(row):
            assert held[place] == reads[t, slot] if (t, slot) in reads else place == 0
        place = planned.write[t]
        assert (place == slots) == (t + 1 not in wanted) and 0 <= place <= slots
        if place < slots:
            held[place] = t + 1


def late(*staleness):
    """One slot whose client starts from a model so old, round by round."""
    return make_schedule([[0]] * len(staleness), np.array(staleness)[:, None])


FIVE = late(0, 0, 0, 2, 1)
PLAN = FIVE.planned()


def test_a_plan_by_hand():
    """x_0 is read in round 0 only, x_1 in 1 and 3, x_2 in 2, x_3 in 4, x_4 and x_5 never.

    x_1 goes where x_0 was, in slot 0; x_2 to 1; x_3 where x_2 was.
    """
    assert PLAN.read.tolist() == [[0], [0], [1], [0], [1]]
    assert PLAN.write.tolist() == [0, 1, 1, 2, 2] and FIVE.history_slots() == 2
    accept(PLAN, [0, -1])
    message = "schedule: expected a staleness of at most 3 in round 3 (...), found 4"
    refused(message, late(0, 0, 0, 4, 1).planned)


DATA = problems.values_of(*(np.random.default_rng(size).normal(size=size) for size in SIZES))
SERVER, TASK = ccfl.cc_fedams(0.1), problems.points_task()
ROUND_FN, TRACES = problems.counting(ccfl.build_round(TASK, SERVER, 0.1, 4))
# All have plans of four history slots, and drop a model while the last one is still to be read.
DRAWN = [drawn(0, tail=0.3), drawn(6, tail=0.3), drawn(2)]
HELD = 4


def first_state(history_length=HELD):
    return ccfl.init_state(TASK, SERVER, jax.random.key(0), history_length)


def without_history(state, infos):
    return state._replace(history=()), infos


@pytest.fixture(scope="module")
def rings():
    """The runs of `DRAWN` without a plan."""
    start = first_state(ROUNDS)
    return [ccfl.run_rounds(ROUND_FN, start, schedule, DATA) for schedule in DRAWN]


def test_the_run_is_the_rings_bit_for_bit_and_its_pieces_are_one_program(rings):
    seen = []
    for ring, schedule, cut in zip(rings, DRAWN, (3, 9, ROUNDS), strict=True):
        assert schedule.history_slots() == HELD
        planned, state, infos = schedule.planned(), first_state(), []
        for start, stop in pairwise((0, 0, cut, ROUNDS)):
            state, info = ccfl.run_rounds(ROUND_FN, state, planned.rounds(start, stop), DATA)
            infos.append(info)
            seen.append(len(TRACES))
        joined = jax.tree.map(lambda *a: np.concatenate(a), *infos)
        problems.assert_trees_equal(without_history(state, joined), without_history(*ring))
    assert seen == seen[:1] * 9  # the first one may trace


def test_trials_follow_a_plan_each(rings):
    """A trial is its single run up to the rounding of batched sums."""
    states = jax.tree.map(lambda a: jnp.stack([a, a]), first_state())
    schedules = [schedule.planned() for schedule in DRAWN[:2]]
    trials, infos = ccfl.run_trials(Partial(ROUND_FN), states, schedules, DATA, together=2)
    for k, ring in enumerate(rings[:2]):
        own = jax.tree.map(lambda a: a[k], (trials, infos))  # noqa: B023
        problems.assert_trees_close(without_history(*own), without_history(*ring))
    message = "schedule: expected a plan for all trials or none, found 1 of 2"
    mixed = [schedules[0], DRAWN[1]]
    refused(message, ccfl.run_trials, Partial(ROUND_FN), states, mixed, DATA)


def accept(schedule, held=(0, *[-1] * 99), first_round=0):
    check_schedule(schedule, len(SIZES), first_round, np.array(held))


def held(planned, before, history_length):
    """The version in each slot before round `before`, as the plan has written them."""
    slots = [0] + [-1] * (history_length - 1)
    for t, slot in enumerate(planned.write[:before].tolist()):
        slots[slot : slot + 1] = [t + 1] if slot < history_length else []
    return slots


def wrong_slot(version, found, t):
    expected = f"read: expected the history slot of x_{version} (the plan is of a whole run)"
    return f"{expected}, found {found} in round {t}"


@given(schedules, st.data())
def test_a_plan_and_its_pieces_are_accepted_and_one_wrong_slot_is_not(schedule, data):
    planned, slots = schedule.planned(), schedule.history_slots()
    first = data.draw(st.integers(0, schedule.num_rounds))
    piece = planned.rounds(first, data.draw(st.integers(first, schedule.num_rounds)))
    accept(piece, held(planned, first, slots), first)
    reads = [*starts(schedule)]
    if reads:
        t, slot, version = data.draw(st.sampled_from(reads))
        read = planned.read.copy()
        read[t, slot] = (read[t, slot] + data.draw(st.integers(1, slots))) % (slots + 1)
        message = wrong_slot(version, read[t, slot], t)
        refused(message, accept, planned.replace(read=read), [0, *[-1] * slots])


SHORT = "history_length: expected at least 2, the schedule's plan holds 2 models, found 1"


@pytest.mark.parametrize(("history_length", "schedule", "message"), [
    (1, PLAN, SHORT),
    (1, PLAN.rounds(2, 3).replace(first_round=None), SHORT),
    (2, PLAN.replace(staleness=late(0, 0, 0, 1, 1).staleness), wrong_slot(2, 0, 3)),
    (2, PLAN.replace(staleness=late(0, 0, 3, 2, 1).staleness), "schedule: ... 2 ..., found 3"),
    (2, PLAN.replace(write=PLAN.write * 0), wrong_slot(2, 1, 2)),
    (2, FIVE.replace(read=PLAN.read * 0, write=PLAN.write * 0), wrong_slot(1, 0, 3)),
])  # fmt: skip
def test_what_does_not_fit_a_plan_is_refused(history_length, schedule, message):
    refused(message, accept, schedule, [0, -1][:history_length])


def test_a_piece_from_a_state_of_another_schedule_is_refused():
    """Round 2 wants x_1, from the slot that held x_0; or another model is there."""
    planned = late(0, 0, 1).planned()
    piece = planned.rounds(2, 3)
    accept(piece, [1, 2], 2)
    for wrong in ([2, 1], [0, 1], [-1, 1]):
        refused(wrong_slot(1, 0, 2), accept, piece, wrong, 2)
    state = first_state(2)
    history = state.history._replace(version=jnp.array(held(planned, 3, 2)))
    state = state._replace(round=jnp.int32(3), history=history)
    longer = late(0, 0, 1, 3).planned().rounds(3, 4)
    refused(wrong_slot(0, 0, 3), ccfl.run_rounds, ROUND_FN, state, longer, DATA)
