"""The round: staleness, masks, independence of clients, limit cases."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
from problems import assert_trees_close, assert_trees_equal, make_schedule
from refusal import refused

import ccfl_jax as ccfl

SLOTS, POINTS, QUADRATIC = 5, problems.points_task(), problems.quadratic_task()
VALUES = [np.random.default_rng(size).normal(size=size) for size in (6, 4, 9, 5, 30)]


@cache
def points(lanes):
    """CC-FedSGD of rate 1 on `VALUES`, batches of four, local rate 0.5."""
    return ccfl.simulation(POINTS, ccfl.cc_fedsgd(1.0), optax.sgd(0.5), 4, lanes=lanes)


def run_points(clients, work=1, present=True, staleness=0, lanes=1, values=VALUES):
    """The rounds of such a schedule, filled up with absent slots: first state, last, infos."""
    schedule = make_schedule(clients, staleness, work, present)
    empty = [(0, 0), (0, SLOTS - schedule.num_slots)]
    schedule = jax.tree.map(lambda a: np.pad(a, empty), schedule)
    start = points(lanes).init(jax.random.key(0), history_length=2)
    data = problems.values_of(*values)
    return start, *ccfl.run_rounds(points(lanes).round, start, schedule, data)


# Uploads as they are.
PLAIN = ccfl.simulation(QUADRATIC, ccfl.cc_fedavg(), optax.sgd(0.1), 4, normalise="none")


def run_two(schedule, history_length=3, simulation=PLAIN):
    """Such rounds of two clients with a row each."""
    state = simulation.init(jax.random.key(0), history_length)
    return ccfl.run_rounds(simulation.round, state, schedule, problems.one_row_data(2))


def test_deltas_are_taken_against_the_model_the_client_started_from():
    """f = x^2/2, K = 1, rate 0.1, server rate 1: x_{t+1} = x_t - 0.1 x_{t-s}, s = min(t, 2).

    The last is 0.7 - 0.1 * 0.9. Against the current model it would be 1, .9, .9, .9, .81.
    """
    schedule = make_schedule([[0, 1]] * 4, [[0, 0], [1, 1], [2, 2], [2, 2]])
    for rounds, x in enumerate((1, 0.9, 0.8, 0.7, 0.61)):
        state, _ = run_two(schedule.rounds(0, rounds))
        assert float(state.params["x"]) == pytest.approx(x, rel=1e-6)


def test_no_delay_is_the_synchronous_algorithm():
    """Staleness 0 with a long history equals a history of one model: here 0.9^work a round."""
    schedule = make_schedule([[0, 1]] * 6, work=np.repeat(np.arange(1, 7), 2).reshape(6, 2))
    for history_length in (1, 3):
        state, _ = run_two(schedule, history_length)
        assert float(state.params["x"]) == pytest.approx(0.9**21, rel=1e-5)


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_diverging_client_leaves_the_others_alone(lanes):
    """Sums of client 2's values are infinite; the others give beside it what they give alone."""
    values = [*VALUES[:2], np.full(9, 3e38), *VALUES[3:]]
    work = [1, 1, 17, 2, 3]
    start, together, info = run_points([range(5)], [work], lanes=lanes, values=values)
    assert info.rejected[0] == 1 and info.participants[0] == 4
    assert np.isfinite(info.train_loss).all()
    steps = []
    for client in (0, 1, 3, 4):
        _, alone, _ = run_points([[client]], [[work[client]]], lanes=lanes, values=values)
        steps.append(start.params["x"] - alone.params["x"])
    expected = float(start.params["x"] - sum(steps) / 4)
    assert float(together.params["x"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("clients", "work", "lanes"),
    [([0, 4], [0, 2], 1), ([4, 2, 1], [2, 0, 0], 2), ([1, 2, 4, 3], [0, 0, 2, 0], 2)],
)
def test_batch_order_does_not_depend_on_slot_cohort_or_lanes(clients, work, lanes):
    _, end, _ = run_points([clients], [work], lanes=lanes)
    assert_trees_close(end.params, run_points([[4]], 2)[1].params)


def test_a_client_in_two_slots_draws_two_orders_whatever_stands_between():
    def end(clients, present):
        return run_points([clients], present=[present])[1].params["x"]

    once, twice = end([4], [True]), end([4, 4], [True, True])
    assert_trees_close(end([4, 4], [False, True]), once)  # an absent slot is no visit
    assert_trees_close(end([4, 1, 4], [True, False, True]), twice)
    thrice = end([4, 1, 4, 4], [True, False, True, True])
    assert abs(once - twice) > 1e-3 and abs(thrice - twice) > 1e-4


def test_rounds_draw_their_own_orders():
    """The same client, model and work in rounds 0 and 1: another order, so another upload."""
    _, _, info = run_points([[4]] * 2, staleness=[[0], [1]])
    assert info.train_loss[0] != info.train_loss[1]


def test_info_reports_what_happened():
    stale = [[0] * 3, [1, 0, 1]]
    _, _, info = run_points([[0, 1, 2]] * 2, staleness=stale, work=[[1, 2, 1]] * 2)
    absent = [[0, 0]] * 2
    np.testing.assert_array_equal(info.staleness, np.hstack([stale, absent]))
    np.testing.assert_array_equal(info.steps, [[2, 2, 3, 0, 0]] * 2)
    np.testing.assert_array_equal(info.samples, [[6, 8, 9, 0, 0]] * 2)
    np.testing.assert_array_equal(info.present, [[True] * 3 + [False] * 2] * 2)
    assert info.train_loss.shape == info.train_metrics["loss"].shape == (2,)


def test_a_round_of_rejected_uploads_changes_no_bit():
    """Two rounds fill the moments; in the next two the local rate, and so every step, is inf."""
    task, schedule = problems.slope_task(), make_schedule([[0, 1]] * 4)
    server = ccfl.cc_fedams(0.1)
    simulation = ccfl.simulation(task, server, lambda t: jnp.where(t < 2, 0.1, jnp.inf))
    before, _ = run_two(schedule.rounds(0, 2), 1, simulation)
    after, info = run_two(schedule, 1, simulation)
    assert_trees_equal((after.params, after.server), (before.params, before.server))
    np.testing.assert_array_equal(info.rejected, [0, 0, 2, 2])
    assert before.params["x"] < 0


def test_bfloat16_models_run():
    task = QUADRATIC._replace(init=lambda key: {"x": jnp.ones((), jnp.bfloat16)})
    simulation = ccfl.simulation(task, ccfl.cc_fedams(0.1))
    state, info = run_two(make_schedule([[0, 1]] * 3), 1, simulation)
    assert state.params["x"].dtype == jnp.bfloat16 and state.params["x"] < 1
    assert state.server[0].nu["x"].dtype == jnp.float32
    np.testing.assert_array_equal(info.participants, [2] * 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected an integer >= 1, found 0"),
        ({"batch_size": 2.5}, "batch_size: expected an integer >= 1, found 2.5"),
        ({"lanes": 0}, "lanes: expected an integer >= 1, found 0"),
        ({"local": "sgd"}, "local: expected an optax optimiser, a number, or ..., found 'sgd'"),
        ({"work_unit": "hours"}, "work_unit: expected epochs, steps, found 'hours'"),
        ({"normalise": "K"}, "normalise: expected steps, epochs, none, found 'K'"),
    ],
)
def test_build_round_refuses(arguments, message):
    refused(message, ccfl.build_round, POINTS, ccfl.cc_fedavg(), **arguments)
