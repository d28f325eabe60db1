"""The compiled engine against the NumPy twin: stale, uneven, absent, unequal."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from problems import drawn_batches, federated, softmax_gradient, softmax_task

import ccfl_jax as ccfl

SIZES = [1, 7, 20, 41, 13, 5, 30, 2]
ROUNDS, BATCH, LOCAL_LR = 30, 8, 0.1
SERVERS = {
    "sgd": (ccfl.cc_fedsgd, 3.0),
    "avgm": (ccfl.cc_fedavgm, 3.0),
    "adagrad": (ccfl.cc_fedadagrad, 0.1),
    "adam": (ccfl.cc_fedadam, 0.03),
    "ams": (ccfl.cc_fedams, 0.03),
}


def busy_schedule(unit="epochs"):
    schedule = ccfl.random_schedule(5, ROUNDS, len(SIZES), buffer_size=4, max_delay=6)
    rng = np.random.default_rng(0)
    present = rng.random(schedule.present.shape) < 0.7
    present[9] = False  # a round with nobody at all
    client, work = schedule.client.copy(), schedule.work.copy()
    client[12, 1] = client[12, 0]  # one client in two slots of a round
    present[12, :2] = True
    work[15, 2], present[15, 2] = 0, True
    return schedule._replace(client=client, work=work, present=present)


def expected_models(rule, lr, params, state_key, schedule, arrays, lists, unit, normalise):
    arrays = {"x": arrays["x"].astype(np.float64), "y": arrays["y"]}

    def visit_batches(t, slot):
        client = schedule.client[t, slot]
        earlier = (schedule.client[t, :slot] == client) & schedule.present[t, :slot]
        positions = drawn_batches(
            state_key, t, client, earlier.sum(), SIZES[client], BATCH, schedule.work[t, slot], unit
        )
        return [lists[client][p] for p in positions]

    def divisor(t, slot):
        if normalise == "none":
            return 1.0
        if normalise == "steps":
            return len(visit_batches(t, slot))
        work = schedule.work[t, slot]
        return work if unit == "epochs" else work * BATCH / SIZES[schedule.client[t, slot]]

    def gradient(client, model, rows):
        return softmax_gradient(model, arrays["x"][rows], arrays["y"][rows])

    model = {name: np.asarray(value, np.float64) for name, value in params.items()}
    return reference.simulate(
        rule, model, schedule, visit_batches, gradient, LOCAL_LR, divisor, lr=lr
    )


def compare(rule, dtype, tolerance, unit="epochs", normalise="steps", lanes=None):
    data, arrays, lists = federated(SIZES, dtype=np.dtype(dtype))
    schedule = busy_schedule()
    method, lr = SERVERS[rule]
    task, server = softmax_task(dtype), method(lr)
    round_fn = ccfl.build_round(
        task, server, optax.sgd(LOCAL_LR), BATCH, unit, normalise, lanes=lanes
    )
    start = ccfl.init_state(task, server, jax.random.key(0), history_length=7)
    end, info = ccfl.run_rounds(round_fn, start, schedule, data)
    models = expected_models(
        rule, lr, start.params, start.key, schedule, arrays, lists, unit, normalise
    )
    moved = 0.0
    for name, value in end.params.items():
        expected = models[-1][name]
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)
        moved = max(moved, abs(expected - models[0][name]).max())
        # Every model the ring still holds, not just the last.
        for s in range(7):
            held = end.history.models[name][(ROUNDS - s) % 7]
            np.testing.assert_allclose(
                held, models[ROUNDS - s][name], rtol=tolerance, atol=tolerance
            )
    assert moved > 0.05  # the run went somewhere
    return info, schedule


@pytest.mark.parametrize("rule", SERVERS)
def test_float32(rule):
    info, schedule = compare(rule, jnp.float32, 1e-4)
    expected = (schedule.present & (schedule.work > 0)).sum(axis=1)
    np.testing.assert_array_equal(info.participants, expected)
    steps = schedule.work * np.ceil(np.array(SIZES)[schedule.client] / BATCH)
    np.testing.assert_array_equal(info.steps, np.where(schedule.present, steps, 0))
    samples = schedule.work * np.array(SIZES)[schedule.client]
    np.testing.assert_array_equal(info.samples, np.where(schedule.present, samples, 0))


@pytest.mark.parametrize("rule", ["ams", "adagrad"])
def test_float64(rule, x64):
    compare(rule, jnp.float64, 1e-9)


@pytest.mark.parametrize("normalise", ["steps", "epochs", "none"])
@pytest.mark.parametrize("unit", ["epochs", "steps"])
def test_work_units_and_normalisations(unit, normalise):
    compare("ams", jnp.float32, 1e-4, unit, normalise)


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 9])
def test_lanes(lanes):
    compare("ams", jnp.float32, 1e-4, lanes=lanes)
