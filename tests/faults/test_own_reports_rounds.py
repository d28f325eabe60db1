"""Faults that people reported for other tools (see the README): rounds and their metrics."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import counting, make_schedule, one_row_data, points_task, slope_task, values_of

import ccfl_jax as ccfl
from ccfl_jax.models import Logistic, TagLogistic

pytestmark = pytest.mark.usefixtures("quickly_compiled")
KEY = jax.random.key(0)


def run(task, server, local, schedule, data, **how):
    """The state after the last round, and the infos."""
    round_fn = ccfl.build_round(task, server, local, **how)
    return ccfl.run_rounds(round_fn, ccfl.init_state(task, server, KEY), schedule, data)


def test_of_02_local_noise_is_drawn_anew_for_every_client_and_round():
    """Slope 1, rate 1, noise N(0, 1): each of 4 clients and 2 rounds has its own number."""
    noisy, server = optax.noisy_sgd(1.0, eta=1.0, gamma=0.0, seed=0), ccfl.cc_fedavg()
    how = {"work_unit": "steps", "normalise": "none"}
    round_fn = ccfl.build_round(slope_task(), server, noisy, **how)
    found = []
    for client in range(4):
        state, x = ccfl.init_state(slope_task(), server, KEY), 0.0
        for _ in range(2):
            piece = make_schedule([[client]])
            state, _ = ccfl.run_rounds(round_fn, state, piece, one_row_data(4))
            found.append(float(state.params["x"]) - x)
            x += found[-1]
    assert len(np.unique(np.round(found, 5))) == 8


def test_of_02_equal_noise_does_not_average_out():
    """64 clients: the mean of their noise has the deviation 1/8, another one in each round."""
    noisy = optax.noisy_sgd(1.0, eta=1.0, gamma=0.0, seed=0)
    task, server, data = slope_task(), ccfl.cc_fedavg(), one_row_data(64)
    round_fn = ccfl.build_round(task, server, noisy, work_unit="steps", normalise="none")
    schedule, state = make_schedule([list(range(64))] * 6), ccfl.init_state(task, server, KEY)
    places = [0.0]
    for t in range(6):
        state, _ = ccfl.run_rounds(round_fn, state, schedule.rounds(t, t + 1), data)
        places.append(float(state.params["x"]))
    noise = np.diff(places) + 1
    assert np.ptp(noise) > 1e-3 and np.sqrt((noise**2).mean()) < 3 / 8


def test_of_04_a_client_without_tags_leaves_the_others_recall():
    """Recall 1 of client 0, none of client 1, who has no tag: their mean is client 0's."""
    task = ccfl.tags_task(TagLogistic(vocabulary_size=10, num_tags=3), (4,), 3)
    x = np.random.default_rng(0).integers(0, 5, (4, 4)).astype(np.int32)
    y = np.array([[0, -1], [1, -1], [-1, -1], [-1, -1]], np.int32)
    data = ccfl.FederatedData.from_indices({"x": x, "y": y}, [[0, 1], [2, 3]])
    _, info = run(task, ccfl.cc_fedavg(), 0.1, make_schedule([[0, 1]]), data, batch_size=2)
    assert info.counted.all()
    assert info.train_metrics["recall_at_5"][0] == 1.0  # three tags: all are among the five


def test_of_09_clients_of_many_sizes_are_evaluated_by_few_programs():
    """Eight clients of 1 to 8 rows, each evaluated alone: as many programs as powers of two."""
    task = points_task()
    traced, traces = counting(task.metrics)
    task = task._replace(metrics=traced)
    for rows in range(1, 9):
        data = {"v": np.arange(rows, dtype=np.float32)}
        found = ccfl.evaluate(task, {"x": jnp.zeros(())}, data)
        assert found["loss"] == pytest.approx((np.arange(rows) ** 2 / 2).mean(), rel=1e-6)
    assert len(traces) <= 4


def test_of_10_a_model_of_python_numbers_compiles_once():
    """x = 1.0 from `init`, steps 0.1 x: the second piece uses the program of the first."""
    task = slope_task()._replace(
        init=lambda key: {"x": 1.0}, loss=lambda params, *rest: params["x"] ** 2 / 2
    )
    server = ccfl.cc_fedavg()
    round_fn, traces = counting(ccfl.build_round(task, server, 0.1, work_unit="steps"))
    state, schedule = ccfl.init_state(task, server, KEY), make_schedule([[0]])
    for _ in range(2):
        state, _ = ccfl.run_rounds(round_fn, state, schedule, one_row_data())
    assert float(state.params["x"]) == pytest.approx(0.81, rel=1e-6)
    assert len(traces) == 1


def test_of_13_gradients_that_are_accumulated_locally():
    """Slope 1, rate 0.1, every second of 4 steps: 0.2. optax.MultiSteps is an optax optimiser."""
    local = optax.MultiSteps(optax.sgd(0.1), 2)
    how = {"work_unit": "steps", "normalise": "none"}
    schedule = make_schedule([[0]], work=4)
    state, _ = run(slope_task(), ccfl.cc_fedavg(), local, schedule, one_row_data(), **how)
    assert -float(state.params["x"]) == pytest.approx(0.2, rel=1e-6)


def test_of_14_a_label_beside_the_classes_costs_its_client_alone():
    """One label 3 of 3 classes: that upload is rejected, counted, and in no mean."""
    task = ccfl.classification_task(Logistic(num_classes=3), (6,), 3)
    x = np.random.default_rng(0).normal(size=(18, 6)).astype(np.float32)
    y = np.arange(18, dtype=np.int32) % 3
    parts = np.split(np.arange(18), 3)
    ends, losses = [], []
    for bad, cohort in ((True, [0, 1, 2]), (False, [1, 2])):
        labels = np.where((np.arange(18) == 2) & bad, 3, y).astype(np.int32)
        data = ccfl.FederatedData.from_indices({"x": x, "y": labels}, parts)
        state, info = run(task, ccfl.cc_fedavg(), 0.1, make_schedule([cohort]), data)
        ends.append(state.params)
        losses.append(info.train_loss[0])
        assert (info.rejected[0], info.participants[0]) == (int(bad), 2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *ends)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    wrong = ccfl.evaluate(task, ends[0], {"x": x, "y": np.full(18, 3, np.int32)})
    assert np.isnan(wrong["loss"])


def test_of_16_a_round_of_clients_without_samples_changes_nothing():
    """Empty clients in rounds 0 and 2: no step, no momentum, no 0/0; the loss of none is nan."""
    v = {"v": np.array([1.0, 2.0], np.float32)}
    data = ccfl.FederatedData.from_indices(v, [[], [], [0, 1]])
    server, how = ccfl.cc_fedavgm(1.0, b1=0.9), {"work_unit": "steps"}
    ends = []
    for cohorts in ([[0, 1], [2, 2], [0, 1]], [[2, 2]]):
        state, info = run(points_task(), server, 0.1, make_schedule(cohorts), data, **how)
        ends.append(float(state.params["x"]))
    assert np.isfinite(ends).all()
    start = float(ccfl.init_state(points_task(), server, KEY).params["x"])
    assert ends[0] != start
    _, info = run(points_task(), server, 0.1, make_schedule([[0, 1]]), data, **how)
    assert (info.participants[0], info.rejected[0]) == (0, 0) and np.isnan(info.train_loss[0])


def test_of_17_schedule_free_servers_give_both_of_their_models():
    """NumPy: z -= lr g, x is the mean of the z, clients start from y = 0.9 x + 0.1 z.

    `state.params` is y; the model to use, x, is optax's function of the state.
    """
    server = optax.contrib.schedule_free_sgd(0.5, b1=0.9)
    schedule, data = make_schedule([[0]] * 20), values_of([3.0])
    state, _ = run(points_task(), server, 0.1, schedule, data, work_unit="steps")
    x = z = y = float(ccfl.init_state(points_task(), server, KEY).params["x"])
    for t in range(1, 21):
        z -= 0.5 * 0.1 * (y - 3)
        x += (z - x) / t
        y = 0.9 * x + 0.1 * z
    found = optax.contrib.schedule_free_eval_params(state.server, state.params)
    assert float(state.params["x"]) == pytest.approx(y, rel=1e-5)
    assert float(found["x"]) == pytest.approx(x, rel=1e-5)
