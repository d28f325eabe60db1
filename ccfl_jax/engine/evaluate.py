"""Evaluation: the task's metrics over all rows of some data, each exactly once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Batch, Params, Task
from ccfl_jax.data.federated_data import check_dtype

# Rows of one batch at most: a sum of up to five hits a row is exact in float32.
_ROWS_TOGETHER = 2**20


def evaluate(task: Task, params: Params, arrays: Batch, batch_size: int = 1000) -> dict[str, float]:
    """The task's metrics over all rows of `arrays`, each exactly once.

    The last partial batch is padded and masked; the batches' sums and counts are added in float64
    on the host, so the result does not depend on the batch size and counts are exact.

    Args:
        task: what was learnt.
        params: one model.
        arrays: name -> `[N, ...]`, N at least 1.
        batch_size: rows evaluated together, at most 2**20.

    Returns:
        name -> sum / count; nan where the count is 0 or the model's numbers are not finite.

    Raises:
        ValueError: for a batch size below 1, no rows, arrays of unequal length, or numbers that
            JAX cannot hold.
    """
    together = rows_together(arrays, batch_size)
    sums, finite = _jitted_sums(task, params, arrays, together)
    return {name: float(value) for name, value in ratios(sums, finite).items()}


def rows_together(arrays: Batch, batch_size: int) -> int:
    """The rows of a batch of an evaluation; ValueError for data that cannot be evaluated."""
    lengths = {name: len(a) for name, a in arrays.items()}
    rows = next(iter(lengths.values()), 0)
    if rows == 0 or set(lengths.values()) != {rows}:
        raise ValueError(f"arrays: expected equal lengths >= 1, found {lengths}")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size: expected an integer >= 1, found {batch_size!r}")
    for name, array in arrays.items():
        check_dtype(name, array)
    return min(batch_size, rows, _ROWS_TOGETHER)


def ratios(
    sums: dict[str, tuple[jax.Array, jax.Array]], finite: jax.Array
) -> dict[str, np.ndarray]:
    """Sums over counts, both `[..., batches]`, added up in float64 on the host.

    nan where the model is not finite (`finite` `[...]`), whatever the metrics say.
    """
    added = {
        name: [np.sum(a, axis=-1, dtype=np.float64) for a in pair]
        for name, pair in jax.device_get(sums).items()
    }
    return {
        name: np.divide(
            total, count, out=np.full_like(total, np.nan), where=np.asarray(finite) & (count != 0)
        )
        for name, (total, count) in added.items()
    }


def batch_sums(
    task: Task, params: Params, arrays: Batch, batch_size: int
) -> tuple[dict[str, Any], jax.Array]:
    """name -> the metrics' sums and counts `[batches]` of one model; whether it is finite."""
    rows = len(next(iter(arrays.values())))

    def one_batch(first: jax.Array) -> dict[str, Any]:
        places = first + jnp.arange(batch_size)
        batch = {name: jnp.asarray(a)[jnp.minimum(places, rows - 1)] for name, a in arrays.items()}
        return task.metrics(params, batch, places < rows)

    return jax.lax.map(one_batch, jnp.arange(0, rows, batch_size)), tree_util.all_finite(params)


_jitted_sums = jax.jit(batch_sums, static_argnums=(0, 3))
