"""Faults people met in other simulators: the right value of those that no module's test holds.

`README.md` beside this file lists every case by its id. Here: the server, local work, asynchrony,
metrics and numerics; data and whole runs are in `test_field_cases_data.py` and `_runs.py`.
"""

import ast
import re
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from problems import (
    counting,
    make_schedule,
    mesh_of,
    one_row_data,
    quadratic_task,
    slope_task,
    softmax_task,
    values_of,
    values_task,
)

import ccfl_jax as ccfl
from ccfl_jax.models import Conv, TagLogistic
from ccfl_jax.models.resnet import _norm

HERE = Path(__file__).parents[1]
NUMBERS = {
    "PT": (3, 4, 6, 7, 9, 10, 11, 12),
    "SO": (4, 5, 6, 8, 9, 10, 11, 13),
    "LT": (1, 2, 6, 7, 8, 9, 11, 13),
    "AS": (4, 5, 6, 7, 8, 10, 11, 12),
    "RR": (2, 4, 5, 6, 8, 9, 11, 12),
    "MC": (2, 3, 4, 5, 7, 8, 9, 10),
    "ME": (2, 3, 4, 7, 9),
    "NU": (3, 4, 5, 6, 7, 9, 10),
    "MD": (2, 4, 5, 7, 8),
    "CF": (3, 4, 6, 7, 8),
    "DS": (2, 3, 6, 7),
}
IDS = [f"{kind}-{number:02d}" for kind, numbers in NUMBERS.items() for number in numbers]


def listed():
    """The id of each row of the README's tables, and the text after it."""
    return re.findall(r"^\| ([A-Z]{2}-\d\d) \| (.+) \|$", (HERE / "README.md").read_text(), re.M)


def test_every_case_is_listed_once_and_in_order():
    assert [name for name, _ in listed()] == IDS


def test_every_test_that_the_list_names_exists():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (HERE / "README.md").read_text())
    assert len(named) > len(IDS)
    for file, name in named:
        functions = [
            node.name
            for node in ast.parse((HERE / file).read_text()).body
            if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions, f"{file}::{name}"


def test_every_case_has_a_test_or_a_decision():
    for name, row in listed():
        case, thread, held = row.split(" | ")
        assert case and re.fullmatch(r"\S+/\S+#\d+(, \S+/\S+#\d+)*", thread), name
        assert ".py::test_" in held or held.startswith("Decision: "), name


def run(task, schedule, data, server=None, length=1, mesh=None, **how):
    """The last model and the rounds' infos; by default the server takes the mean upload off."""
    server = server or ccfl.cc_fedavg()
    round_fn = ccfl.build_round(task, server, mesh=mesh, **how)
    state = ccfl.init_state(task, server, jax.random.key(0), length)
    if mesh:
        data, state = jax.device_put((data, state), NamedSharding(mesh, PartitionSpec()))
    state, info = ccfl.run_rounds(round_fn, state, schedule, data)
    return state.params, info


def test_so_13_each_upload_that_is_there_counts_the_same():
    """Uploads 1 and 0, each there half the time: both give 1/2; by sizes 1 and 9 it were 0.1."""
    there = np.random.default_rng(0).random((10_000, 2)) < 0.5
    aggregate, params = ccfl.mean(), {"x": jnp.zeros(())}

    def combine(counted):
        total = aggregate.add(aggregate.start(params), {"x": jnp.array([1.0, 0.0])}, counted)
        return aggregate.finish(total, counted.sum(dtype=jnp.int32), ())[0]["x"]

    found = np.asarray(jax.jit(jax.vmap(combine))(there))
    assert set(found[there.all(axis=1)]) == {0.5}
    assert set(found[there[:, 0] & ~there[:, 1]]) == {1.0}
    assert set(found[~there[:, 0]]) == {0.0}


def test_lt_06_a_lane_that_blows_up_leaves_the_others_alone():
    """f = c x^2 / 2 at x = 1, rate 0.1, K 1, 1 and 50; with c = 1e7 client 2 steps at rate 1e6."""
    task = quadratic_task()._replace(
        loss=lambda params, batch, mask, key: batch["v"][0] * params["x"] ** 2 / 2
    )
    data = values_of([1.0], [2.0], [1e7])
    how = {"local": 0.1, "work_unit": "steps", "normalise": "none"}
    together, info = run(task, make_schedule([[0, 1, 2]], work=[[1, 1, 50]]), data, lanes=3, **how)
    apart, _ = run(task, make_schedule([[0, 1]]), data, lanes=1, **how)
    assert apart["x"] == pytest.approx((0.9 + 0.8) / 2, rel=1e-6)
    assert together["x"] == pytest.approx(float(apart["x"]), rel=1e-6)
    assert (info.rejected[0], info.participants[0], np.isfinite(info.train_loss[0])) == (1, 2, True)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("optimiser", [lambda rate: rate, optax.sgd], ids=["rate", "optimiser"])
def test_lt_08_a_local_schedule_follows_the_round(optimiser, lanes):
    """Rate 0.1 / 2^t, gradient 1, K = 1, there in rounds 0 and 2: 0.1 and 0.025, not 0.05."""
    schedule, data = make_schedule([[0, 1]] * 3, present=[[True, False]] * 3), one_row_data(2)
    schedule.present[1] = False
    local = lambda t: optimiser(optax.exponential_decay(0.1, 1, 0.5)(t))  # noqa: E731
    round_fn = ccfl.build_round(slope_task(), ccfl.cc_fedavg(), local, lanes=lanes)
    counted, traces = counting(round_fn)
    state = ccfl.init_state(slope_task(), ccfl.cc_fedavg(), jax.random.key(0))
    places, compiled = [0.0], []
    for t in range(3):
        state, _ = ccfl.run_rounds(counted, state, schedule.rounds(t, t + 1), data)
        places.append(float(state.params["x"]))
        compiled.append(len(traces))
    np.testing.assert_allclose(-np.diff(places), [0.1, 0, 0.025], rtol=1e-6)
    assert compiled == [compiled[0]] * 3


def test_lt_09_uploads_weigh_neither_by_batches_nor_by_samples():
    """64 samples of 1 and 65 of 0 in batches of 32: 1/2. By samples 64/129, by batches 2/5."""
    data = values_of(np.ones(64), np.zeros(65))
    end, info = run(values_task(), make_schedule([[0, 1]]), data, local=1.0, batch_size=32)
    assert end["x"] == pytest.approx(-1 / 2, rel=1e-6)
    np.testing.assert_array_equal(info.steps, [[2, 3]])


def test_lt_09_a_clients_loss_weighs_its_samples():
    """Batches of 32, 32 and 1 at a model that stands still: the mean over the 65 samples."""
    values = np.random.default_rng(0).normal(5, 3, 65)
    task = values_task()._replace(init=lambda key: {"x": jnp.ones(())})
    _, info = run(task, make_schedule([[0]]), values_of(values), local=0.0, batch_size=32)
    assert info.train_loss[0] == pytest.approx(values.mean(), rel=1e-5)


def test_lt_13_an_epoch_is_all_of_its_batches():
    data = values_of(np.ones(100))
    _, info = run(values_task(), make_schedule([[0]]), data, batch_size=10, work_unit="epochs")
    assert (info.steps[0, 0], info.samples[0, 0]) == (10, 100)


def test_as_07_staleness_is_no_weight():
    """Five uploads of 1, of staleness 0 to 4: 1. With (1 + s)^-1/2 over the count, 0.646334."""
    there = [[False] * 5] * 4 + [[True] * 5]
    staleness = [[0] * 5] * 4 + [[0, 1, 2, 3, 4]]
    schedule = make_schedule([range(5)] * 5, staleness, present=there)
    end, _ = run(slope_task(), schedule, one_row_data(5), length=5, local=1.0)
    assert end["x"] == pytest.approx(-1.0, rel=1e-6)


def test_as_08_staleness_is_counted_from_the_download():
    """f = x^2/2, rate 0.1: what downloads x_2 and lands on x_5 takes 0.1 x_2 off, staleness 3."""
    schedule = make_schedule([[0]] * 6, staleness=[[0]] * 5 + [[3]])
    end, info = run(quadratic_task(), schedule, one_row_data(), length=4, local=0.1)
    assert end["x"] == pytest.approx(0.9**5 - 0.1 * 0.9**2, rel=1e-6)
    assert info.staleness[5, 0] == 3


@pytest.mark.parametrize("lands", [True, False])
def test_as_10_an_upload_that_never_lands_is_dropped_and_not_counted(lands):
    """Client 1 downloads x_1 and is due in round 3, beside client 0, who is always there."""
    schedule = make_schedule(
        [[0, 1]] * 4,
        staleness=[[0, 0]] * 3 + [[0, 2]],
        present=[[True, False]] * 3 + [[True, lands]],
    )
    end, info = run(quadratic_task(), schedule, one_row_data(2), length=3, local=0.1)
    x_1, x_3 = 0.9, 0.9**3
    mean = (x_3 + x_1) / 2 if lands else x_3
    assert end["x"] == pytest.approx(x_3 - 0.1 * mean, rel=1e-6)
    np.testing.assert_array_equal(info.participants, [1, 1, 1, 1 + lands])
    np.testing.assert_array_equal(info.present[3], [True, lands])
    assert info.rejected.sum() == 0


class SmallCNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(Conv(4, (2, 2))(x)).reshape(len(x), -1))


def test_mc_04_convolutions_of_clients_together_are_those_of_each():
    """Ten clients of a small CNN, all at once and one after another."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(60, 5, 5, 1)).astype("f"), "y": rng.integers(0, 3, 60)}
    data = ccfl.FederatedData.from_indices(arrays, list(np.arange(60).reshape(10, 6)))
    task, server = ccfl.classification_task(SmallCNN(), (5, 5, 1), 3), ccfl.cc_fedavg()
    ends = []
    for lanes in (10, 1):
        round_fn = ccfl.build_round(task, server, 0.1, 4, "steps", lanes=lanes)
        state = ccfl.init_state(task, server, jax.random.key(0))
        schedule = make_schedule([range(10)] * 2, work=[range(1, 11)] * 2)
        ends.append(ccfl.run_rounds(round_fn, state, schedule, data)[0].params)
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_mc_09_donated_buffers_are_not_read_again():
    """f = x^2/2, rate 0.1, staleness up to 3, each round evaluated and its state given away."""
    task = quadratic_task()._replace(
        metrics=lambda params, batch, mask: {"x": (params["x"], mask.sum())}
    )
    server, data = ccfl.cc_fedavg(), one_row_data()
    round_fn = ccfl.build_round(task, server, 0.1)
    staleness = [min(t, 3) for t in range(8)]
    schedule = make_schedule([[0]] * 8, staleness=[[s] for s in staleness])
    state = ccfl.init_state(task, server, jax.random.key(0), history_length=4)
    models = [1.0]
    for t, s in enumerate(staleness):
        state, _ = ccfl.run_rounds(round_fn, state, schedule.rounds(t, t + 1), data, donate=True)
        models.append(models[t] - 0.1 * models[t - s])
        found = ccfl.evaluate(task, state.params, data.arrays)["x"]
        assert found == pytest.approx(models[-1], rel=1e-6)


def test_me_03_test_metrics_weigh_rows_and_train_metrics_uploads():
    """1 row that is right and 99 that are not: 0.01 for all rows; 1/2 over the two uploads."""
    arrays = {"x": np.zeros((100, 6), "f"), "y": np.array([0] + [1] * 99)}
    data = ccfl.FederatedData.from_indices(arrays, [[0], np.arange(1, 100)])
    first_class = {"w": jnp.zeros((6, 3)), "b": jnp.array([1.0, 0.0, 0.0])}
    task = softmax_task()._replace(init=lambda key: first_class)
    _, info = run(task, make_schedule([[0, 1]]), data, local=0.0)
    assert info.train_metrics["accuracy"][0] == 0.5
    assert ccfl.evaluate(task, first_class, arrays, 7)["accuracy"] == 0.01


def test_me_07_precision_is_pooled_over_batches_and_clients():
    """TP 1 of 1 predicted, and TP 9 of 18: 10/19; the mean of both precisions is 0.75."""
    task = ccfl.Task(None, None, lambda params, batch, mask: {
        "precision": ((mask * batch["hit"]).sum(), (mask * batch["predicted"]).sum())})  # fmt: skip
    predicted = np.array([1] + [0] * 9 + [1] * 18 + [0])
    hit = np.array([1] + [0] * 9 + [1] * 9 + [0] * 10)
    found = ccfl.evaluate(task, {}, {"hit": hit, "predicted": predicted}, 10)
    assert found["precision"] == pytest.approx(10 / 19, rel=1e-9)


def test_me_09_recall_of_constant_logits_is_exact():
    """Ten tags, each that of a hundred of the thousand texts: the five lowest are recalled."""
    task = ccfl.tags_task(TagLogistic(2, 10), (1,), 10)
    params = {"table": jnp.zeros((2, 10)), "bias": jnp.zeros(10)}
    arrays = {"x": np.zeros((1000, 1), np.int32), "y": np.arange(1000)[:, None] % 10}
    assert ccfl.evaluate(task, params, arrays, 300)["recall_at_5"] == 0.5


def test_nu_03_clipping_nothing_gives_nothing():
    delta = {"x": jnp.zeros(3)}
    server = optax.chain(optax.clip_by_global_norm(1.0), ccfl.cc_fedams(0.1))
    updates, _ = server.update(delta, server.init(delta), delta)
    np.testing.assert_array_equal(updates["x"], np.zeros(3))


@pytest.mark.parametrize("method", [ccfl.cc_fedadagrad, ccfl.cc_fedadam, ccfl.cc_fedams])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_nu_04_no_pseudo_gradient_is_no_step_in_short_floats(method, dtype):
    """eps 1e-8 is zero in float16: the root must not be taken there."""
    params, server = jnp.ones(3, dtype), method(0.1, eps=1e-8)
    updates, _ = server.update(jnp.zeros(3, dtype), server.init(params), params)
    np.testing.assert_array_equal(updates, np.zeros(3))
    np.testing.assert_array_equal(optax.apply_updates(params, updates), params)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("rows", [2051, 70_000])
def test_nu_05_counts_do_not_take_the_models_dtype(rows, dtype):
    """A bfloat16 sum of 2051 ones is 2048, a float16 sum of 70,000 ones is inf."""
    task = ccfl.classification_task(nn.Dense(3, dtype=dtype, param_dtype=dtype), (1,), 3)
    params = {"kernel": jnp.ones((1, 3), dtype), "bias": jnp.array([1, 0, 0], dtype)}
    arrays = {"x": np.ones((rows, 1), "f"), "y": np.zeros(rows, np.int32)}
    whole = jax.tree.map(jnp.asarray, arrays)
    hits, count = jax.jit(task.metrics)(params, whole, jnp.ones(rows, bool))["accuracy"]
    assert (float(hits), int(count)) == (rows, rows)
    assert ccfl.evaluate(task, params, arrays, 1000)["accuracy"] == 1.0


@pytest.mark.parametrize("spread", [0.0, 1e-4, 1e-1])
def test_nu_09_a_variance_of_almost_equal_inputs_is_not_negative(spread):
    """A ResNet's norm of one image with numbers near 1000: finite, and so is its derivative."""
    noise = np.random.default_rng(0).normal(size=(1, 4, 4, 2))
    x, norm = jnp.asarray(1000 + spread * noise, jnp.float32), _norm("norm")
    variables = norm.init(jax.random.key(0), x)
    out, slope = jax.jit(jax.value_and_grad(lambda x: norm.apply(variables, x).sum()))(x)
    assert np.isfinite(out) and np.isfinite(slope).all()


def test_md_02_devices_share_a_mean_over_uploads():
    """[1, absent] and [3, 5] over two devices: 3; the mean of two devices' means is 2.5."""
    data = values_of([1.0], [9.0], [3.0], [5.0])
    schedule = make_schedule([range(4)], present=[[True, False, True, True]])
    end, info = run(values_task(), schedule, data, mesh=mesh_of(2), local=1.0, lanes=1)
    assert end["x"] == pytest.approx(-3.0, rel=1e-6)
    assert info.participants[0] == 3
