"""Running in pieces, compilation, evaluation, and what is refused before work."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
from jax.tree_util import Partial
from problems import assert_trees_equal, counting, make_schedule, one_row_data, softmax_task
from refusal import refused

import ccfl_jax as ccfl

VALUES = [np.random.default_rng(size).normal(size=size) for size in (6, 4, 9, 15)]
DATA, X_SQUARED = problems.values_of(*VALUES), problems.quadratic_task()
POINTS = ccfl.simulation(problems.points_task(), ccfl.cc_fedams(0.1), optax.sgd(0.1), batch_size=4)
QUADRATIC = ccfl.simulation(X_SQUARED, ccfl.cc_fedavg(), optax.sgd(0.01), normalise="none")


def first_state(seed=0):
    return POINTS.init(jax.random.key(seed), history_length=4)


def run(schedule, state=None, **how):
    return ccfl.run_rounds(POINTS.round, state or first_state(), schedule, DATA, **how)


def drawn(rounds, **how):
    return ccfl.random_schedule(0, rounds, 4, 3, **{"max_delay": 3, **how})


def in_all_slots(staleness):
    """Client 0 in each of three slots."""
    return make_schedule([[0] * 3] * len(staleness), np.repeat(staleness, 3).reshape(-1, 3))


def test_pieces_equal_the_whole_in_one_program():
    """A piece of no rounds compiles it; cohorts, sizes, work, staleness and lengths then vary."""
    schedule = drawn(60)
    round_fn, traces = counting(POINTS.round)
    pieces = problems.cut(schedule, (0, 0, 1, 1, 12, 60), DATA)
    states, infos = problems.run_pieces(round_fn, first_state(), pieces)
    whole = ccfl.run_rounds(round_fn, first_state(), schedule, DATA)
    assert_trees_equal((states[-1], infos), whole)
    harder = drawn(80, local_work=9).rounds(60, 80)
    end, _ = ccfl.run_rounds(round_fn, states[-1], harder, DATA)
    assert int(end.round) == 80
    assert len(traces) == 1


def test_long_runs_go_past_the_padding():
    state, schedule = QUADRATIC.init(jax.random.key(0)), make_schedule([[0]] * 300)
    state, info = ccfl.run_rounds(QUADRATIC.round, state, schedule, one_row_data())
    assert float(state.params["x"]) == pytest.approx(0.99**300, rel=1e-4)
    assert info.train_loss.shape == (300,)


def test_state_survives_unless_donated():
    state, schedule = QUADRATIC.init(jax.random.key(0)), make_schedule([[0]] * 3)
    once, again, given_away = (
        ccfl.run_rounds(QUADRATIC.round, state, schedule, one_row_data(), donate=donate)[0]
        for donate in (False, False, True)
    )
    assert_trees_equal([again, given_away], [once, once])
    assert state.params["x"].is_deleted()


def test_same_seed_same_run_other_seed_another():
    first, same, other = (run(drawn(3), first_state(seed))[0].params["x"] for seed in (0, 0, 1))
    assert first == same and abs(first - other) > 1e-3


def test_rates_as_arguments_of_the_round_compile_once_and_are_taken():
    """x^2 / 2 from 1, local and server rate r: 1 - r^2 a round."""

    def round_at(rate, *arguments):
        return ccfl.build_round(X_SQUARED, ccfl.cc_fedsgd(rate), rate)(*arguments)

    (counted, traces), state = counting(round_at), QUADRATIC.init(jax.random.key(0))
    for rate in (0.1, 0.3, 0.2):
        round_fn = Partial(counted, np.float32(rate))
        end, _ = ccfl.run_rounds(round_fn, state, make_schedule([[0]] * 3), one_row_data())
        assert float(end.params["x"]) == pytest.approx((1 - rate**2) ** 3, rel=1e-6)
    assert len(traces) == 1


def program(work):
    """The round as a program, before XLA sees it."""
    row = jax.tree.map(lambda a: jnp.asarray(a[0]), make_schedule([[0, 1]], work=work))
    return jax.make_jaxpr(POINTS.round)(first_state(), row, DATA)


def test_the_data_are_arguments_not_constants():
    """A closed-over data set would stand in the program text."""
    assert max((np.size(c) for c in program(1).consts), default=0) < 16


def test_steps_are_not_unrolled():
    """The program text is as long for 50 local steps as for 5."""
    assert len(str(program(5))) == len(str(program(50)))


def test_more_history_than_kept_is_refused_with_both_numbers():
    schedule = in_all_slots([0, 1, 2, 3, 4])
    message = "history_length: expected at least 5, the schedule's largest staleness is 4, found 4"
    refused(message, run, schedule)
    run(schedule.replace(present=schedule.staleness < 4))  # an absent slot reads nothing


def test_a_model_before_the_first_is_refused_with_its_round():
    schedule = in_all_slots([0, 1, 3, 1])
    message = "schedule: expected a staleness of at most 2 in round 2 ..., found 3"
    refused(message, run, schedule)
    state, _ = run(in_all_slots([0]))
    run(schedule, state)  # one round later it is legal


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (make_schedule([[4]]), "schedule: expected clients 0 to 3, found 4"),
        (drawn(1).replace(num_clients=9), "schedule: expected one of 4 clients, found one of 9"),
        (in_all_slots([-1]), "staleness: expected 0 to 2147483647, found -1 to -1"),
    ],
)
def test_unknown_clients_and_malformed_schedules_are_refused(schedule, message):
    refused(message, run, schedule)


def test_more_rows_than_row_numbers_are_refused():
    many = np.broadcast_to(np.int32(0), 2**31)
    huge = ccfl.FederatedData(DATA.arrays, many, np.array([0, 1, 2, 3, 2**31]))
    message = f"data: expected fewer than 2**31 rows (more: see stream_rounds), found {2**31}"
    refused(message, ccfl.run_rounds, POINTS.round, first_state(), make_schedule([[0]]), huge)


@pytest.mark.parametrize(("rows", "batch_size"), [(1, 9), (7, 3), (12, 4)])
def test_evaluate_counts_every_row_once(rows, batch_size):
    (_, arrays, _), task = problems.federated([rows]), softmax_task()
    params = task.init(jax.random.key(1))
    logits = arrays["x"] @ np.asarray(params["w"], np.float64)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(rows), arrays["y"]]
    accuracy = (logits.argmax(1) == arrays["y"]).mean()
    found = ccfl.evaluate(task, params, arrays, batch_size)
    problems.assert_trees_close(found, {"loss": losses.mean(), "accuracy": accuracy}, 1e-5)


def test_evaluate_weighs_rows_not_batches():
    """Batches of 100, 100 and 3 with mean losses 1, 1 and 10: 230 / 203."""
    task = problems.task_of(None, lambda params, batch: {"loss": batch["x"]})
    arrays = {"x": np.array([1.0] * 200 + [10.0] * 3, np.float32)}
    assert ccfl.evaluate(task, {}, arrays, 100)["loss"] == pytest.approx(230 / 203, rel=1e-9)


@pytest.mark.parametrize(
    ("lengths", "batch_size", "message"),
    [
        ({"x": 0}, 10, "arrays: expected 1 to 2147483647 rows, found 0"),
        ({"x": 3, "y": 4}, 10, "arrays: expected equal lengths, found {'x': 3, 'y': 4}"),
        ({"x": 3}, 0, "batch_size: expected an integer >= 1, found 0"),
    ],
)
def test_evaluate_refuses(lengths, batch_size, message):
    arrays = {name: np.zeros(length) for name, length in lengths.items()}
    refused(message, ccfl.evaluate, softmax_task(), {}, arrays, batch_size)


def test_memory_does_not_grow_with_the_number_of_slots():
    """Uploads add up: a thousand of 11 million parameters, 44 GB, take no more room than two."""
    model_bytes = 44_000_000
    task = X_SQUARED._replace(
        init=lambda key: {"x": jnp.zeros(model_bytes // 4)},
        loss=lambda params, *batch: (params["x"] ** 2).sum(),
    )
    simulation = ccfl.simulation(task, ccfl.cc_fedams(0.1), batch_size=1, lanes=1)
    state = jax.eval_shape(lambda: simulation.init(jax.random.key(0)))
    room = []
    for slots in (2, 1000):
        row = jax.tree.map(lambda a: a[0], make_schedule([[0] * slots]))
        compiled = jax.jit(simulation.round).lower(state, row, one_row_data(1000)).compile()
        room.append(compiled.memory_analysis().temp_size_in_bytes)
    assert room[1] < room[0] + model_bytes


def test_a_schedule_of_lists_is_that_of_its_arrays():
    names, arrays = ("client", "staleness", "work", "present"), drawn(3)
    lists = arrays.replace(**{name: getattr(arrays, name).tolist() for name in names})
    assert_trees_equal(run(lists), run(arrays))
