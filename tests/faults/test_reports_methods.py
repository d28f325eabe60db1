"""Faults that people reported for other tools (see the README): keys, parts of a method, models."""

import functools
import gc
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax.tree_util import Partial
from problems import (
    assert_trees_close,
    counting,
    make_schedule,
    mesh_of,
    points_task,
    slope_task,
    softmax_task,
    values_of,
)
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.engine import programs
from ccfl_jax.runs import checkpoints

pytestmark = pytest.mark.usefixtures("quickly_compiled")
KEY = jax.random.key(0)
DATA = values_of([1.0, 2.0, 4.0, 8.0], [3.0, 5.0, 9.0, 17.0])


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_nf_05_keys_whose_draws_depend_on_lanes_are_refused(kind):
    keys = ((jax.random.key(0, impl=kind), "one of ..."), (3, "3"))
    for key, found in keys:
        message = f"key: expected ..., found {found}"
        refused(message, ccfl.init_state, points_task(), ccfl.cc_fedavg(), key)


def test_nf_05_draws_are_the_same_on_all_lanes_and_devices_and_differ_between_visits():
    """With replacement: a batch of one of four values; equal clients draw other ones."""
    data = values_of(*[np.arange(64.0)] * 4)
    schedule = make_schedule([[0, 1, 2, 3]] * 2)
    states = []
    for lanes, devices in ((1, 1), (2, 1), (4, 1), (1, 4)):
        mesh = mesh_of(devices) if devices > 1 else None
        simulation = ccfl.simulation(
            points_task(), ccfl.cc_fedavg(), 0.1, 1, "steps", lanes=lanes, mesh=mesh
        )
        state, info = ccfl.run_rounds(simulation.round, simulation.init(KEY), schedule, data)
        states.append((state.params, info.train_loss))
    for other in states[1:]:
        assert_trees_close(states[0], other, 1e-6)
    alone = [make_schedule([[client]]) for client in range(4)]
    simulation = ccfl.simulation(points_task(), ccfl.cc_fedavg(), 0.1, 1, "steps")
    ends = [ccfl.run_rounds(simulation.round, simulation.init(KEY), s, data)[0] for s in alone]
    assert len({float(end.params["x"]) for end in ends}) == 4


LOCAL = "local: expected an optax optimiser, a number, or a function of the round ..., found ..."


@pytest.mark.parametrize("local", [
    optax.sgd, optax.adam, functools.partial(optax.sgd, momentum=0.9), lambda lr: 0.1,
    lambda t: "sgd", linen.Dense, True, [0.1],
])  # fmt: skip
def test_nf_07_what_is_no_local_optimiser_is_refused(local):
    refused(LOCAL, ccfl.build_round, points_task(), ccfl.cc_fedavg(), local)


def test_nf_07_parts_of_other_kinds_are_refused():
    task, server = points_task(), ccfl.cc_fedavg()
    for rate in (-0.1, float("nan"), np.inf):
        refused("local: expected ..., found ...", ccfl.build_round, task, server, rate)
    for other in (optax.adam, 0.1, lambda t: server):
        refused("server: expected ..., found ...", ccfl.build_round, task, other)
        refused("server: expected ..., found ...", ccfl.init_state, task, other, KEY)
    refused("task: expected ..., found ...", ccfl.build_round, linen.Dense(3), server)
    refused(
        "aggregate: expected ..., found ...", ccfl.build_round, task, server, aggregate=ccfl.mean
    )


def test_nf_09_a_schedule_in_steps_is_obeyed_or_refused():
    """Two steps asked are two steps, where an epoch would be four."""
    schedule = make_schedule([[0]], work=2).replace(work_unit="steps")
    simulation = ccfl.simulation(points_task(), ccfl.cc_fedavg(), 0.1, 1)
    _, info = ccfl.run_rounds(simulation.round, simulation.init(KEY), schedule, DATA)
    assert info.steps.tolist() == [[2]]
    epochs = ccfl.build_round(points_task(), ccfl.cc_fedavg(), 0.1, 1, "epochs")
    message = "work_unit: expected 'steps', as in the schedule, or None, found 'epochs'"
    refused(message, ccfl.run_rounds, epochs, simulation.init(KEY), schedule, DATA)


def test_nf_07_a_run_in_which_nobody_takes_part_says_so():
    simulation = ccfl.simulation(points_task(), ccfl.cc_fedavg(), 0.1, 1)
    somebody, nobody = make_schedule([[0], [1]]), make_schedule([[0], [1]], present=False)
    with pytest.warns(UserWarning, match="expected somebody to train in some round, found no slot"):
        ccfl.run_rounds(simulation.round, simulation.init(KEY), nobody, DATA)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ccfl.run_rounds(simulation.round, simulation.init(KEY), somebody, DATA)


def test_nf_09_a_piece_that_was_run_is_not_run_again():
    simulation, schedule = ccfl.simulation(points_task(), ccfl.cc_fedavg(), 0.1, 1), None
    schedule = make_schedule([[0]] * 4)
    first, second = schedule.rounds(0, 2), schedule.rounds(1, 4).rounds(1, 3)
    state, _ = ccfl.run_rounds(simulation.round, simulation.init(KEY), first, DATA)
    message = "schedule: expected rounds from 2 on, ..., found a piece from round 0 on"
    refused(message, ccfl.run_rounds, simulation.round, state, first, DATA)
    state, _ = ccfl.run_rounds(simulation.round, state, second, DATA)
    assert int(state.round) == 4


def test_nf_29_leaves_of_one_name_are_refused_before_anything_is_written(tmp_path):
    task = slope_task()._replace(init=lambda key: {"a.b": jnp.ones(()), "a": {"b": jnp.ones(())}})
    kept = checkpoints.open_checkpoints(tmp_path)
    state = ccfl.init_state(task, ccfl.cc_fedavg(), KEY)
    refused("params.a.b: expected one leaf of this name, found two", checkpoints.save, kept, state)
    assert not kept.all_steps()
    checkpoints.close(kept)


def test_nf_30_programs_go_with_their_functions():
    """The round, and the task that is evaluated; what is kept is traced once."""
    kept, schedule, gone = len(programs._kept), make_schedule([[0, 1]]), []
    for _ in range(2):
        task, server = points_task(), ccfl.cc_fedavg()
        round_fn, traces = counting(ccfl.build_round(task, server, 0.1, 1))
        for _ in range(2):
            state, _ = ccfl.run_rounds(round_fn, ccfl.init_state(task, server, KEY), schedule, DATA)
        ccfl.evaluate(task, state.params, {"v": np.ones(3, np.float32)})
        assert len(traces) == 1
        gone += [weakref.ref(round_fn), weakref.ref(task.metrics)]
    del task, round_fn
    gc.collect()
    assert [one() for one in gone] == [None] * 4 and len(programs._kept) <= kept


def test_nf_30_a_method_is_compiled_once():
    class Method:
        def __init__(self):
            self.round_fn, self.traces = counting(
                ccfl.build_round(points_task(), ccfl.cc_fedavg(), 0.1, 1)
            )

        def round(self, *given):
            return self.round_fn(*given)

    own, schedule = Method(), make_schedule([[0, 1]])
    for _ in range(2):
        state = ccfl.init_state(points_task(), ccfl.cc_fedavg(), KEY)
        ccfl.run_rounds(own.round, state, schedule, DATA)
    assert len(own.traces) == 1


def test_nf_31_numbers_of_numpy_are_numbers():
    whole, rate = np.int64, np.float32(0.1)
    round_fn = ccfl.build_round(points_task(), ccfl.cc_fedavg(), rate, whole(2), lanes=whole(1))
    schedule = ccfl.random_schedule(whole(0), whole(2), whole(2), whole(1), whole(1), whole(1))
    state = ccfl.init_state(points_task(), ccfl.cc_fedavg(), KEY, whole(2))
    end, _ = ccfl.run_rounds(round_fn, state, schedule, DATA)
    found = ccfl.evaluate(points_task(), end.params, {"v": np.ones(3, np.float32)}, whole(2))
    assert found == ccfl.evaluate(points_task(), end.params, {"v": np.ones(3, np.float32)}, 2)
    message = "batch_size: expected an integer >= 1, found True"
    refused(message, ccfl.build_round, points_task(), ccfl.cc_fedavg(), 0.1, True)


def test_an_upload_is_divided_by_its_epochs_in_its_own_precision(x64):
    """Slope 1, rate 0.1, 5 steps of 2 of 3 samples: 0.5 / (10 / 3), which float32 knows to 1e-8."""
    simulation = ccfl.simulation(slope_task(), ccfl.cc_fedavg(), 0.1, 2, "steps", "epochs")
    schedule, data = make_schedule([[0]], work=5), values_of([0.0] * 3)
    state, _ = ccfl.run_rounds(simulation.round, simulation.init(KEY), schedule, data)
    np.testing.assert_allclose(-float(state.params["x"]), 0.5 * 3 / 10, rtol=1e-15)


def test_a_strict_promotion_of_dtypes_is_refused_by_name():
    message = "jax_numpy_dtype_promotion: expected standard, found strict"
    with jax.numpy_dtype_promotion("strict"):
        refused(message, ccfl.build_round, points_task(), ccfl.cc_fedavg())
        refused(message, ccfl.classification_task, linen.Dense(3), (4,), 3)


def test_a_model_that_returns_a_tuple_is_refused():
    class Two(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(3)(x), x

    message = "model: expected output (2, 3) for 2 rows, found a tuple"
    refused(message, ccfl.classification_task, Two(), (4,), 3)


@pytest.mark.parametrize("hold", [np.asarray, jnp.asarray, lambda a: nnx.Variable(jnp.asarray(a))])
def test_an_nnx_module_may_have_constants(hold):
    """Inputs times (0, 1, 2): the logits are a linear layer's of that."""

    class Scaled(nnx.Module):
        def __init__(self, rngs):
            self.layer, self.factor = nnx.Linear(3, 2, rngs=rngs), hold(np.arange(3, dtype="f4"))

        def __call__(self, x):
            return self.layer(x * jnp.asarray(self.factor[...])[None])

    task = ccfl.classification_task(Scaled, (3,), 2)
    params = task.init(KEY)
    x, y = np.float32([[1.0, 2.0, 3.0]]), np.zeros(1, np.int32)
    logits = (x * np.arange(3)) @ np.asarray(params["layer"]["kernel"], np.float64)
    right = np.log(np.exp(logits).sum()) - logits[0, 0]
    assert ccfl.evaluate(task, params, {"x": x, "y": y})["loss"] == pytest.approx(right, rel=1e-5)


def test_statistics_of_an_nnx_module_are_refused():
    class Counting(nnx.Module):
        def __init__(self, rngs):
            self.layer, self.seen = nnx.Linear(3, 2, rngs=rngs), nnx.BatchStat(jnp.zeros(3))

        def __call__(self, x):
            return self.layer(x)

    message = "model: expected parameters only; ..., found BatchStat beside its parameters"
    refused(message, ccfl.classification_task, Counting, (3,), 2)


def test_a_state_of_another_kind_of_server_is_refused():
    task, schedule = softmax_task(), make_schedule([[0]])
    state = ccfl.init_state(task, ccfl.cc_fedavgm(0.1), KEY)
    round_fn = Partial(ccfl.build_round(task, ccfl.cc_fedams(0.1), 0.1))
    message = "state.server: expected ..., found ... of another structure"
    refused(message, ccfl.run_rounds, round_fn, state, schedule, DATA)
