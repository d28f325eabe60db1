"""The round: staleness, masks, independence of clients, limit cases."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import (
    federated,
    make_schedule,
    one_row_data,
    quadratic_task,
    slope_task,
    softmax_task,
)

import ccfl_jax as ccfl
from ccfl_jax.engine.rounds import _which_visit

LANES = [1, 2, 5]


def run(task, server, schedule, data, state=None, history_length=1, **how):
    round_fn = ccfl.build_round(task, server, **how)
    if state is None:
        state = ccfl.init_state(task, server, jax.random.key(0), history_length)
    return ccfl.run_rounds(round_fn, state, schedule, data)


def assert_trees_close(a, b, tolerance=1e-6):
    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def assert_trees_identical(a, b):
    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_array_equal(x, y)


def keep(state):
    """A state without its key, whose leaves NumPy can compare."""
    return state._replace(key=jax.random.key_data(state.key))


def test_deltas_are_taken_against_the_model_the_client_started_from():
    """f = x^2/2, K = 1, rate 0.1, server rate 1, staleness 2: 1, .9, .8, .7, .61.

    Staleness is min(t, 2): x_{t+1} = x_t - 0.1 x_{t-s}. Against the current model it would
    be 1, .9, .9, .9, .81.
    """
    schedule = make_schedule([[0]] * 4, staleness=[[0], [1], [2], [2]])
    models = [1.0]
    for t, s in enumerate([0, 1, 2, 2]):
        models.append(models[t] - 0.1 * models[t - s])
    assert models == pytest.approx([1, 0.9, 0.8, 0.7, 0.61])
    for rounds in range(1, 5):
        state, _ = run(
            quadratic_task(),
            ccfl.cc_fedsgd(1.0),
            schedule.rounds(0, rounds),
            one_row_data(),
            history_length=3,
            local=optax.sgd(0.1),
            normalise="none",
        )
        assert float(state.params["x"]) == pytest.approx(models[rounds], rel=1e-6)


@pytest.mark.parametrize("lanes", LANES)
def test_a_diverging_client_leaves_the_others_alone(lanes):
    """Client 2 has huge inputs and 50 steps; the others' solo runs are what they give beside it."""
    data, arrays, lists = federated([6, 4, 9, 5, 3])
    arrays["x"][lists[2]] *= 1e30
    data = ccfl.FederatedData.from_indices(arrays, lists)
    work = [[1, 1, 50, 2, 3]]
    how = {"local": optax.sgd(1.0), "batch_size": 4, "work_unit": "steps", "lanes": lanes}
    server = ccfl.cc_fedsgd(1.0)
    together, info = run(
        softmax_task(), server, make_schedule([[0, 1, 2, 3, 4]], work=work), data, **how
    )
    assert info.rejected[0] == 1 and info.participants[0] == 4
    deltas = []
    for client in (0, 1, 3, 4):
        alone = make_schedule([[client]], work=[[work[0][client]]])
        state = ccfl.init_state(softmax_task(), server, jax.random.key(0))
        end, _ = run(softmax_task(), server, alone, data, state, **how)
        deltas.append(jax.tree.map(lambda a, b: a - b, state.params, end.params))
    mean = jax.tree.map(lambda *d: sum(d) / 4, *deltas)
    start = ccfl.init_state(softmax_task(), server, jax.random.key(0)).params
    assert_trees_close(together.params, jax.tree.map(lambda a, d: a - d, start, mean), 1e-5)
    assert np.isfinite(info.train_loss).all()


def test_batch_order_does_not_depend_on_slot_cohort_or_lanes():
    data, _, _ = federated([6, 4, 9, 5, 30])
    how = {"local": optax.sgd(0.1), "batch_size": 4}
    server = ccfl.cc_fedsgd(1.0)
    ends = []
    for clients, works, lanes in (
        ([4], [2], 1),
        ([0, 4], [0, 2], 1),
        ([4, 2, 1], [2, 0, 0], 3),
        ([1, 2, 4, 3], [0, 0, 2, 0], 2),
    ):
        schedule = make_schedule([clients], work=[works])
        ends.append(run(softmax_task(), server, schedule, data, lanes=lanes, **how)[0].params)
    for end in ends[1:]:
        assert_trees_close(end, ends[0])


def test_a_client_in_two_slots_draws_two_orders_whatever_stands_between():
    data, _, _ = federated([30, 8])
    how = {"local": optax.sgd(0.5), "batch_size": 4}
    server = ccfl.cc_fedsgd(1.0)

    def end(clients, present):
        schedule = make_schedule([clients], work=[[1] * len(clients)], present=[present])
        return run(softmax_task(), server, schedule, data, **how)[0].params

    once, twice = end([0], [True]), end([0, 0], [True, True])
    assert any(
        abs(a - b).max() > 1e-3 for a, b in zip(*map(jax.tree.leaves, (once, twice)), strict=True)
    )
    # An absent slot of the same client is no visit.
    assert_trees_close(end([0, 0], [False, True]), once)
    assert_trees_close(end([0, 1, 0], [True, False, True]), twice)


def test_rounds_draw_their_own_orders():
    """The same client, model and work in rounds 0 and 1: another order, so another upload."""
    data, _, _ = federated([40])
    server = ccfl.cc_fedsgd(0.0)  # the model stands still
    schedule = make_schedule([[0]] * 2)
    losses = run(softmax_task(), server, schedule, data, local=optax.sgd(0.5), batch_size=4)[1]
    assert losses.train_loss[0] != losses.train_loss[1]


@pytest.mark.parametrize("server", [ccfl.cc_fedams(0.1), optax.adam(0.1), optax.sgd(0.1, 0.9)])
def test_a_round_with_nobody_changes_no_bit(server):
    data, _, _ = federated([6, 0])
    busy = make_schedule([[0]] * 3)
    state, _ = run(softmax_task(), server, busy, data, history_length=4)
    for nobody in (
        make_schedule([[0]], present=False),
        make_schedule([[0]], work=0),
        make_schedule([[1]]),  # a client without samples
    ):
        after, info = run(softmax_task(), server, nobody, data, state)
        assert_trees_identical((after.params, after.server), (state.params, state.server))
        assert info.participants[0] == 0 and info.rejected[0] == 0
        assert np.isnan(info.train_loss[0])
        assert int(after.round) == 4
        held = jax.tree.map(lambda a: a[4 % 4], after.history.models)
        assert_trees_identical(held, state.params)


def test_a_round_of_rejected_uploads_changes_no_bit():
    data, arrays, lists = federated([6])
    arrays["x"][:] = np.nan
    data = ccfl.FederatedData.from_indices(arrays, lists)
    server = ccfl.cc_fedams(0.1)
    state = ccfl.init_state(softmax_task(), server, jax.random.key(0))
    after, info = run(softmax_task(), server, make_schedule([[0]] * 4), data, state)
    assert_trees_identical((after.params, after.server), (state.params, state.server))
    np.testing.assert_array_equal(info.rejected, [1] * 4)


def test_zero_work_does_not_count_in_the_mean():
    """Gradient 1, rate 0.1: uploads 0.1 and a slot without work; the mean is 0.1, not 0.05."""
    schedule = make_schedule([[0, 1]], work=[[3, 0]])
    state, info = run(
        slope_task(), ccfl.cc_fedsgd(1.0), schedule, one_row_data(2), local=optax.sgd(0.1)
    )
    assert float(state.params["x"]) == pytest.approx(-0.1, rel=1e-6)
    assert info.participants[0] == 1


def test_no_delay_is_the_synchronous_algorithm():
    """Staleness 0 with a long history equals a history of one model."""
    data, _, _ = federated([6, 4, 9])
    schedule = ccfl.random_schedule(0, 12, 3, 2, max_delay=0)
    server = ccfl.cc_fedams(0.1)
    short, _ = run(softmax_task(), server, schedule, data, history_length=1)
    long, _ = run(softmax_task(), server, schedule, data, history_length=6)
    assert_trees_close(short.params, long.params)


def test_info_reports_what_happened():
    data, _, _ = federated([6, 4, 9])
    schedule = make_schedule([[0, 1, 2]] * 2, staleness=[[0] * 3, [1, 0, 1]], work=[[1, 2, 1]] * 2)
    _, info = run(softmax_task(), ccfl.cc_fedsgd(1.0), schedule, data, history_length=2,
                  batch_size=4)  # fmt: skip
    np.testing.assert_array_equal(info.staleness, schedule.staleness)
    np.testing.assert_array_equal(info.steps, [[2, 2, 3]] * 2)
    np.testing.assert_array_equal(info.samples, [[6, 8, 9]] * 2)
    np.testing.assert_array_equal(info.present, np.ones((2, 3), bool))
    assert info.train_loss.shape == info.train_metrics["accuracy"].shape == (2,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected an integer >= 1, found 0"),
        ({"batch_size": 2.5}, "batch_size: found 2.5"),
        ({"lanes": 0}, "lanes: found 0"),
        (
            {"local": "sgd"},
            "local: expected an optax optimiser, a number, or a function, found .sgd.",
        ),
        ({"work_unit": "hours"}, "work_unit: expected epochs, steps, found 'hours'"),
        ({"normalise": "K"}, "normalise: expected steps, epochs, none, found 'K'"),
    ],
)
def test_build_round_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        ccfl.build_round(softmax_task(), ccfl.cc_fedavg(), **arguments)


def test_bfloat16_models_run():
    data, _, _ = federated([6, 4])
    task = softmax_task(jnp.bfloat16)
    state, info = run(task, ccfl.cc_fedams(0.1), make_schedule([[0, 1]] * 3), data)
    assert state.params["w"].dtype == jnp.bfloat16
    assert state.server[0].nu["w"].dtype == jnp.float32
    np.testing.assert_array_equal(info.participants, [2] * 3)


@given(
    clients=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    absent=st.integers(0, 2**12 - 1),
)
def test_visits_count_earlier_present_slots_of_the_same_client(clients, absent):
    present = [not absent >> k & 1 for k in range(len(clients))]
    slots = make_schedule([clients], present=[present])
    visits = _which_visit(jax.tree.map(lambda a: jnp.asarray(a[0]), slots))
    for k in np.flatnonzero(present):
        earlier = zip(clients[:k], present[:k], strict=True)
        assert visits[k] == sum(c == clients[k] for c, here in earlier if here)
