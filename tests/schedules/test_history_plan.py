"""History sized by use: a plan is right, has the fewest slots, and gives the ring's run."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.tree_util import Partial
from problems import counting, federated, make_schedule, softmax_task

import ccfl_jax as ccfl
from ccfl_jax.engine.run import check_schedule

SIZES = (6, 4, 9, 15)
ROUNDS, SLOTS = 14, 3


def drawn(seed, rounds=ROUNDS, tail=1.0, away=0.3):
    """Staleness with a Pareto tail, absent slots, slots without work, a client in two slots."""
    rng = np.random.default_rng([seed, 1])
    shape, oldest = (rounds, SLOTS), np.arange(rounds)[:, None]
    present = rng.random(shape) >= away
    late = np.minimum(rng.pareto(tail, shape).astype(np.int64), oldest)
    late[~present] = rng.integers(0, 1000)  # of no meaning
    return make_schedule(
        rng.integers(0, len(SIZES), shape), late, rng.integers(0, 3, shape), present
    )


schedules = st.builds(
    drawn,
    seed=st.integers(0, 2**32 - 1),
    rounds=st.integers(0, 40),
    tail=st.sampled_from([0.2, 0.7, 1.5, 5.0]),
    away=st.sampled_from([0.0, 0.3, 0.9]),
)


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
            if (t, slot) in reads:
                assert held[place] == reads[t, slot]
            else:
                assert place == 0
        place = planned.write[t]
        assert (place == slots) == (t + 1 not in wanted) and 0 <= place <= slots
        if place < slots:
            held[place] = t + 1


def test_a_plan_by_hand():
    """x_0 is read in round 0 only, x_1 in 1 and 3, x_2 in 2, x_3 in 4, x_4 and x_5 never.

    x_1 goes where x_0 was, in slot 0; x_2 to 1; x_3 where x_2 was.
    """
    schedule = make_schedule([[0]] * 5, [[0], [0], [0], [2], [1]])
    planned = schedule.planned()
    assert planned.read.tolist() == [[0], [0], [1], [0], [1]]
    assert planned.write.tolist() == [0, 1, 1, 2, 2] and schedule.history_slots() == 2


def test_one_very_late_client_takes_one_model():
    """Everybody starts from x_t or x_{t-1}, and one from a model a thousand rounds old."""
    staleness = np.tile([0, 1], (2000, 1))
    staleness[0] = 0
    staleness[1500, 1] = 1000
    schedule = make_schedule(np.zeros((2000, 2)), staleness)
    assert schedule.history_slots() == 3
    alone = make_schedule(np.zeros((2000, 1)), np.arange(2000)[:, None])
    assert alone.history_slots() == 1 and (alone.planned().write == 1).all()


def round_at(rate, state, slots, data):
    return ccfl.build_round(softmax_task(), ccfl.cc_fedams(rate), 0.1, 4)(state, slots, data)


def first_state(history_length, seed=0):
    return ccfl.init_state(
        softmax_task(), ccfl.cc_fedams(0.1), jax.random.key(seed), history_length
    )


DATA = federated(list(SIZES))[0]
ROUND_FN = Partial(round_at, np.float32(0.1))


def assert_same_run(one, other):
    """All but the history, bit for bit."""
    plain = [(state._replace(history=(), key=()), infos) for state, infos in (one, other)]
    for a, b in zip(*map(jax.tree.leaves, plain), strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=6)  # each number of slots is a program
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.3, 1.0, 3.0]), st.integers(0, ROUNDS))
def test_the_run_is_the_rings_bit_for_bit(seed, tail, cut):
    schedule = drawn(seed, tail=tail)
    planned, state = schedule.planned(), first_state(schedule.history_slots())
    infos = []
    for piece in (planned.rounds(0, cut), planned.rounds(cut, ROUNDS)):
        state, info = ccfl.run_rounds(ROUND_FN, state, piece, DATA)
        infos.append(info)
    joined = jax.tree.map(lambda *a: np.concatenate(a), *infos)
    ring = ccfl.run_rounds(ROUND_FN, first_state(ROUNDS), schedule, DATA)
    assert_same_run(ring, (state, joined))


def test_slots_that_are_not_written_yet_are_not_read():
    schedule = drawn(5, away=0.0)
    start = first_state(schedule.history_slots())
    models = jax.tree.map(lambda a: a.at[1:].set(jnp.nan), start.history.models)
    poisoned = start.history._replace(models=models)
    planned = schedule.planned()
    expected = ccfl.run_rounds(ROUND_FN, start, planned, DATA)
    found = ccfl.run_rounds(ROUND_FN, start._replace(history=poisoned), planned, DATA)
    assert schedule.history_slots() > 2 and (found[1].rejected == 0).all()
    assert_same_run(expected, found)


def test_a_model_that_is_never_read_overwrites_none():
    """Everybody starts from x_0, in every round: the only slot keeps it."""
    schedule = make_schedule([[0], [1], [2]], [[0], [1], [2]])
    start = first_state(1)
    end, _ = ccfl.run_rounds(ROUND_FN, start, schedule.planned(), DATA)
    for a, b in zip(*map(jax.tree.leaves, (start.history, end.history)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert abs(start.params["w"] - end.params["w"]).max() > 1e-3


def test_pieces_of_a_plan_compile_once():
    counted, traces = counting(round_at)
    round_fn, schedule = Partial(counted, np.float32(0.1)), drawn(3, tail=0.5)
    state, planned, seen = first_state(schedule.history_slots()), schedule.planned(), []
    for start, stop in ((0, 0), (0, 3), (3, 4), (4, ROUNDS)):
        state, _ = ccfl.run_rounds(round_fn, state, planned.rounds(start, stop), DATA)
        seen.append(len(traces))
    assert seen == seen[:1] * 4 and seen[0] > 0


def test_trials_follow_a_plan_each():
    both = [drawn(seed, tail=0.5) for seed in (1, 2)]
    slots = max(schedule.history_slots() for schedule in both)
    keys = jax.vmap(jax.random.key)(jnp.arange(2))
    ends = []
    for length, pair in ((ROUNDS, both), (slots, [schedule.planned() for schedule in both])):
        start = partial(ccfl.init_state, softmax_task(), ccfl.cc_fedams(0.1), history_length=length)
        states, round_fn = jax.vmap(start)(keys), Partial(round_at, np.float32([0.1, 0.3]))
        infos = []
        for first, last in ((0, 5), (5, ROUNDS)):
            pieces = [schedule.rounds(first, last) for schedule in pair]
            states, info = ccfl.run_trials(round_fn, states, pieces, DATA, together=2)
            infos.append(info)
        ends.append((states, jax.tree.map(lambda *a: np.concatenate(a, 1), *infos)))
    assert slots < ROUNDS
    assert_same_run(*ends)
    mixed = [both[0].planned(), both[1]]
    with pytest.raises(ValueError, match="schedule: found 1 of 2 with a plan, legal: all or none"):
        ccfl.run_trials(round_fn, states, mixed, DATA)


def accept(schedule, held=(0, *[-1] * 99), first_round=0):
    check_schedule(schedule, len(SIZES), first_round, np.array(held))


def held(planned, before, history_length):
    """The version in each slot before round `before`, as the plan has written them."""
    slots = [0] + [-1] * (history_length - 1)
    for t, slot in enumerate(planned.write[:before].tolist()):
        slots[slot : slot + 1] = [t + 1] if slot < history_length else []
    return slots


@given(schedules, st.data())
def test_a_plan_and_its_pieces_are_accepted_and_one_wrong_slot_is_not(schedule, data):
    planned, slots = schedule.planned(), schedule.history_slots()
    rounds = schedule.num_rounds
    first = data.draw(st.integers(0, rounds))
    piece = planned.rounds(first, data.draw(st.integers(first, rounds)))
    accept(piece, held(planned, first, slots), first)
    reads = [*starts(schedule)]
    if not reads:
        return
    t, slot, version = data.draw(st.sampled_from(reads))
    read = planned.read.copy()
    read[t, slot] = (read[t, slot] + data.draw(st.integers(1, slots))) % (slots + 1)
    message = f"read: found history slot {read[t, slot]} in round {t}, legal: that of x_{version};"
    with pytest.raises(ValueError, match=message):
        accept(planned._replace(read=read))


def test_what_does_not_fit_a_plan_is_refused():
    schedule = make_schedule([[0]] * 5, [[0], [0], [0], [2], [1]])
    planned = schedule.planned()
    accept(planned, [0, -1])
    short = "history_length: found 1, legal: at least 2, the schedule's plan holds 2 models"
    for history_length, changed, message in (
        (1, planned, short),
        (1, planned.rounds(2, 3), short),
        (2, planned._replace(staleness=np.array([[0], [0], [0], [1], [1]])), "read: found history"),
        (2, planned._replace(staleness=np.array([[0], [0], [3], [2], [1]])), "staleness 3 in roun"),
        (2, planned._replace(write=planned.write * 0), "read: found history slot 1 in round 2"),
        (2, planned._replace(num_clients=10), "schedule: found one made for 10 clients, legal: "),
    ):
        with pytest.raises(ValueError, match=message):
            accept(changed, [0, -1][:history_length])
    with pytest.raises(ValueError, match="found staleness 4 in round 3, legal: 0 to 3, there is"):
        schedule._replace(staleness=np.array([[0], [0], [0], [4], [1]])).planned()
    with pytest.raises(ValueError, match="read: found history slot 0 in round 3, legal: that of x"):
        accept(schedule._replace(read=planned.read * 0, write=planned.write * 0))


def test_a_piece_from_a_state_of_another_schedule_is_refused():
    """Round 2 wants x_1, from the slot that x_0 stood in; or another model stands there."""
    schedule = make_schedule([[0]] * 3, [[0], [0], [1]])
    piece = schedule.planned().rounds(2, 3)
    accept(piece, [1, 2], 2)
    for wrong in ([2, 1], [0, 1], [-1, 1]):
        with pytest.raises(ValueError, match="slot 0 in round 2, legal: that of x_1; a plan is of"):
            accept(piece, wrong, 2)
    longer = make_schedule([[0]] * 4, [[0], [0], [1], [3]]).planned()
    round_fn, state = Partial(round_at, np.float32(0.1)), first_state(2)
    state, _ = ccfl.run_rounds(round_fn, state, schedule.planned(), DATA)
    with pytest.raises(ValueError, match="in round 3, legal: that of x_0"):
        ccfl.run_rounds(round_fn, state, longer.rounds(3, 4), DATA)


@pytest.mark.parametrize("seed", range(3))
def test_the_drawn_schedules_are_worth_planning(seed):
    schedule = drawn(seed, rounds=40)
    assert schedule.history_slots() + 5 < schedule.staleness[schedule.working()].max()
