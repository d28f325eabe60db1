"""The compiled engine against the NumPy twin: stale, uneven, absent, unequal."""

import jax
import numpy as np
import optax
import problems
import pytest
import reference
from problems import assert_trees_close, drawn_batches, federated, softmax_gradient, softmax_task

import ccfl_jax as ccfl

SIZES = [1, 7, 20, 41, 13, 5, 30, 2]
ROUNDS, BATCH, LOCAL_LR, HISTORY = 30, 8, 0.1, 7
RATES = {"sgd": 3.0, "avgm": 3.0, "adagrad": 0.1, "adam": 0.03, "ams": 0.03}


SCHEDULE = ccfl.random_schedule(5, ROUNDS, len(SIZES), buffer_size=4, max_delay=HISTORY - 1)
SCHEDULE.present[:] = np.random.default_rng(0).random(SCHEDULE.present.shape) < 0.7
SCHEDULE.present[9] = False  # a round with nobody at all
SCHEDULE.client[12, 1] = SCHEDULE.client[12, 0]  # one client in two slots of a round
SCHEDULE.present[12, :2] = True
SCHEDULE.work[15, 2], SCHEDULE.present[15, 2] = 0, True


def batches_of(key, unit):
    """The row positions of every slot with work, batch by batch."""
    present, work, batches = SCHEDULE.present, SCHEDULE.work, {}
    for t, slot in np.argwhere(present & (work > 0)):
        client = SCHEDULE.client[t, slot]
        earlier = (SCHEDULE.client[t, :slot] == client) & present[t, :slot]
        visit = t, client, earlier.sum(), SIZES[client], BATCH, work[t, slot]
        batches[t, slot] = drawn_batches(key, *visit, unit)
    return batches


def twin_of(rule, params, batches, arrays, lists, unit, normalise):
    """The models of the twin, from `params`."""

    def visit_batches(t, slot):
        return [lists[SCHEDULE.client[t, slot]][positions] for positions in batches[t, slot]]

    def divisor(t, slot):
        work = SCHEDULE.work[t, slot]
        epochs = work if unit == "epochs" else work * BATCH / SIZES[SCHEDULE.client[t, slot]]
        return {"none": 1.0, "steps": len(batches[t, slot]), "epochs": epochs}[normalise]

    def gradient(client, model, rows):
        return softmax_gradient(model, arrays["x"][rows].astype(np.float64), arrays["y"][rows])

    model = jax.tree.map(np.float64, params)
    return reference.simulate(
        rule, model, SCHEDULE, visit_batches, gradient, LOCAL_LR, divisor, lr=RATES[rule]
    )


def compare(rules, dtype, tolerance, unit="epochs", normalise="steps", lanes=None):
    """Every model of the history against the twin's, under each of the rules; the infos."""
    data, arrays, lists = federated(SIZES, dtype=np.dtype(dtype))
    servers = {rule: getattr(ccfl, f"cc_fed{rule}")(RATES[rule]) for rule in rules}
    task, server = problems.side_by_side(softmax_task(dtype), servers)
    simulation = ccfl.simulation(
        task, server, optax.sgd(LOCAL_LR), BATCH, work_unit=unit, normalise=normalise, lanes=lanes
    )
    start = simulation.init(jax.random.key(0), HISTORY)
    end, info = ccfl.run_rounds(simulation.round, start, SCHEDULE, data)
    batches = batches_of(start.key, unit)
    for rule in rules:
        models = twin_of(rule, start.params[rule], batches, arrays, lists, unit, normalise)
        assert_trees_close(end.params[rule], models[-1], tolerance)
        for s in range(HISTORY):
            held = jax.tree.map(lambda a, s=s: a[(ROUNDS - s) % HISTORY], end.history.models[rule])
            assert_trees_close(held, models[ROUNDS - s], tolerance)
        assert max(abs(models[-1][name] - models[0][name]).max() for name in models[0]) > 0.05
    return info


def test_all_rules_in_float64(x64):
    """In fewer slots than there are lanes."""
    info = compare(RATES, "float64", 1e-9, lanes=9)
    work, size = np.where(SCHEDULE.present, SCHEDULE.work, 0), np.array(SIZES)[SCHEDULE.client]
    np.testing.assert_array_equal(info.participants, (work > 0).sum(axis=1))
    np.testing.assert_array_equal(info.steps, work * np.ceil(size / BATCH))
    np.testing.assert_array_equal(info.samples, work * size)


@pytest.mark.parametrize(
    ("unit", "normalise", "lanes"), [("steps", "epochs", 1), ("epochs", "none", 3)]
)
def test_lanes(unit, normalise, lanes):
    """Slots one by one, and in groups of three of which the last is not full; with the units of
    work and normalisations that are not the usual ones."""
    compare(["ams"], "float32", 1e-4, unit, normalise, lanes)


def test_one_client_and_server_rate_one_is_plain_sgd():
    """m = 1, no delay, uploads as they are: x_T is SGD over the same batches, two an epoch."""
    data, arrays, lists = federated([11])
    method = ccfl.simulation(softmax_task(), ccfl.cc_fedavg(), LOCAL_LR, BATCH, normalise="none")
    schedule = ccfl.random_schedule(0, 6, 1, buffer_size=1, max_delay=0)
    state = method.init(jax.random.key(4))
    end, _ = ccfl.run_rounds(method.round, state, schedule, data)
    model = jax.tree.map(np.float64, state.params)
    for t in range(6):
        for positions in drawn_batches(state.key, t, 0, 0, 11, BATCH, schedule.work[t, 0]):
            x, y = (arrays[name][lists[0][positions]] for name in "xy")
            gradient = softmax_gradient(model, x.astype(np.float64), y)
            model = {name: model[name] - LOCAL_LR * gradient[name] for name in model}
    assert_trees_close(end.params, model, 1e-5)
