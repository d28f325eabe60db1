"""Clients of a round spread over devices: the one-device result, whatever the numbers of both."""

import jax
import numpy as np
import problems
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import ccfl_jax as ccfl

SIZES = (6, 4, 9, 15, 3, 31, 8, 1, 12, 5)
DATA = problems.values_of(*(np.random.default_rng(size).normal(size=size) for size in SIZES))
SCHEDULE = ccfl.random_schedule(2, 8, len(SIZES), len(SIZES), max_delay=3)
SCHEDULE.present[:] = np.random.default_rng(0).random(SCHEDULE.present.shape) < 0.8


def simulation(**where):
    return ccfl.simulation(problems.points_task(), ccfl.cc_fedams(0.1), 0.1, 4, **where)


ALONE = simulation()
START = ALONE.init(jax.random.key(0), history_length=4)


def first_slots(tree, slots):
    return jax.tree.map(lambda a: a[:, :slots] if a.ndim == 2 else a, tree)


@pytest.mark.parametrize(("slots", "devices", "lanes"), [(10, 4, 2), (3, 4, 1)])
def test_any_clients_on_any_devices(slots, devices, lanes):
    """More groups than devices, and fewer. The one device has all slots, the others of them absent.

    Later pieces compile nothing.
    """
    present = SCHEDULE.present & (np.arange(len(SIZES)) < slots)
    alone, info = ccfl.run_rounds(ALONE.round, START, SCHEDULE.replace(present=present), DATA)
    mesh = problems.mesh_of(devices)
    round_fn, traces = problems.counting(simulation(lanes=lanes, mesh=mesh).round)
    state, data = jax.device_put((START, DATA), NamedSharding(mesh, PartitionSpec()))
    pieces = problems.cut(first_slots(SCHEDULE, slots), (0, 3, 4, 8), data)
    states, infos = problems.run_pieces(round_fn, state, pieces)
    problems.assert_trees_close((states[-1], infos), (alone, first_slots(info, slots)))
    assert len(traces) == 1


def test_a_visit_is_traced_once():
    """Also where the default of lanes looks at it."""
    traces, mesh = [], problems.mesh_of(2)
    rule = ccfl.Rule(begin=lambda visit: traces.append(1) or visit.start)
    state, data = jax.device_put((START, DATA), NamedSharding(mesh, PartitionSpec()))
    ccfl.run_rounds(simulation(rule=rule, mesh=mesh).round, state, SCHEDULE.rounds(0, 1), data)
    assert len(traces) == 1
