"""One contract for every server: ours and optax's. Any optax optimiser is a server optimiser."""

from itertools import pairwise
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
from problems import assert_trees_equal, make_schedule

import ccfl_jax as ccfl

OURS = {"sgd": 1.0, "avgm": 1.0, "adagrad": 0.05, "adam": 0.02, "ams": 0.02}
OPTAX = {
    "adam": 0.02, "yogi": 0.02, "amsgrad": 0.02, "adagrad": 0.05,
    "rmsprop": 0.01, "radam": 0.05, "adabelief": 0.02, "lion": 0.01,
}  # fmt: skip
SERVERS = {
    **{f"cc_fed{name}": getattr(ccfl, f"cc_fed{name}")(rate) for name, rate in OURS.items()},
    **{name: getattr(optax, name)(rate) for name, rate in OPTAX.items()},
    "cc_fedavg": ccfl.cc_fedavg(),
    "sgd": optax.sgd(1.0, momentum=0.5),
    "adamw": optax.adamw(0.02, weight_decay=1e-3),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), ccfl.cc_fedams(0.02)),
    "schedule": ccfl.cc_fedams(optax.cosine_decay_schedule(0.02, 40)),
}
SLOTS, ENDS = 3, (0, 1, 2, 3, 40)


@pytest.fixture(scope="module")
def trained():
    """Every server finds the mean of numbers about 2 from 0, in one program of all of them.

    The states at ENDS, their losses, and the infos of the pieces before them.
    """
    rng = np.random.default_rng(0)
    data = problems.values_of(*(rng.normal(2, 0.3, size) for size in (20, 8, 31, 16, 9, 25, 0)))
    from_zero = problems.points_task()._replace(init=lambda key: {"x": jnp.zeros(())})
    task, server = problems.side_by_side(from_zero, SERVERS)
    simulation = ccfl.simulation(task, server, optax.sgd(0.3), batch_size=8, normalise="none")
    round_fn, traces = problems.counting(simulation.round)
    state = simulation.init(jax.random.key(0), history_length=3)
    found = SimpleNamespace(
        round_fn=round_fn, traces=traces, states=[], losses=[], infos=[], data=data
    )
    schedule = ccfl.random_schedule(0, ENDS[-1], 6, SLOTS, max_delay=2).replace(num_clients=7)
    for start, stop in pairwise((0, *ENDS)):
        state, info = ccfl.run_rounds(round_fn, state, schedule.rounds(start, stop), data)
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
    assert len(trained.traces) == 1
    assert all((info.rejected == 0).all() for info in trained.infos)


def test_makes_one_step_a_round_and_none_for_an_evaluation(trained):
    for state, rounds in zip(trained.states, ENDS, strict=True):
        leaves = jax.tree_util.tree_leaves_with_path(state.server)
        counts = [int(a) for path, a in leaves if getattr(path[-1], "name", "") == "count"]
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
    simulation = ccfl.simulation(problems.slope_task(), server, optax.sgd(1.0), batch_size=8)
    pieces = problems.cut(make_schedule([[0]] * 3), (0, 2, 3), problems.one_row_data())
    states, _ = problems.run_pieces(simulation.round, simulation.init(jax.random.key(0)), pieces)
    assert [float(state.params["x"]) for state in states] == [0.0, -3.0, -6.0]
