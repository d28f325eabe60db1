"""Faults people met in other tools: the order of an array's bytes (NF-11)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import assert_trees_equal, federated, softmax_task

import ccfl_jax as ccfl
from ccfl_jax import FederatedData, Schedule, availability, speed
from ccfl_jax.clock import Server, Work
from ccfl_jax.runs import checkpoints, provenance

pytestmark = pytest.mark.usefixtures("quickly_compiled")
TASK, SERVER, BATCH = softmax_task(), ccfl.cc_fedams(0.1), 4
_, ARRAYS, LISTS = federated([5, 7, 4])
FLAT, OFFSETS = np.concatenate(LISTS).astype(np.int32), np.array([0, 5, 12, 16], np.int32)
SCHEDULE = ccfl.random_schedule(0, 2, 3, 2, max_delay=1)
ROUND = ccfl.build_round(TASK, SERVER, 0.1, BATCH)
RATES = np.array([0.1, 0.2], np.float32)
FIRST = {"w": np.linspace(0, 1, 18, dtype="f").reshape(6, 3), "b": np.ones(3, "f")}
LABELS = np.arange(60) % 3
SECONDS = np.linspace(1, 2, 20)


def big(tree):
    """Every array with the bytes of its numbers the other way round."""
    return jax.tree.map(lambda a: np.asarray(a).astype(np.asarray(a).dtype.newbyteorder()), tree)


def start(init=TASK.init):
    """A state of NumPy arrays."""
    made = ccfl.init_state(TASK._replace(init=init), SERVER, jax.random.key(0), 2)
    return jax.tree.map(np.asarray, made._replace(key=0))._replace(key=made.key)


def swapped(order, state):
    return order(state._replace(key=0))._replace(key=state.key)


def stacked(states):
    keys = jnp.stack([one.key for one in states])
    rest = [one._replace(key=0) for one in states]
    return jax.tree.map(lambda *a: np.stack(a), *rest)._replace(key=keys)


def trained(data, schedule=SCHEDULE, state=None):
    end, info = ccfl.run_rounds(ROUND, state or start(), schedule, data)
    return end.params, info.train_loss


def streamed(data):
    state = start()
    for piece, samples in ccfl.stream_rounds(SCHEDULE, data, 1400):
        state, _ = ccfl.run_rounds(ROUND, state, piece, samples)
    return state.params


def build(rate, *args):
    return ccfl.build_round(TASK, SERVER, rate, BATCH)(*args)


def trials(order, schedules, *lists):
    data = FederatedData(order(ARRAYS), *lists)
    rounds = jax.tree_util.Partial(build, order(RATES))
    states = swapped(order, stacked([start()] * 2))
    end, info = ccfl.run_trials(rounds, states, schedules, data)
    return end.params, info.train_loss


def saved(order, folder):
    kept = checkpoints.open_checkpoints(folder / order(RATES).dtype.str)
    _, info = ccfl.run_rounds(ROUND, start(), SCHEDULE, data_of(ARRAYS))
    checkpoints.save(kept, swapped(order, start()), order(info))
    found, _ = checkpoints.restore(kept, start())
    checkpoints.close(kept)
    return found.state.params, found.infos.train_loss


def mapped(arrays, folder):
    """The arrays as files."""
    found = {}
    for name, array in arrays.items():
        path = folder / f"{name}{array.dtype.str[0]}.bin"
        array.tofile(path)
        found[name] = np.memmap(path, array.dtype, "r", shape=array.shape)
    return found


def data_of(arrays, order=lambda a: a):
    return FederatedData.from_offsets(arrays, order(FLAT), order(OFFSETS))


def through_a_file(schedule, folder):
    schedule.save(folder / "a.npz")
    return jax.tree.leaves(Schedule.load(folder / "a.npz"))


def clock(order):
    devices = speed.Devices(*order([SECONDS, SECONDS * 0.1, SECONDS * 0.2]))
    steps = order(np.arange(1, 21))
    there = availability.windows(*order([np.arange(20), SECONDS, SECONDS + 3, SECONDS + 3]))
    made, log = ccfl.clock_schedule(0, 5, devices, there, Server(2, 4), Work(epoch_steps=steps))
    return jax.tree.leaves((made, tuple(log)))


def work_by_speed(order):
    standing, rng = speed.slowness(order(SECONDS)), np.random.default_rng(0)
    return speed.correlated_work(rng, order(standing), order(np.arange(5)), 9, 0.5)


def from_indices(order):
    return FederatedData.from_indices(order(ARRAYS), order(LISTS))


def raw(order, arrays=ARRAYS):
    return FederatedData(order(arrays), order(FLAT), order(OFFSETS))


# What each public function makes of arrays, given the order of their bytes and a folder.
WAYS = {
    "from_indices": lambda order, _: trained(from_indices(order)),
    "from_offsets": lambda order, _: trained(data_of(order(ARRAYS), order)),
    "constructor": lambda order, _: trained(raw(order)),
    "only": lambda order, _: trained(raw(order).only(order(np.arange(3)))),
    "client": lambda order, _: jax.jit(lambda x: x * 2)(raw(order).client(1)["x"]),
    "sizes": lambda order, _: raw(order).sizes,
    "evaluate": lambda order, _: ccfl.evaluate(
        TASK, order(start().params), order(ARRAYS), batch_size=5
    ),
    "evaluate_trials": lambda order, _: ccfl.evaluate_trials(
        TASK, order(stacked([start()] * 2).params), order(ARRAYS), batch_size=5
    ),
    "state": lambda order, _: trained(data_of(ARRAYS), state=swapped(order, start())),
    "init": lambda order, _: trained(
        data_of(ARRAYS), state=start(lambda key: order(FIRST))
    ),
    "run_trials": lambda order, _: trials(order, order(SCHEDULE), order(FLAT), order(OFFSETS)),
    "trials of their own": lambda order, _: trials(
        order, [order(SCHEDULE)] * 2, order(np.stack([FLAT] * 2)), order(np.stack([OFFSETS] * 2))
    ),
    "schedule": lambda order, _: trained(data_of(ARRAYS), order(SCHEDULE)),
    "plan": lambda order, _: trained(data_of(ARRAYS), order(order(SCHEDULE).planned())),
    "schedule file": lambda order, folder: through_a_file(order(SCHEDULE), folder),
    "digests": lambda order, _: np.array(
        [order(SCHEDULE).digest(), provenance.digest(order(ARRAYS))]
    ),
    "theory": lambda order, _: ccfl.theory.read_schedule(order(SCHEDULE), 3, order(SCHEDULE.work)),
    "stream": lambda order, _: streamed(raw(order)),
    "checkpoint": saved,
    "files": lambda order, folder: trained(data_of(mapped(order(ARRAYS), folder), order)),
    "files streamed": lambda order, folder: streamed(data_of(mapped(order(ARRAYS), folder))),
    "files evaluated": lambda order, folder: ccfl.evaluate(
        TASK, start().params, mapped(order(ARRAYS), folder)
    ),
    "partitions": lambda order, _: [
        ccfl.partition_iid(order(LABELS), 7, 0), ccfl.partition_natural(order(LABELS)),
        ccfl.partition_dirichlet(order(LABELS), 3, 0.5, 0),
        ccfl.partition_dirichlet(order(LABELS), 3, 0.5, 0, by="client"),
    ],
    "clock": lambda order, _: clock(order),
    "work by speed": lambda order, _: work_by_speed(order),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_nf_11_the_order_of_bytes_changes_no_number(way, tmp_path):
    """First as in a fresh process, then with a program that native arrays have compiled."""
    found = WAYS[way](big, tmp_path)
    expected = WAYS[way](lambda tree: tree, tmp_path)
    assert_trees_equal(jax.tree.map(numbers, found), jax.tree.map(numbers, expected))
    assert_trees_equal(
        jax.tree.map(numbers, WAYS[way](big, tmp_path)), jax.tree.map(numbers, expected)
    )


def numbers(a):
    """A NumPy array of this machine's byte order."""
    a = np.asarray(a)
    return a.astype(a.dtype.newbyteorder("="))
