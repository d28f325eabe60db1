"""One contract for every server: ours and optax's. Any optax optimiser is a server optimiser."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import (
    assert_trees_equal,
    counting,
    make_schedule,
    one_row_data,
    points_task,
    side_by_side,
    slope_task,
    values_of,
)

import ccfl_jax as ccfl

SERVERS = {
    "cc_fedavg": ccfl.cc_fedavg(),
    "cc_fedsgd": ccfl.cc_fedsgd(1.0),
    "cc_fedavgm": ccfl.cc_fedavgm(1.0),
    "cc_fedadagrad": ccfl.cc_fedadagrad(0.05),
    "cc_fedadam": ccfl.cc_fedadam(0.02),
    "cc_fedams": ccfl.cc_fedams(0.02),
    "sgd": optax.sgd(1.0, momentum=0.5),
    "adam": optax.adam(0.02),
    "yogi": optax.yogi(0.02),
    "amsgrad": optax.amsgrad(0.02),
    "adagrad": optax.adagrad(0.05),
    "rmsprop": optax.rmsprop(0.01),
    "radam": optax.radam(0.05),
    "adabelief": optax.adabelief(0.02),
    "lion": optax.lion(0.01),
    "adamw": optax.adamw(0.02, weight_decay=1e-3),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), ccfl.cc_fedams(0.02)),
    "schedule": ccfl.cc_fedams(optax.cosine_decay_schedule(0.02, 40)),
}
SLOTS, ENDS = 3, (0, 1, 2, 3, 40)


class Trained(NamedTuple):
    round_fn: Callable
    traces: list[int]  # how often the round was traced before the end of each piece
    states: list[ccfl.State]  # before the first piece and after each
    losses: list[dict[str, float]]  # of these states
    infos: list[ccfl.Info]  # of the pieces
    data: ccfl.FederatedData


@pytest.fixture(scope="module")
def trained():
    """Every server finds the mean of numbers about 2 from 0, in one program of all of them."""
    rng = np.random.default_rng(0)
    data = values_of(*(rng.normal(2, 0.3, size) for size in (20, 8, 31, 16, 9, 25, 0)))
    from_zero = points_task()._replace(init=lambda key: {"x": jnp.zeros(())})
    task, server = side_by_side(from_zero, SERVERS)
    simulation = ccfl.simulation(task, server, optax.sgd(0.3), batch_size=8, normalise="none")
    round_fn, traces = counting(simulation.round)
    state = simulation.init(jax.random.key(0), history_length=3)
    found = Trained(
        round_fn, [], [state], [ccfl.evaluate(task, state.params, data.arrays)], [], data
    )
    schedule = ccfl.random_schedule(0, ENDS[-1], 6, SLOTS, max_delay=2).replace(num_clients=7)
    for start, stop in pairwise(ENDS):
        state, info = ccfl.run_rounds(round_fn, state, schedule.rounds(start, stop), data)
        found.traces.append(len(traces))
        found.states.append(state)
        found.losses.append(ccfl.evaluate(task, state.params, data.arrays))
        found.infos.append(info)
    return found


@pytest.mark.parametrize("name", SERVERS)
def test_learns(trained, name):
    assert trained.losses[-1][name] < 0.8 * trained.losses[0][name]


def test_keeps_its_structure_and_compiles_once(trained):
    before, *others = [jax.tree.map(jax.typeof, state) for state in trained.states]
    assert others == [before] * len(others)
    assert trained.traces == trained.traces[:1] * len(others)
    assert all((info.rejected == 0).all() for info in trained.infos)


def counts_of(state):
    leaves = jax.tree_util.tree_leaves_with_path(state.server)
    return [int(a) for path, a in leaves if getattr(path[-1], "name", "") == "count"]


def test_makes_one_step_a_round_and_none_for_an_evaluation(trained):
    for state, rounds in zip(trained.states, ENDS, strict=True):
        counts = counts_of(state)
        assert len(counts) > 12 and set(counts) == {rounds} and int(state.round) == rounds


@pytest.mark.parametrize(("client", "work", "present"), [(0, 1, False), (0, 0, True), (6, 1, True)])
def test_a_round_with_nobody_changes_no_bit(trained, client, work, present):
    """Absent, without work, without samples."""
    nobody = make_schedule([[client] * SLOTS], work=work, present=present)
    state = trained.states[-1]
    after, info = ccfl.run_rounds(trained.round_fn, state, nobody, trained.data)
    assert_trees_equal((after.params, after.server), (state.params, state.server))
    assert info.participants[0] == 0 and info.rejected[0] == 0 and np.isnan(info.train_loss[0])
    assert int(after.round) == ENDS[-1] + 1
    held = jax.tree.map(lambda a: a[after.round % 3], after.history.models)
    assert_trees_equal(held, state.params)


def test_a_server_schedule_goes_on_between_pieces():
    """lr(c) = c + 1 over rounds run as 2 + 1: the third step has rate 3."""
    server = ccfl.cc_fedsgd(lambda count: count + 1.0)
    simulation = ccfl.simulation(slope_task(), server, optax.sgd(1.0), batch_size=8)
    state, schedule, found = simulation.init(jax.random.key(0)), make_schedule([[0]] * 3), []
    for start, stop in ((0, 2), (2, 3)):
        piece = schedule.rounds(start, stop)
        state, _ = ccfl.run_rounds(simulation.round, state, piece, one_row_data())
        found.append(float(state.params["x"]))
    assert found == [-3.0, -6.0]
