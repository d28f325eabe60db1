"""Running in pieces, compilation, evaluation, and what is refused before work."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import Partial
from problems import counting, federated, make_schedule, quadratic_task, softmax_task

import ccfl_jax as ccfl


def setting(sizes=(6, 4, 9, 15), history_length=4, server=None):
    data, _, _ = federated(list(sizes))
    task, server = softmax_task(), server or ccfl.cc_fedams(0.1)
    round_fn = ccfl.build_round(task, server, optax.sgd(0.1), batch_size=4)
    return data, round_fn, ccfl.init_state(task, server, jax.random.key(0), history_length)


def leaves(state):
    return jax.tree.leaves(state._replace(key=jax.random.key_data(state.key)))


def test_pieces_equal_the_whole():
    data, round_fn, state = setting()
    schedule = ccfl.random_schedule(0, 23, 4, 3, max_delay=3)
    whole, whole_info = ccfl.run_rounds(round_fn, state, schedule, data)
    infos = []
    for start, stop in ((0, 1), (1, 1), (1, 12), (12, 23)):
        state, info = ccfl.run_rounds(round_fn, state, schedule.rounds(start, stop), data)
        infos.append(info)
    for a, b in zip(leaves(whole), leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)
    joined = jax.tree.map(lambda *a: np.concatenate(a), *infos)
    for a, b in zip(*map(jax.tree.leaves, (whole_info, joined)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(state.round) == 23


def test_long_runs_go_past_the_padding():
    task, server = quadratic_task(), ccfl.cc_fedsgd(1.0)
    round_fn = ccfl.build_round(task, server, optax.sgd(0.01), normalise="none")
    data, _, _ = federated([1])
    state = ccfl.init_state(task, server, jax.random.key(0))
    state, info = ccfl.run_rounds(round_fn, state, make_schedule([[0]] * 300), data)
    assert float(state.params["x"]) == pytest.approx(0.99**300, rel=1e-4)
    assert info.train_loss.shape == (300,)


def test_no_recompilation_after_the_first_piece():
    """Cohorts, client sizes, work, staleness and the pieces' lengths all vary."""
    data, round_fn, state = setting()
    counted, traces = counting(round_fn)
    schedule = ccfl.random_schedule(0, 60, 4, 3, max_delay=3)
    harder = ccfl.random_schedule(1, 80, 4, 3, max_delay=3, local_work=9).rounds(60, 80)
    with jax.log_compiles(False):
        state, _ = ccfl.run_rounds(counted, state, schedule.rounds(0, 10), data)
        first = len(traces)
        for start, stop in ((10, 13), (13, 14), (14, 60)):
            state, _ = ccfl.run_rounds(counted, state, schedule.rounds(start, stop), data)
        state, _ = ccfl.run_rounds(counted, state, harder, data)
    assert len(traces) == first


def test_a_piece_of_no_rounds_compiles_and_changes_nothing():
    data, round_fn, state = setting()
    counted, traces = counting(round_fn)
    schedule = ccfl.random_schedule(0, 5, 4, 3, max_delay=3)
    after, info = ccfl.run_rounds(counted, state, schedule.rounds(0, 0), data)
    for a, b in zip(leaves(state), leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)
    assert info.train_loss.shape == (0,)
    compiled = len(traces)
    ccfl.run_rounds(counted, state, schedule, data)
    assert len(traces) == compiled > 0


def test_the_data_are_arguments_not_constants():
    """A closed-over data set would stand in the program text."""
    data, round_fn, state = setting()
    schedule = ccfl.random_schedule(0, 1, 4, 3, max_delay=0)
    slots = jax.tree.map(lambda a: jnp.asarray(a[0]), schedule)
    jaxpr = jax.make_jaxpr(round_fn)(state, slots, data)
    assert max((np.size(c) for c in jaxpr.consts), default=0) < 16


def test_state_survives_unless_donated():
    data, round_fn, state = setting()
    schedule = ccfl.random_schedule(0, 3, 4, 3, max_delay=2)
    once, _ = ccfl.run_rounds(round_fn, state, schedule, data)
    again, _ = ccfl.run_rounds(round_fn, state, schedule, data)
    given_away, _ = ccfl.run_rounds(round_fn, state, schedule, data, donate=True)
    for a, b, c in zip(leaves(once), leaves(again), leaves(given_away), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert state.params["w"].is_deleted()


def test_more_history_than_kept_is_refused_with_both_numbers():
    data, round_fn, state = setting(history_length=3)
    schedule = make_schedule([[0]] * 5, staleness=[[0], [1], [2], [3], [0]])
    with pytest.raises(ValueError, match="history_length: expected at least 4, .* is 3, found 3"):
        ccfl.run_rounds(round_fn, state, schedule, data)
    absent = schedule._replace(present=schedule.staleness < 3)
    ccfl.run_rounds(round_fn, state, absent, data)  # an absent slot reads nothing


def test_a_model_before_the_first_is_refused_with_its_round():
    data, round_fn, state = setting()
    schedule = make_schedule([[0]] * 4, staleness=[[0], [1], [3], [1]])
    with pytest.raises(ValueError, match="expected 0 to 2, found staleness 3 in round 2"):
        ccfl.run_rounds(round_fn, state, schedule, data)
    state, _ = ccfl.run_rounds(round_fn, state, make_schedule([[0]]), data)
    ccfl.run_rounds(round_fn, state, schedule, data)  # one round later it is legal


def test_rates_as_arguments_of_the_round_compile_once_and_are_taken():
    data, _, state = setting(server=ccfl.cc_fedsgd(0.1))
    schedule = ccfl.random_schedule(0, 3, 4, 3, max_delay=0)

    def round_at(rate, *rest):
        return ccfl.build_round(softmax_task(), ccfl.cc_fedsgd(rate), rate, batch_size=4)(*rest)

    counted, traces = counting(round_at)
    counts = []
    for rate in (0.1, 0.3, 0.2):
        found, _ = ccfl.run_rounds(Partial(counted, np.float32(rate)), state, schedule, data)
        counts.append(len(traces))
        fixed = ccfl.build_round(softmax_task(), ccfl.cc_fedsgd(rate), rate, batch_size=4)
        expected, _ = ccfl.run_rounds(fixed, state, schedule, data)
        for a, b in zip(*map(jax.tree.leaves, (found.params, expected.params)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    assert counts == [counts[0]] * 3


def test_more_rows_than_row_numbers_are_refused():
    data, round_fn, state = setting()
    many = np.broadcast_to(np.int32(0), 2**31)
    huge = ccfl.FederatedData(data.arrays, many, np.array([0, 1, 2, 3, 2**31]))
    with pytest.raises(
        ValueError, match=f"data: expected under .*stream_rounds, found {2**31} rows"
    ):
        ccfl.run_rounds(round_fn, state, make_schedule([[0]]), huge)


def test_no_round_reads_an_unwritten_model():
    """With every unwritten place poisoned, a legal schedule gives the same result."""
    data, round_fn, state = setting()
    schedule = ccfl.random_schedule(3, 12, 4, 3, max_delay=3)
    expected, _ = ccfl.run_rounds(round_fn, state, schedule, data)
    poisoned = jax.tree.map(lambda a: a.at[1:].set(jnp.nan), state.history.models)
    state = state._replace(history=state.history._replace(models=poisoned))
    found, info = ccfl.run_rounds(round_fn, state, schedule, data)
    assert (info.rejected == 0).all()
    for a, b in zip(*map(jax.tree.leaves, (expected.params, found.params)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_unknown_clients_and_malformed_schedules_are_refused():
    data, round_fn, state = setting()
    with pytest.raises(ValueError, match=r"expected 0 to 3 \(4 clients\), found client 4"):
        ccfl.run_rounds(round_fn, state, make_schedule([[4]]), data)
    for_fewer = make_schedule([[0]])._replace(num_clients=3)
    with pytest.raises(ValueError, match="expected one made for 4, found one made for 3 clients"):
        ccfl.run_rounds(round_fn, state, for_fewer, data)
    with pytest.raises(ValueError, match="staleness: found -1"):
        ccfl.run_rounds(round_fn, state, make_schedule([[0]], staleness=-1), data)


def test_same_seed_same_run_other_seed_another():
    data, round_fn, _ = setting()
    task, server = softmax_task(), ccfl.cc_fedams(0.1)
    schedule = ccfl.random_schedule(0, 3, 4, 3, max_delay=2)
    ends = [
        ccfl.run_rounds(
            round_fn, ccfl.init_state(task, server, jax.random.key(seed), 4), schedule, data
        )[0].params["w"]
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(ends[0], ends[1])
    assert abs(ends[0] - ends[2]).max() > 1e-3


def test_steps_are_not_unrolled():
    """The program text is as long for 50 local steps as for 5."""
    data, round_fn, state = setting()
    sizes = []
    for work in (5, 50):
        schedule = make_schedule([[0, 1]], work=work)
        slots = jax.tree.map(lambda a: jnp.asarray(a[0]), schedule)
        sizes.append(len(str(jax.make_jaxpr(round_fn)(state, slots, data))))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("rows", "batch_size"), [(1, 1), (1, 9), (7, 3), (12, 4), (13, 12), (60, 59), (60, 70)]
)
def test_evaluate_counts_every_row_once(rows, batch_size):
    rng = np.random.default_rng(rows)
    arrays = {
        "x": rng.normal(size=(rows, 6)).astype(np.float32),
        "y": rng.integers(0, 3, rows).astype(np.int32),
    }
    task = softmax_task()
    params = task.init(jax.random.key(1))
    logits = arrays["x"] @ np.asarray(params["w"], np.float64)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(rows), arrays["y"]]
    found = ccfl.evaluate(task, params, arrays, batch_size)
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == arrays["y"]).mean(), abs=1e-12)


def test_evaluate_weighs_rows_not_batches():
    """Batches of 100, 100 and 3 with mean losses 1, 1 and 10: 230 / 203."""
    task = ccfl.Task(None, None, lambda params, batch, mask: {
        "loss": (jnp.where(mask, batch["x"], 0).sum(), mask.sum())})  # fmt: skip
    arrays = {"x": np.array([1.0] * 200 + [10.0] * 3, np.float32)}
    assert ccfl.evaluate(task, {}, arrays, 100)["loss"] == pytest.approx(230 / 203, rel=1e-9)


@pytest.mark.parametrize(
    ("arrays", "batch_size", "message"),
    [
        (
            {"x": np.zeros((0, 2))},
            10,
            "arrays: expected equal and at least 1, found lengths {'x': 0}",
        ),
        ({"x": np.zeros(3), "y": np.zeros(4)}, 10, "arrays: found lengths {'x': 3, 'y': 4}"),
        ({"x": np.zeros(3)}, 0, "batch_size: expected an integer >= 1, found 0"),
    ],
)
def test_evaluate_refuses(arrays, batch_size, message):
    with pytest.raises(ValueError) as error:
        ccfl.evaluate(softmax_task(), {}, arrays, batch_size)
    assert message in str(error.value)


def test_memory_does_not_grow_with_the_number_of_slots():
    """Uploads add up: 64 slots of a 4 MB model take no more room than 2 (64 uploads are 256 MB)."""
    model_bytes = 4_000_000
    task = ccfl.Task(
        init=lambda key: {"x": jnp.zeros(model_bytes // 4)},
        loss=lambda params, batch, mask, key: (params["x"] ** 2).sum(),
        metrics=lambda params, batch, mask: {},
    )
    server = ccfl.cc_fedams(0.1)
    data, _, _ = federated([1] * 64)
    round_fn = ccfl.build_round(task, server, batch_size=1, lanes=1)
    state = jax.eval_shape(lambda: ccfl.init_state(task, server, jax.random.key(0)))
    room = []
    for slots in (2, 64):
        row = ccfl.Schedule(*(np.zeros(slots, np.int32) for _ in range(3)), np.ones(slots, bool))
        compiled = jax.jit(round_fn).lower(state, row, data).compile()
        room.append(compiled.memory_analysis().temp_size_in_bytes)
    assert room[1] < room[0] + model_bytes
