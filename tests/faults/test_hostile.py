"""Numbers at the edge of what a run can be given: each comes out right, or is refused in a line."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import problems
import pytest
import reference
from problems import CLASSES, FEATURES, federated, make_schedule, softmax_task
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.algorithm import minibatches
from ccfl_jax.engine.run import check_schedule
from ccfl_jax.models import Logistic, TagLogistic
from ccfl_jax.runs import metrics

pytestmark = pytest.mark.usefixtures("quickly_compiled")
BATCH, LOCAL_LR, SERVER_LR = 4, 0.1, 0.05
SERVER, SIZES = ccfl.cc_fedams(SERVER_LR), [0, 9, 1, 0, 1]
TAGS = ccfl.tags_task(TagLogistic(300, 7), (3,), 7)


@cache
def logistic_task(num_classes=CLASSES, features=FEATURES):
    return ccfl.classification_task(Logistic(num_classes), (features,), num_classes)


def start_of(history_length):
    return ccfl.init_state(logistic_task(), SERVER, jax.random.key(3), history_length)


def twin(start, schedule, arrays, lists, unit):
    """Where logistic regression ends, in NumPy and float64, on the features as they are stored."""
    x, y, dense = arrays["x"].astype(np.float64), arrays["y"], start.params["dense"]
    sizes = np.array([len(rows) for rows in lists])

    def visit_batches(t, slot):
        client, work = schedule.client[t, slot], schedule.work[t, slot]
        drawn = problems.drawn_batches(start.key, t, client, 0, sizes[client], BATCH, work, unit)
        return [lists[client][positions] for positions in drawn]

    return reference.simulate(
        "ams",
        {"w": np.asarray(dense["kernel"], float), "b": np.asarray(dense["bias"], float)},
        # The twin knows no client without samples: its slot is left out.
        schedule.replace(present=schedule.present & (sizes[schedule.client] > 0)),
        visit_batches,
        lambda client, model, rows: problems.softmax_gradient(model, x[rows], y[rows]),
        LOCAL_LR,
        lambda t, slot: len(visit_batches(t, slot)),
        lr=SERVER_LR,
    )[-1]


PROGRAM = {
    unit: ccfl.build_round(logistic_task(), SERVER, LOCAL_LR, BATCH, unit, lanes=1)
    for unit in ("epochs", "steps")
}


@pytest.mark.parametrize(
    ("sizes", "schedule", "history_length", "unit", "dtype"),
    [
        (SIZES, ccfl.random_schedule(3, 6, 5, 3, max_delay=50), 51, "epochs", np.float16),
        ([0, 5, 1, 0], make_schedule([[0, 1], [2, 3], [1, 2], [3, 0]], work=3), 1, "steps", "f"),
        ([7], make_schedule([[0]] * 4), 1, "steps", ml_dtypes.bfloat16),
    ],
    ids=["empty, of one sample, delay beyond the run", "empty in steps", "one client, m = K = 1"],
)
def test_the_smallest_federations_are_the_twins(sizes, schedule, history_length, unit, dtype):
    """Data in a short float too: products of 8 or 11 bits would be 1e-3 off.

    In the last round of the second nobody has a sample.
    """
    data, arrays, lists = federated(sizes, dtype=dtype)
    start = start_of(history_length)
    end, info = ccfl.run_rounds(PROGRAM[unit], start, schedule, data)
    expected = twin(start, schedule, arrays, lists, unit)
    for name, ours in (("w", "kernel"), ("b", "bias")):
        np.testing.assert_allclose(end.params["dense"][ours], expected[name], rtol=0, atol=1e-5)
        assert abs(np.asarray(start.params["dense"][ours]) - expected[name]).max() > 0.01
    worked = np.array(sizes)[schedule.client] > 0
    assert worked.all() == (len(sizes) == 1) and worked.any(axis=1).all() == (len(sizes) != 4)
    np.testing.assert_array_equal(info.participants, worked.sum(axis=1))
    np.testing.assert_array_equal(info.present, worked)
    np.testing.assert_array_equal(np.isnan(info.train_loss), ~worked.any(axis=1))
    assert not np.any(info.rejected)


@pytest.mark.parametrize(
    ("dtype", "start", "step"), [(jnp.float16, 60_000, 4096), (jnp.bfloat16, 3e38, 2.0**124)]
)
def test_a_short_float_that_overflows_is_a_rejected_upload(dtype, start, step):
    """Once more the step, and the end model is beyond the greatest number of its dtype."""
    task = ccfl.Task(
        lambda key: jnp.asarray(start, dtype),
        lambda params, batch, mask, key: -params * jnp.asarray(step, dtype),
        lambda params, batch, mask: {},
    )
    server = ccfl.cc_fedsgd(1.0)
    round_fn = ccfl.build_round(task, server, 1.0, 1, "steps")
    first = ccfl.init_state(task, server, jax.random.key(0))
    start = float(first.params)
    assert start + 2 * step > float(jnp.finfo(dtype).max) > start + step
    schedule = make_schedule([[0], [0], [0]])
    end, info = ccfl.run_rounds(round_fn, first, schedule, problems.one_row_data())
    assert float(end.params) == start + step
    np.testing.assert_array_equal(info.participants, [1, 0, 0])
    np.testing.assert_array_equal(info.rejected, [0, 1, 1])


def test_hits_of_an_evaluation_are_counted_beyond_2_to_the_24():
    def metrics(params, batch, mask):
        return {"accuracy": (jnp.where(mask, batch["x"], 0).sum(dtype=jnp.float32), mask.sum())}

    task, rows = ccfl.Task(None, None, metrics), 2**24 + 3
    for wrong in (0, 1):
        x = (np.arange(rows) >= wrong).astype(np.uint8)
        assert ccfl.evaluate(task, {}, {"x": x}, rows)["accuracy"] == (rows - wrong) / rows


def test_a_clients_rows_begin_beyond_2_to_the_24():
    """At 2^24 + 1, which is no float32, right behind all those of a client of row 0; the loss is x
    times the mean of the batch's values."""

    def loss(params, batch, mask, key):
        return params["x"] * jnp.where(mask, batch["v"], 0.0).sum() / mask.sum()

    big = 2**24 + 1
    indices = np.zeros(big + 3, np.int32)
    indices[big:] = [1, 2, 3]
    arrays = {"v": np.array([100.0, 1.0, 2.0, 4.0], np.float32)}
    data = ccfl.FederatedData.from_offsets(arrays, indices, np.array([0, big, big + 3]))
    task = ccfl.Task(lambda key: {"x": jnp.zeros(())}, loss, lambda params, batch, mask: {})
    server = ccfl.cc_fedavg()
    round_fn = ccfl.build_round(task, server, 1.0, BATCH)
    start = ccfl.init_state(task, server, jax.random.key(0))
    end, info = ccfl.run_rounds(round_fn, start, make_schedule([[1]]), data)
    assert float(end.params["x"]) == pytest.approx(-(1 + 2 + 4) / 3) and info.samples[0, 0] == 3


def test_shuffles_of_huge_clients_stay_shuffles():
    permute, seeds = jax.jit(minibatches.permute), minibatches.shuffle_seeds(jax.random.key(0))
    for size in (2**24 + 1, 2**31 - 1):
        places = np.r_[0:2048, size - 2048 : size].astype(np.int32)
        found = np.asarray(permute(seeds, places, np.int32(size)))
        assert len({*found.tolist()}) == 4096 and found.min() >= 0 and found.max() < size


@pytest.mark.parametrize(
    ("classes", "dtype", "label", "legal"),
    [
        (10, np.uint8, 9, True), (10, np.uint8, 10, False), (10, np.int8, -1, False),
        (256, np.uint8, 255, True), (200, np.int8, 127, True), (10, np.uint32, 2**32 - 1, False),
    ],
)  # fmt: skip
def test_labels_at_the_edge_of_their_dtype(classes, dtype, label, legal):
    """Of the features only the first is not 0: the logits are the first row of the weights."""
    kernel = np.random.default_rng(0).normal(size=(2, classes)).astype("f")
    params = {"dense": {"kernel": kernel, "bias": np.zeros(classes, "f")}}
    arrays = {"x": np.array([[1, 0]] * 2, np.float32), "y": np.array([0, label]).astype(dtype)}
    logits = kernel[0].astype(float)
    found = ccfl.evaluate(logistic_task(classes, 2), params, arrays)
    both = [logits[0], logits[label] if legal else np.nan]
    expected = np.log(np.exp(logits).sum()) - np.mean(both)
    assert found["loss"] == pytest.approx(expected, rel=1e-5, nan_ok=True)
    assert found["accuracy"] == np.mean([logits.argmax() == 0, logits.argmax() == label])


def test_an_upload_learnt_from_an_illegal_label_is_rejected():
    """All those of client 1, beside client 2."""
    _, arrays, lists = federated([0, 5, 1, 0])
    arrays["y"][lists[1]] = 255
    data = ccfl.FederatedData.from_indices(arrays, lists)
    schedule = make_schedule([[2, 1], [1, 1], [2, 2], [2, 2]])
    end, info = ccfl.run_rounds(PROGRAM["steps"], start_of(1), schedule, data)
    np.testing.assert_array_equal(info.participants, [1, 0, 2, 2])
    np.testing.assert_array_equal(info.rejected, [1, 2, 0, 0])
    assert np.isfinite(end.params["dense"]["kernel"]).all()


def test_word_ids_and_tags_of_any_integer_dtype():
    """As the same numbers in int32; the largest unsigned one is no word, and no padding either."""
    params = jax.jit(TAGS.init)(jax.random.key(0))
    x, y = np.array([[1, 2, 120], [0, 0, 5]]), np.array([[1, 2], [6, 0]])

    def found(dtype):
        return ccfl.evaluate(TAGS, params, {"x": x.astype(dtype), "y": y.astype(dtype)})

    expected = found(np.int32)
    assert math.isfinite(expected["loss"]) and found(np.uint8) == expected == found(np.uint32)
    x[0, 0] = np.iinfo(np.uint32).max
    assert np.isnan([*found(np.uint32).values()]).all()


def spoilt(params, number):
    leaves, tree = jax.tree.flatten(params)
    return tree.unflatten([leaves[0].at[(0,) * leaves[0].ndim].set(number), *leaves[1:]])


@pytest.mark.parametrize("kind", ["own", "classes", "tags"])
def test_a_model_that_is_not_finite_has_no_metric(kind, tmp_path):
    """Whatever its task makes of it; one of three trials, and the row of a run."""
    x, y = np.ones((8, FEATURES), np.float32), np.zeros(8, np.int32)
    task = softmax_task() if kind == "own" else logistic_task()
    if kind == "tags":
        task, x, y = TAGS, np.ones((2, 3), np.int32), np.full((2, 2), 2, np.int32)
    good = jax.jit(task.init)(jax.random.key(0))
    for number in (np.nan, np.inf, -np.inf):
        bad = spoilt(good, number)
        found = ccfl.evaluate(task, bad, {"x": x, "y": y})
        assert all(math.isnan(value) for value in found.values()) and len(found) == 2
        stacked = jax.tree.map(lambda *a: jnp.stack(a), good, bad, good)
        for values in ccfl.evaluate_trials(task, stacked, {"x": x, "y": y}).values():
            assert np.isnan(values).tolist() == [False, True, False]
        (row,) = metrics.append_rows(tmp_path, [metrics.first_row(found, 0.5)])
        assert [row[f"test_{name}"] for name in found] == [None, None]


def test_logits_that_overflow_are_no_hit_and_minus_infinity_is_a_number():
    """Logits 1e38 times the features, in batches of one row."""
    rows = {"x": np.array([[9, 0, 0], [0, -9, 1]], np.float32), "y": np.array([0, 2])}
    params = {"dense": {"kernel": 1e38 * np.eye(3, dtype="f"), "bias": np.zeros(3, "f")}}
    task = logistic_task(3, 3)
    assert math.isnan(ccfl.evaluate(task, params, rows, 1)["accuracy"])
    only = {name: array[1:] for name, array in rows.items()}
    assert ccfl.evaluate(task, params, only, 1) == {"accuracy": 1.0, "loss": 0.0}


def test_schedules_of_any_integer_dtype_run_in_pieces():
    """The program of the first of the smallest federations."""
    schedule = ccfl.random_schedule(0, 300, 5, buffer_size=3, max_delay=2)
    data, _, _ = federated(SIZES, dtype=np.float16)
    ends, early = [], "schedule: expected a staleness of at most 0 in round 0 ..., found 1"
    for dtype in (np.int32, np.uint8, np.uint16, np.uint32, np.uint64, np.int64):
        cast = {n: getattr(schedule, n).astype(dtype) for n in ("client", "staleness", "work")}
        same = schedule.replace(**cast)
        check_schedule(same.rounds(290, 300), 5, 290, np.arange(288, 291))
        staler = same.replace(staleness=np.ones((300, 3), dtype))
        refused(early, check_schedule, staler, 5, 0, np.arange(3))
        state = start_of(51)
        for piece in (same.rounds(0, 2), same.rounds(2, 4)):
            state, _ = ccfl.run_rounds(PROGRAM["epochs"], state, piece, data)
        ends.append(state.params)
        problems.assert_trees_equal(ends[-1], ends[0])
