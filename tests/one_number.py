"""Federations whose model is one number x, from 1: all of them run in one compiled program.

A row (a, b, c) of a client has the loss a x^2 / 2 + b x + c; the rate is 1, so that a step over
one row is x - (a x + b). The server takes the mean upload off.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from problems import make_schedule, task_of

import ccfl_jax as ccfl

_SLOTS, _CLIENTS, _ROWS = 5, 11, 130
BATCH = 32


def _values(params, batch):
    a, b, c = batch["abc"].T
    return {"value": a * params["x"] ** 2 / 2 + b * params["x"] + c}


TASK = task_of(lambda key: {"x": jnp.ones(())}, _values)
SERVER = ccfl.cc_fedavg()
ROUND = ccfl.build_round(TASK, SERVER, 1.0, BATCH)


def rows(count=1, a=0.0, b=0.0, c=0.0):
    """So many rows; each number may be an array of them."""
    return np.stack([np.broadcast_to(np.float32(n), count) for n in (a, b, c)], axis=1)


def data_of(*clients):
    """A client for each array of rows; what fills the arrays up belongs to one more."""
    sizes = [len(own) for own in clients]
    sizes += [0] * (_CLIENTS - 1 - len(sizes)) + [_ROWS - sum(sizes)]
    abc = np.concatenate([*clients, np.zeros((sizes[-1], 3), np.float32)])
    lists = np.split(np.arange(_ROWS), np.cumsum(sizes)[:-1])
    return ccfl.FederatedData.from_indices({"abc": abc}, lists)


def rounds(client, staleness=0, work=1, present=True):
    """As `make_schedule`, with absent slots up to the program's number of them."""
    made = make_schedule(client, staleness, work, present)
    absent = ((0, 0), (0, _SLOTS - made.num_slots))
    names = ("client", "staleness", "work", "present")
    return made.replace(**{name: np.pad(getattr(made, name), absent) for name in names})


def start(seed=0, server=SERVER):
    return ccfl.init_state(TASK, server, jax.random.key(seed), history_length=5)


def run(clients, schedule, round_fn=ROUND, state=None, mesh=None):
    """x after the last round, and the rounds' infos."""
    data, state = data_of(*clients), state or start()
    if mesh:
        data, state = jax.device_put((data, state), NamedSharding(mesh, PartitionSpec()))
    end, info = ccfl.run_rounds(round_fn, state, schedule, data)
    return float(end.params["x"]), info
