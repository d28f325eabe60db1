"""Our engine on the workload of the other simulators: same clients, epochs, weights.

usage: python -m experiments.benchmarks.peerbench --peers=FOLDER --name=ccfl -B 20 -R 20

`--peers` is the folder of that workload (`workload.npz`, `init.npz`) and `common.py`, which reads
it, keeps the time and parses the rest of the command line. Two rounds warm up, then -R rounds are
timed, every round blocked on its result, in useful samples, the sum of epochs times sizes.
`--devices` is the number of host devices, by default one per core.
"""

import os
import sys
from pathlib import Path

import jax
import numpy as np
from absl import flags

import ccfl_jax as ccfl
from ccfl_jax.models import CNN

from ..config.command import DONE, command
from ..training import devices

LAYERS = {"c1": "conv1", "c2": "conv2", "f1": "dense1", "f2": "dense2", "f3": "dense3"}


@command("peerbench", lambda: __doc__.strip())
def main(argv: list[str]) -> int:
    """Runs the workload and writes the peers' result files."""
    ours = flags.FlagValues()
    ours.set_gnu_getopt(True)
    flags.DEFINE_string("peers", "../shared/peerbench", "", flag_values=ours)
    flags.DEFINE_integer("devices", os.cpu_count(), "", flag_values=ours)
    # `common` reads the rest from sys.argv.
    sys.argv = ours(argv, known_only=True)
    peers = Path(ours.peers)
    if not (peers / "common.py").is_file():
        raise ValueError(f"--peers: expected the workload's folder, found no common.py in {peers}")
    sys.path.insert(0, str(peers.resolve()))
    import common

    arguments, workload = common.args(), common.Workload()
    clock = common.Clock(arguments)
    devices.make_host_devices(ours.devices)
    mesh = devices.mesh(ours.devices)

    task = ccfl.classification_task(CNN(), (28, 28, 1), 10)
    initial = _to_ours(common.to_jax(common.init()))
    task = task._replace(init=lambda key: initial)
    server = ccfl.cc_fedavg()
    round_fn = ccfl.build_round(task, server, 0.01, arguments.B, normalise="none", mesh=mesh)
    train, _ = ccfl.load_dataset("fashion_mnist")
    data = ccfl.FederatedData.from_indices(train, workload.ids)
    state = ccfl.init_state(task, server, jax.random.key(0))
    data, state = devices.put((data, state), mesh)
    schedule = _schedule(workload)

    clock.begin()
    for t in range(arguments.W + arguments.R):
        state, _ = ccfl.run_rounds(round_fn, state, schedule.rounds(t, t + 1), data, donate=True)
        jax.block_until_ready(state)
        clock.end_round()
    clock.finish(common.from_jax(_to_theirs(state.params)), f"jax {jax.__version__}")
    return DONE


def _schedule(workload) -> ccfl.Schedule:
    shape = workload.clients.shape
    return ccfl.Schedule(
        client=workload.clients,
        staleness=np.zeros(shape, np.int32),
        work=workload.epochs,
        present=np.ones(shape, bool),
    )


def _to_ours(weights: dict) -> dict:
    return {
        ours: {"kernel": weights[f"{theirs}.weight"], "bias": weights[f"{theirs}.bias"]}
        for theirs, ours in LAYERS.items()
    }


def _to_theirs(params: dict) -> dict:
    return {
        f"{theirs}.{part}": np.asarray(params[ours][name])
        for theirs, ours in LAYERS.items()
        for part, name in (("weight", "kernel"), ("bias", "bias"))
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv))
