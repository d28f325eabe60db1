"""How a run goes with its sizes: each varied alone, in one table."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import ccfl_jax as ccfl
from ccfl_jax.models import MLP

from . import measure
from .workloads import Workload

_INPUTS, _CLASSES = 60, 10
_SAMPLES = 10  # of a client
_PIECES, _ROUNDS = 3, 256  # pieces in the time of a case; rounds of trials in one, at most
_COLUMNS = {
    "rounds/s": "rounds_per_s",
    "client updates/s": "client_updates_per_s",
    "first round, s": "first_round_s",
    "data, MB": "data_mb",
    "a model, MB": "model_mb",
    "peak, MB": "host_mb",
}


def case(
    seconds: float, mesh: Mesh, lanes: int | None = None, trials: int = 1, **sizes: int
) -> dict[str, Any]:
    """Times one size: the entries of `measure.measure` and the MB of data and of a model.

    Args:
        seconds: to time it for.
        mesh: devices that clients, or trials, are spread over.
        lanes: clients that advance together on a device.
        trials: runs that differ in the server's rate; their rounds are added up.
        sizes: of `workload`.
    """
    own = workload(**sizes)
    shapes = jax.eval_shape(own.task.init, jax.random.key(0))
    found = {
        "data_mb": sum(a.nbytes for a in jax.tree.leaves(own.data)) / 1e6,
        "model_mb": sum(4 * a.size for a in jax.tree.leaves(shapes)) / 1e6,
    }
    if trials > 1:
        return found | _trials(own, seconds, mesh, trials)
    return found | measure.measure(own, seconds, mesh, lanes, pieces=_PIECES)


def workload(
    clients: int = 10_000,
    slots: int = 50,
    history: int = 1,
    parameters: int = 1_000,
    rounds: int = 256,
) -> Workload:
    """Clients with ten samples of 60 numbers each, and one step of a batch with all of them.

    Args:
        clients: of the data.
        slots: clients of a round.
        history: models that clients start from, staleness is even from 0 to one less.
        parameters: of a perceptron with one hidden layer, nearly.
        rounds: of the schedule, which repeats.
    """
    rng, rows = np.random.default_rng([6]), clients * _SAMPLES
    hidden = max(1, round((parameters - _CLASSES) / (_INPUTS + 1 + _CLASSES)))
    arrays = {
        "x": rng.random((rows, _INPUTS), np.float32),
        "y": rng.integers(0, _CLASSES, rows, dtype=np.int32),
    }
    offsets = np.arange(0, rows + 1, _SAMPLES)
    return Workload(
        name="scale",
        model="",
        task=ccfl.classification_task(MLP((hidden,)), (_INPUTS,), _CLASSES),
        data=ccfl.FederatedData.from_offsets(arrays, np.arange(rows, dtype=np.int32), offsets),
        schedule=ccfl.random_schedule(0, rounds, clients, slots, history - 1, 1, 1),
        batch_size=_SAMPLES,
        local_lr=0.1,
        flops=2 * hidden * (2 * _INPUTS + 3 * _CLASSES),
    )


def _trials(own: Workload, seconds: float, mesh: Mesh, trials: int) -> dict[str, Any]:
    """Rounds of all trials together, each piece from the start."""
    run = measure.rate_trials(own, False, np.logspace(-2, 0, trials), mesh)
    first_round_s = measure.timed(run, measure.cut(own.schedule, 0, 1))[1]
    once = measure.timed(run, measure.cut(own.schedule, 0, 1))[1]
    count = int(np.clip(seconds / _PIECES / once, 1, _ROUNDS))
    taken = median(
        measure.timed(run, measure.cut(own.schedule, 0, count))[1] for _ in range(_PIECES)
    )
    rounds_per_s = trials * count / taken
    return {
        "rounds_per_s": rounds_per_s,
        "client_updates_per_s": rounds_per_s * own.schedule.num_slots,
        "first_round_s": first_round_s,
        "host_mb": measure.peak_mb(),
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown of the results of `case`, a line for each."""
    lines = [" | ".join(["varied", *_COLUMNS]), " | ".join(["---"] * (1 + len(_COLUMNS)))]
    for result in results:
        (name, size), *_ = result["case"]["settings"].items()
        numbers = [f"{result[key]:.4g}" if key in result else "-" for key in _COLUMNS.values()]
        lines.append(" | ".join([f"{size:,} {name}", *numbers]))
    return "\n".join(f"| {line} |" for line in lines)
