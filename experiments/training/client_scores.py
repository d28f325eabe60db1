"""The scores of single clients: columns of a run's rows."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import ccfl_jax as ccfl
from ccfl_jax.engine.evaluate import Fairness
from ccfl_jax.runs import metrics

from .client_lists import Owners

CLIENTS = "clients.csv"  # of a run whose clients are tested, `client_table`

Tested = Mapping[str, ccfl.FederatedData]  # "clients" and "unseen", where they are scored


def tested(arrays: Mapping[str, Any], lists: Mapping[str, Owners]) -> dict[str, ccfl.FederatedData]:
    """The rows that single clients are scored on, without any others."""
    whole = {name: ccfl.FederatedData.from_offsets(arrays, *lists[name]) for name in lists}
    return {name: data.only(np.arange(len(data))) for name, data in whole.items()}


def columns(
    task: ccfl.Task, params: Any, memories: Any, data: Tested, own: Callable | None = None
) -> dict[str, float]:
    """Mean, worst decile and variance over clients of every score.

    `clients_worst_accuracy`, for example: over those who take part, each on its own test rows, and
    `unseen_worst_accuracy` over those who do not, by the global model.

    Args:
        task: what is learnt.
        params: the global model.
        memories: what clients remember, `[clients, ...]`.
        data: the rows of both, as `tested`.
        own: `own(params, memory)`, the model of a client who takes part; by default the global one.
    """
    found = {}
    for name, rows in data.items():
        theirs = {"own": own, "memories": memories} if own and name == "clients" else {}
        every = scores(ccfl.evaluate_clients(task, params, rows, **theirs))
        for metric, values in every.items():
            over = fairness(metric, values)._asdict()
            found |= {f"{name}_{kind}_{metric}": value for kind, value in over.items()}
    return found


def scores(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The metrics but the loss, unless there are no others."""
    return {name: values for name, values in found.items() if name != "loss"} or found


def fairness(name: str, values: np.ndarray) -> Fairness:
    """`ccfl.fairness` of a score; of a loss or an error the worst are the highest."""
    mean, worst, variance = ccfl.fairness(metrics.goodness(name, values))
    return Fairness(metrics.goodness(name, mean), metrics.goodness(name, worst), variance)
