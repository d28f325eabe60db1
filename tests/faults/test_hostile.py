"""Numbers at the edge of what a run can be given: each comes out right, or is refused in a line."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import reference
from problems import (
    CLASSES,
    FEATURES,
    drawn_batches,
    federated,
    make_schedule,
    one_row_data,
    softmax_gradient,
    softmax_task,
)

import ccfl_jax as ccfl
from ccfl_jax.algorithm import minibatches
from ccfl_jax.engine.run import check_schedule
from ccfl_jax.models import Logistic, TagLogistic
from ccfl_jax.runs import metrics
from experiments.config import run_flags
from experiments.training import parts

BATCH, LOCAL_LR, SERVER_LR = 4, 0.1, 0.05


def logistic_task(num_classes=CLASSES, features=FEATURES):
    return ccfl.classification_task(Logistic(num_classes), (features,), num_classes)


def run(task, data, schedule, history_length, unit="epochs"):
    server = ccfl.cc_fedams(SERVER_LR)
    round_fn = ccfl.build_round(task, server, LOCAL_LR, BATCH, unit)
    start = ccfl.init_state(task, server, jax.random.key(3), history_length)
    return start, *ccfl.run_rounds(round_fn, start, schedule, data)


def twin(start, schedule, arrays, lists, unit):
    """Where logistic regression ends, in NumPy and float64, on the features as they are stored."""
    x, y = arrays["x"].astype(np.float64), arrays["y"]
    sizes = np.array([len(rows) for rows in lists])

    def steps(t, slot):
        per_unit = math.ceil(sizes[schedule.client[t, slot]] / BATCH) if unit == "epochs" else 1
        return schedule.work[t, slot] * per_unit

    def visit_batches(t, slot):
        client, work = schedule.client[t, slot], schedule.work[t, slot]
        drawn = drawn_batches(start.key, t, client, 0, sizes[client], BATCH, work, unit)
        return [lists[client][positions] for positions in drawn]

    dense = start.params["dense"]
    model = {"w": np.asarray(dense["kernel"], float), "b": np.asarray(dense["bias"], float)}
    # The twin knows no client without samples: its slot is left out.
    present = schedule.present & (sizes[schedule.client] > 0)
    return reference.simulate(
        "ams",
        model,
        schedule._replace(present=present),
        visit_batches,
        lambda client, model, rows: softmax_gradient(model, x[rows], y[rows]),
        LOCAL_LR,
        steps,
        lr=SERVER_LR,
    )[-1]


@pytest.mark.parametrize(
    ("sizes", "schedule", "history_length", "unit", "dtype"),
    [
        ([0, 9, 1, 0, 1], ccfl.random_schedule(3, 6, 5, 3, max_delay=50), 51, "epochs", np.float16),
        ([0, 5, 1, 0], make_schedule([[0, 1], [2, 3], [1, 2], [3, 0]], work=3), 1, "steps", "f"),
        ([7], make_schedule([[0]] * 4), 1, "steps", ml_dtypes.bfloat16),
    ],
    ids=["empty, of one sample, delay beyond the run", "empty in steps", "one client, m = K = 1"],
)
def test_the_smallest_federations_are_the_twins(sizes, schedule, history_length, unit, dtype):
    """Data in a short float too: products of 8 or 11 bits would be 1e-3 off."""
    data, arrays, lists = federated(sizes, dtype=dtype)
    start, end, info = run(logistic_task(), data, schedule, history_length, unit)
    expected = twin(start, schedule, arrays, lists, unit)
    for name, ours in (("w", "kernel"), ("b", "bias")):
        np.testing.assert_allclose(end.params["dense"][ours], expected[name], rtol=0, atol=1e-5)
        assert abs(np.asarray(start.params["dense"][ours]) - expected[name]).max() > 0.01
    worked = np.array(sizes)[schedule.client] > 0
    assert worked.all() == (len(sizes) == 1)
    np.testing.assert_array_equal(info.participants, worked.sum(axis=1))
    np.testing.assert_array_equal(info.present, worked)


@pytest.mark.parametrize(
    ("dtype", "start", "step"), [(jnp.float16, 60_000, 4096), (jnp.bfloat16, 3e38, 2.0**124)]
)
def test_a_short_float_that_overflows_is_a_rejected_upload(dtype, start, step):
    """Once more the step, and the end model is beyond the greatest number of its dtype."""
    task = ccfl.Task(
        init=lambda key: {"x": jnp.asarray(start, dtype)},
        loss=lambda params, batch, mask, key: -params["x"] * jnp.asarray(step, dtype),
        metrics=lambda params, batch, mask: {},
    )
    server = ccfl.cc_fedsgd(1.0)
    round_fn = ccfl.build_round(task, server, 1.0, 1, "steps")
    first = ccfl.init_state(task, server, jax.random.key(0))
    start = float(first.params["x"])
    assert start + 2 * step > float(jnp.finfo(dtype).max) > start + step
    schedule = make_schedule([[0], [0], [0]])
    end, info = ccfl.run_rounds(round_fn, first, schedule, one_row_data())
    assert float(end.params["x"]) == start + step
    np.testing.assert_array_equal(info.participants, [1, 0, 0])
    np.testing.assert_array_equal(info.rejected, [0, 1, 1])


def test_clients_without_any_sample_make_no_step():
    data, _, _ = federated([0, 0, 1])
    start, end, info = run(logistic_task(), data, make_schedule([[0, 1], [1, 0]]), 1)
    for before, after in zip(*map(jax.tree.leaves, (start.params, end.params)), strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(info.participants, [0, 0])
    assert np.isnan(info.train_loss).all() and not np.any(info.rejected)


@pytest.mark.parametrize("wrong", [0, 1])
def test_hits_of_an_evaluation_are_counted_beyond_2_to_the_24(wrong):
    rows = 2**24 + 3

    def metrics(params, batch, mask):
        return {"accuracy": (jnp.where(mask, batch["x"], 0).sum(dtype=jnp.float32), mask.sum())}

    task = ccfl.Task(None, None, metrics)
    x = np.ones(rows, np.uint8)
    x[:wrong] = 0
    assert ccfl.evaluate(task, {}, {"x": x}, rows)["accuracy"] == (rows - wrong) / rows


def test_a_clients_rows_begin_beyond_2_to_the_24():
    """At 2^24 + 1, which is no float32, right behind all those of a client of row 0."""
    big = 2**24 + 1
    indices = np.zeros(big + 3, np.int32)
    indices[big:] = [1, 2, 3]
    arrays = {"v": np.array([100.0, 1.0, 2.0, 4.0], np.float32)}
    data = ccfl.FederatedData.from_offsets(arrays, indices, np.array([0, big, big + 3]))
    task = ccfl.Task(
        init=lambda key: {"x": jnp.zeros(())},
        loss=lambda params, batch, mask, key: params["x"] * jnp.where(mask, batch["v"], 0).sum(),
        metrics=lambda params, batch, mask: {},
    )
    round_fn = ccfl.build_round(task, ccfl.cc_fedavg(), 1.0, BATCH, normalise="none")
    start = ccfl.init_state(task, ccfl.cc_fedavg(), jax.random.key(0))
    end, info = ccfl.run_rounds(round_fn, start, make_schedule([[1]]), data)
    assert float(end.params["x"]) == -(1 + 2 + 4) and info.samples[0, 0] == 3


@pytest.mark.parametrize("size", [2**24 + 1, 2**31 - 1])
def test_shuffles_of_huge_clients_stay_shuffles(size):
    seeds = minibatches.shuffle_seeds(jax.random.key(0))
    places = jnp.asarray(np.r_[0:2048, size - 2048 : size], jnp.int32)
    found = np.asarray(minibatches.permute(seeds, places, jnp.int32(size)))
    assert len(set(found.tolist())) == 4096 and found.min() >= 0 and found.max() < size


@pytest.mark.parametrize(
    ("classes", "dtype", "label", "legal"),
    [
        (10, np.uint8, 9, True),
        (10, np.uint8, 10, False),
        (10, np.int8, -1, False),
        (256, np.uint8, 255, True),
        (300, np.uint8, 255, True),
        (200, np.int8, 127, True),
        (10, np.uint32, 2**32 - 1, False),
    ],
)
def test_labels_at_the_edge_of_their_dtype(classes, dtype, label, legal):
    """Weights as drawn, features 0 but the first: the logits are a row of the weights."""
    task = logistic_task(classes, 2)
    params = task.init(jax.random.key(0))
    arrays = {"x": np.array([[1, 0]] * 2, np.float32), "y": np.array([0, label]).astype(dtype)}
    logits = np.asarray(params["dense"]["kernel"][0], np.float64)
    found = ccfl.evaluate(task, params, arrays)
    both = [logits[0], logits[label] if legal else np.nan]
    expected = np.log(np.exp(logits).sum()) - np.mean(both)
    assert found["loss"] == pytest.approx(expected, rel=1e-5, nan_ok=True)
    assert found["accuracy"] == np.mean([logits.argmax() == 0, logits.argmax() == label])


def test_an_upload_learnt_from_an_illegal_label_is_rejected():
    arrays = {"x": np.ones((2, 2), np.float32), "y": np.array([0, 255], np.uint8)}
    data = ccfl.FederatedData.from_indices(arrays, [[0], [1]])
    _, end, info = run(logistic_task(10, 2), data, make_schedule([[0, 1], [1, 1]]), 1)
    np.testing.assert_array_equal(info.participants, [1, 0])
    np.testing.assert_array_equal(info.rejected, [1, 2])
    assert np.isfinite(end.params["dense"]["kernel"]).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_word_ids_and_tags_of_any_integer_dtype(dtype):
    """As the same numbers in int32; the largest unsigned one is no word, and no padding either."""
    task = ccfl.tags_task(TagLogistic(300, 7), (3,), 7)
    params = task.init(jax.random.key(0))
    x, y = np.array([[1, 2, 120], [0, 0, 5]]), np.array([[1, 2], [6, 0]])
    expected = ccfl.evaluate(task, params, {"x": x.astype(np.int32), "y": y.astype(np.int32)})
    assert math.isfinite(expected["loss"])
    assert ccfl.evaluate(task, params, {"x": x.astype(dtype), "y": y.astype(dtype)}) == expected
    if dtype != np.uint8:
        x[0, 0] = np.iinfo(dtype).max
        found = ccfl.evaluate(task, params, {"x": x.astype(dtype), "y": y.astype(dtype)})
        assert np.isnan(found["loss"]) and np.isnan(found["recall_at_5"])


def spoilt(params, number):
    leaves, tree = jax.tree.flatten(params)
    return tree.unflatten([leaves[0].at[(0,) * leaves[0].ndim].set(number), *leaves[1:]])


@pytest.mark.parametrize("kind", ["own", "classes", "tags"])
def test_a_model_that_is_not_finite_has_no_metric(kind, tmp_path):
    """Whatever its task makes of it; one of three trials, and the row of a run."""
    x, y = np.ones((8, FEATURES), np.float32), np.zeros(8, np.int32)
    task = softmax_task() if kind == "own" else logistic_task()
    if kind == "tags":
        task = ccfl.tags_task(TagLogistic(5, 7), (3,), 7)
        x, y = np.ones((8, 3), np.int32), np.full((8, 1), 2, np.int32)
    good = task.init(jax.random.key(0))
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
    class Fixed(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x * self.param("scale", nn.initializers.ones_init(), ()) * 1e38

    task = ccfl.classification_task(Fixed(), (3,), 3)
    rows = {"x": np.array([[9, 0, 0], [0, -9, 1]], np.float32), "y": np.array([0, 2])}
    found = ccfl.evaluate(task, {"scale": jnp.ones(())}, rows)
    assert math.isnan(found["accuracy"])
    only = {name: array[1:] for name, array in rows.items()}
    assert ccfl.evaluate(task, {"scale": jnp.ones(())}, only) == {"accuracy": 1.0, "loss": 0.0}


def test_schedules_of_any_integer_dtype_run_in_pieces():
    schedule = ccfl.random_schedule(0, 300, 3, buffer_size=2, max_delay=2)
    data, _, _ = federated([3, 2, 4])
    task, server = softmax_task(), ccfl.cc_fedams(SERVER_LR)
    round_fn = ccfl.build_round(task, server, LOCAL_LR, BATCH)
    start = ccfl.init_state(task, server, jax.random.key(0), 3)
    ends = []
    for dtype in (np.int32, np.uint8, np.uint16, np.uint32, np.uint64, np.int64):
        cast = {n: getattr(schedule, n).astype(dtype) for n in ("client", "staleness", "work")}
        same = schedule.replace(**cast)
        check_schedule(same.rounds(290, 300), 3, 290, np.arange(288, 291))
        with pytest.raises(ValueError, match=r"expected 0 to 0, found staleness 1 in round 0"):
            check_schedule(same._replace(staleness=np.ones((300, 2), dtype)), 3, 0, np.arange(3))
        state = start
        for piece in (same.rounds(0, 2), same.rounds(2, 6)):
            state, _ = ccfl.run_rounds(round_fn, state, piece, data)
        ends.append(np.asarray(state.params["w"]))
    for end in ends[1:]:
        np.testing.assert_array_equal(ends[0], end)


ONE = {"x": np.zeros((2, FEATURES), np.float32)}


def evaluated(y, **changes):
    task = logistic_task()
    return ccfl.evaluate(task, task.init(jax.random.key(0)), {**ONE, **changes, "y": y})


def owners(*args):
    config = run_flags.parse(["x", "--dataset=digits", "--model=mlp", "--server_lr=1", *args])
    return parts.owners(config, {"y": np.zeros(1437, np.int32)})


def first_state(*args):
    config = run_flags.parse(["x", "--dataset=digits", "--model=mlp", "--server_lr=1", *args])
    history = config.max_delay + 1
    return parts.first_state(
        config, logistic_task(), history, parts.rates(config), jax.random.key(0)
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluated(np.zeros(2)), "y: expected integers [B], found float32 (2,)"),
        (lambda: evaluated(np.zeros((2, 1), int)), "y: expected integers [B], found int32 (2, 1)"),
        (lambda: evaluated(np.array([0, 2**32 + 1])), "'y': expected , found values 0 to "
                                                      "4294967297"),
        (lambda: evaluated(np.zeros(2, int), x=np.full((2, FEATURES), -1e300)),
         "'x': expected those of float32, found values -1e+300 to 0.0"),
        (lambda: ccfl.FederatedData.from_indices({"x": np.array([np.inf, 4e38])}, [[0]]),
         "'x': expected those of float32, found values 0.0 to 4e+38"),
        (lambda: ccfl.FederatedData.from_indices({"x": np.zeros(2, np.longdouble)}, [[0]]),
         "'x': expected bools or numbers of up to 64 bits, found dtype float128"),
        (lambda: ccfl.init_state(softmax_task(), ccfl.cc_fedavg(), jax.random.key(0), 2.5),
         "history_length: expected an integer >= 1, found 2.5"),
        (lambda: ccfl.random_schedule(0, 1, 2**31), "num_clients: expected a , found 2147483648"),
        (lambda: ccfl.partition_natural(np.array([2**62])), f"client_ids: found {2**62} to "),
        (lambda: ccfl.cc_fedams(0.1, eps=1e-40, initial_accumulator=1e-45),
         "eps: expected one of them at least 1.2e-38, found 1e-40 with initial_accumulator 1e-45"),
        (lambda: owners("--local_epochs=900000", "--randomness=2", "--partition=iid",
                        "--num_clients=1", "--buffer_size=1"),
         f"--local_epochs: expected at most {(2**31 - 1) // 1437 // 2}, found 900000 with "
         "--randomness=2 and 1437 samples each"),
        (lambda: owners("--local_steps=90000000", "--randomness=1.5", "--partition=iid"),
         "--local_steps: expected at most , found 90000000 with --randomness=1.5 and 20 samples each"),
        (lambda: first_state("--max_delay=2147483647"), "--max_delay: expected up, found "
                                                        "2147483647"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused_in_a_line(call, message):
    with pytest.raises(ValueError) as refused:
        call()
    assert message in str(refused.value) and "\n" not in str(refused.value)
