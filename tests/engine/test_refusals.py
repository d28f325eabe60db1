"""What is of the wrong kind is refused by name at every entry; labels of no class are said."""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import Partial
from refusal import refused

import ccfl_jax as ccfl

pytestmark = pytest.mark.usefixtures("quickly_compiled")
TASK, SERVER = ccfl.classification_task(nn.Dense(3), (4,), 3), ccfl.cc_fedsgd(1.0)
ROWS = {
    "x": np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32),
    "y": np.arange(12, dtype=np.int32) % 3,
}
LISTS = [np.arange(7), np.arange(7, 12)]
DATA = ccfl.FederatedData.from_indices(ROWS, LISTS)
SCHEDULE = ccfl.random_schedule(0, 2, 2, 2, max_delay=0)
SIMULATION = ccfl.simulation(TASK, SERVER, 0.1, 4)
STATE = SIMULATION.init(jax.random.key(0))
STATES = jax.tree.map(lambda a: jnp.stack([a, a]), STATE)


def round_at(rate, state, slots, data):
    return ccfl.build_round(TASK, ccfl.cc_fedsgd(rate), 0.1, 4)(state, slots, data)


AT = Partial(round_at, jnp.ones(2))
METHOD = {"task": TASK, "server": SERVER}
MAKERS = {
    "build_round": lambda **parts: ccfl.build_round(**METHOD | parts),
    "simulation": lambda **parts: ccfl.simulation(**METHOD | parts),
    "init_state": lambda **parts: ccfl.init_state(**METHOD | parts, key=jax.random.key(0)),
}
RUNS = {
    "run_rounds": (ccfl.run_rounds, (SIMULATION.round, STATE, SCHEDULE, DATA)),
    "run_trials": (ccfl.run_trials, (AT, STATES, SCHEDULE, DATA)),
}
SCORES = {
    "evaluate": (ccfl.evaluate, (TASK, STATE.params, ROWS)),
    "evaluate_trials": (ccfl.evaluate_trials, (TASK, STATES.params, ROWS)),
    "evaluate_clients": (ccfl.evaluate_clients, (TASK, STATE.params, DATA)),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(("part", "value", "message"), [
    ("task", nn.Dense(3), "task: expected a ccfl.Task, found Dense(..."),
    ("server", 1.0, "server: expected an optax transformation, found 1.0"),
    ("server", ccfl.cc_fedsgd, "server: expected an optax transformation, found <function ...>"),
    ("aggregate", "mean", "aggregate: expected a ccfl.Aggregate or None, found 'mean'"),
    ("aggregate", ccfl.mean, "aggregate: expected a ccfl.Aggregate or None, found <function ...>"),
    ("rule", 1, "rule: expected a ccfl.Rule or None, found 1"),
])  # fmt: skip
def test_a_part_of_a_method_is_what_its_name_says(maker, part, value, message):
    refused(message, MAKERS[maker], **{part: value})


@pytest.mark.parametrize("entry", RUNS)
@pytest.mark.parametrize(("place", "value", "message"), [
    (0, SIMULATION, "round_fn: expected ..., found Simulation(..."),
    (1, STATE.params, "state: expected a ccfl.State, found {..."),
    (2, None, "schedule: expected a ccfl.Schedule, found None"),
    (2, [[0, 1]], "schedule: expected a ccfl.Schedule, found ..."),
    (3, ROWS, "data: expected ccfl.FederatedData, found {..."),
])  # fmt: skip
def test_an_argument_of_a_run_is_what_its_name_says(entry, place, value, message):
    call, arguments = RUNS[entry]
    refused(message, call, *arguments[:place], value, *arguments[place + 1 :])


@pytest.mark.parametrize("entry", SCORES)
def test_an_argument_of_an_evaluation_is_what_its_name_says(entry):
    call, (task, params, data) = SCORES[entry]
    refused("task: expected a ccfl.Task, found 3", call, 3, params, data)
    message = "params: expected those of a model, as state.params, found a ccfl.State"
    refused(message, call, task, STATE, data)
    refused("...: expected ..., found FederatedData", ccfl.evaluate, task, params, DATA)
    refused("data: expected ccfl.FederatedData, ...", ccfl.evaluate_clients, task, params, ROWS)


def test_samples_without_labels_and_trials_without_rates_or_devices_are_refused():
    unlabelled = {"x": ROWS["x"]}
    message = "arrays: expected x and y, found no y"
    refused(message, ccfl.evaluate, TASK, STATE.params, unlabelled)
    call, (_, *others) = RUNS["run_trials"]
    message = "round_fn: expected a jax.tree_util.Partial that builds a round, found <function ...>"
    refused(message, call, SIMULATION.round, *others)
    refused("mesh: expected a jax Mesh or None, found 2", call, AT, *others, mesh=2)
    refused("together: expected an integer >= 1, found 0", call, AT, *others, together=0)


@pytest.mark.parametrize(("local", "found"), [
    (-0.1, -0.1), (float("nan"), "nan"), (np.float32("inf"), "inf"), (jnp.float32(-1), -1.0),
    (optax.constant_schedule(-2.0), -2.0), (lambda t: np.float32("nan"), "nan"),
])  # fmt: skip
def test_a_local_rate_is_finite_and_not_negative(local, found):
    message = f"local: expected a finite number >= 0, found {found}"
    refused(message, ccfl.build_round, TASK, SERVER, local)


@pytest.mark.parametrize(("arguments", "message"), [
    (((4,), 0), "num_classes: expected an integer >= 1, found 0"),
    (((4,), "3"), "num_classes: expected an integer >= 1, found '3'"),
    ((4, 3), "input_shape: expected integers, as (28, 28, 1), found 4"),
])  # fmt: skip
def test_a_task_is_of_whole_numbers(arguments, message):
    refused(message, ccfl.classification_task, nn.Dense(3), *arguments)


def warned(call, *arguments):
    """Warnings of this file, as text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments)
    assert all(one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("entry", ["run_rounds", *SCORES])
def test_labels_of_no_class_are_counted_in_a_warning(entry):
    """Rows 4 and 9 of the twelve: 3 and -1 are none of the classes 0 to 2."""
    call, (*others, _) = (RUNS | SCORES)[entry]
    for values, said in (({}, []), ({4: 3, 9: -1}, ["array 'y': expected labels from 0 to 2, "
                         "found 2 rows with others, the first is row 4"])):  # fmt: skip
        y = ROWS["y"].copy()
        y[[*values]] = [*values.values()]
        rows = {**ROWS, "y": y}
        federated = ccfl.FederatedData.from_indices(rows, LISTS)
        data = federated if isinstance((RUNS | SCORES)[entry][1][-1], type(DATA)) else rows
        assert warned(call, *others, data) == said


def test_of_tags_minus_one_is_padding():
    task = ccfl.tags_task(nn.Sequential([lambda x: x * 1.0, nn.Dense(5)]), (4,), 5)
    rows = {"x": np.ones((3, 4), np.int32), "y": np.array([[0, 4], [-1, -1], [2, -2]])}
    said = "array 'y': expected labels from -1 to 4, found 1 rows with others, the first is row 2"
    params = task.init(jax.random.key(0))
    assert warned(ccfl.evaluate, task, params, rows) == [said]
