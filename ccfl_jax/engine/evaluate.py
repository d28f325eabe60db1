"""Evaluation: the task's metrics over all rows of some data, each exactly once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Batch, Params, Task
from ccfl_jax.checks import check_kind, check_whole, unmasked
from ccfl_jax.data import FederatedData
from ccfl_jax.data.arrays import held, num_rows, samples, warn_of_faults
from ccfl_jax.data.federated_data import converted
from ccfl_jax.engine.programs import compiled
from ccfl_jax.engine.state import State

# Rows of one batch at most: a sum of up to five hits a row is exact in float32.
_ROWS_TOGETHER = 2**20
# So many rows on the host are padded to a power of two: clients of all sizes share a few programs.
_FEW_ROWS = 4096


def evaluate(task: Task, params: Params, arrays: Batch, batch_size: int = 1000) -> dict[str, float]:
    """The task's metrics over all rows of `arrays`, each exactly once.

    The last partial batch is padded and masked; the batches' sums and counts are added in float64
    on the host, so the result does not depend on the batch size and counts are exact. Where the
    model or the arrays are on several devices, a whole copy on each, these share the batches.

    Args:
        task: what was learnt.
        params: one model.
        arrays: name -> `[N, ...]`, N at least 1.
        batch_size: rows evaluated together, at most 2**20.

    Returns:
        name -> sum / count; nan where the count is 0 or the model's numbers are not finite.

    Raises:
        ValueError: for a batch size below 1, no rows, arrays of unequal length, or numbers that
            JAX cannot hold; for a state instead of `params`.

    Warns of rows that are not finite, and of labels that the task does not know.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> params = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
        >>> _, test = ccfl.load_dataset("synthetic")
        >>> round(ccfl.evaluate(task, params, test)["loss"], 3)  # log(10)
        2.303
    """
    arrays, batch_size = taken(task, arrays, batch_size)
    rows = num_rows(arrays)
    if rows <= _FEW_ROWS and not any(isinstance(a, jax.Array) for a in arrays.values()):
        arrays = _padded(arrays, rows)
    run = compiled(batch_sums, task.metrics, static_argnums=(0, 4))
    mesh = _mesh((params, arrays))
    together = min(batch_size, -(-num_rows(arrays) // (1 if mesh is None else mesh.size)))
    sums, finite = run(together, model(params), arrays, rows, mesh)
    return {name: float(value) for name, value in ratios(sums, finite).items()}


def evaluate_clients(
    task: Task,
    params: Params,
    data: FederatedData,
    batch_size: int = 100,
    own: Callable[[Params, Any], Params] | None = None,
    memories: Any = (),
) -> dict[str, np.ndarray]:
    """The task's metrics of every client, over its own samples: one program for all sizes.

    Devices share the clients, as batches in `evaluate`.

        heads = lambda params, memory: memory  # of `systems.fine_tuning`, each client's own model
        ccfl.evaluate_clients(task, params, data, own=heads, memories=state.clients)

    Args:
        task: what was learnt.
        params: the global model.
        data: the clients' samples to score, their test rows for example.
        batch_size: rows of a client evaluated together, at most 2**20. Sums are float32, so counts
            of a client are exact up to 2**24.
        own: `own(params, memory) -> params`, a client's own model; by default the global one.
        memories: what clients remember, `[clients, ...]`: `State.clients` without a plan.

    Returns:
        name -> float64 `[clients]`, sum / count; nan where the count is 0 or the model is not
        finite.

    Raises:
        ValueError: for a batch size below 1, or memories of another number of clients.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> train, test, clients = ccfl.data.synthetic(num_clients=4)
        >>> data = ccfl.FederatedData.from_indices(test, ccfl.partition_natural(test["client"]))
        >>> params = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
        >>> print(ccfl.evaluate_clients(task, params, data)["loss"].round(3))
        [2.303 2.303 2.303 2.303]
    """
    check_kind("task", task, Task, "a ccfl.Task")
    check_kind("data", data, FederatedData, "ccfl.FederatedData")
    batch_size = min(check_whole("batch_size", batch_size, 1), _ROWS_TOGETHER)
    for leaf in jax.tree.leaves(memories):
        if len(leaf) != len(data):
            raise ValueError(
                f"memories: expected {len(data)} rows, one for each client, found {len(leaf)}"
            )
    named = {n: data.arrays[n] for n, *_ in task.labels if n in data.arrays}
    warn_of_faults(named, task.labels)
    run = compiled(_client_sums, task.metrics, static_argnums=(0, 1, 5))
    mesh = _mesh((params, memories, data.arrays))
    sums, finite = run(own, batch_size, model(params), memories, converted(data), mesh)
    return ratios(jax.tree.map(lambda a: a[:, None], sums), finite)


class Fairness(NamedTuple):
    """A metric over clients, each of which counts the same.

    Attributes:
        mean: over the clients.
        worst: the mean of the lowest tenth of them, ceil(n / 10) clients.
        variance: the mean squared distance from the mean.
    """

    mean: float
    worst: float
    variance: float


def fairness(scores: Any) -> Fairness:
    """Mean, worst decile and variance over clients of a metric that is better the higher it is.

    Args:
        scores: float `[clients]`, as `evaluate_clients` gives them; nan is left out.

    Raises:
        ValueError: for scores that are no numbers `[clients]`, or masked.

    Examples:
        >>> scores = np.array([0.9, 0.8, 0.95, np.nan, 0.35])  # nan of one without samples
        >>> found = ccfl.fairness(scores)
        >>> round(found.mean, 2), round(found.worst, 2)
        (0.75, 0.35)
    """
    known = unmasked("scores", scores)
    real = jnp.issubdtype(known.dtype, jnp.floating) or known.dtype.kind in "iu"
    if known.ndim != 1 or not real:
        raise ValueError(f"scores: expected numbers [clients], found {known.dtype} {known.shape}")
    known = known.astype(np.float64)
    known = np.sort(known[~np.isnan(known)])
    if not known.size:
        return Fairness(np.nan, np.nan, np.nan)
    worst = known[: -(-len(known) // 10)]
    return Fairness(float(known.mean()), float(worst.mean()), float(known.var()))


def _client_sums(
    metrics: Callable,
    own: Callable | None,
    batch_size: int,
    params: Params,
    memories: Any,
    data: FederatedData,
    mesh: Mesh | None,
) -> tuple[dict[str, Any], jax.Array]:
    """The metrics' sums and counts `[clients]`; whether each one's model is finite."""

    def one(
        client: jax.Array, params: Params, memories: Any, data: FederatedData
    ) -> tuple[dict[str, Any], jax.Array]:
        memory = jax.tree.map(lambda a: a[client], memories)
        model = params if own is None else own(params, memory)
        begin, size = data.offsets[client], data.offsets[client + 1] - data.offsets[client]

        def batch(k: jax.Array) -> dict[str, Any]:
            places = k * batch_size + jnp.arange(batch_size)
            rows = data.indices[begin + jnp.clip(places, 0, jnp.maximum(size - 1, 0))]
            arrays = {name: jnp.asarray(a)[rows] for name, a in data.arrays.items()}
            return metrics(model, arrays, places < size)

        def add(k: jax.Array, sums: dict[str, Any]) -> dict[str, Any]:
            return jax.tree.map(lambda a, b: a + b.astype(a.dtype), sums, batch(k))

        none = jax.eval_shape(batch, jnp.int32(0))
        none = jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.float32), none)
        batches = -(-size // batch_size)
        return jax.lax.fori_loop(0, batches, add, none), tree_util.all_finite(model)

    return _spread(mesh, one, len(data), params, memories, data)


def _mesh(tree: Any) -> Mesh | None:
    """The devices that have a whole copy of an array of the tree each, if several have."""
    for leaf in jax.tree.leaves(tree):
        where = leaf.sharding if isinstance(leaf, jax.Array) else None
        if isinstance(where, NamedSharding) and where.is_fully_replicated and where.mesh.size > 1:
            return where.mesh if isinstance(where.mesh, Mesh) else None
    return None


def _spread(mesh: Mesh | None, function: Callable, count: int, *world: Any) -> Any:
    """`function(k, *world)` of k from 0 to `count` - 1, stacked: a share of them on each device."""
    if mesh is None:
        return jax.lax.map(lambda k: function(k, *world), jnp.arange(count))
    axes, share = mesh.axis_names, -(-count // mesh.size)

    def on_device(*world: Any) -> Any:
        places = jax.lax.axis_index(axes) * share + jnp.arange(share)
        own = jax.lax.map(lambda k: function(jnp.minimum(k, count - 1), *world), places)
        return jax.tree.map(lambda a: jax.lax.all_gather(a, axes, tiled=True), own)

    every = jax.shard_map(on_device, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    return jax.tree.map(lambda a: a[:count], every(*world))


def model(params: Params) -> Params:
    """The parameters for a compiled program; ValueError for a state instead of them."""
    if isinstance(params, State):
        raise ValueError("params: expected those of a model, as state.params, found a ccfl.State")
    return held("params", params)


def taken(task: Task, arrays: Batch, batch_size: int) -> tuple[Batch, int]:
    """The arrays and the rows of a batch, at most; ValueError where these cannot be evaluated."""
    check_kind("task", task, Task, "a ccfl.Task")
    batch_size = check_whole("batch_size", batch_size, 1)
    arrays = samples(arrays)
    warn_of_faults(arrays, task.labels, stacklevel=4)
    return arrays, min(batch_size, _ROWS_TOGETHER)


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


def _padded(arrays: Batch, rows: int) -> Batch:
    """Arrays of the least power of two of rows that is enough, the last one repeated."""
    places = np.minimum(np.arange(1 << (rows - 1).bit_length()), rows - 1)
    return {name: array[places] for name, array in arrays.items()}


def batch_sums(
    metrics: Callable,
    batch_size: int,
    params: Params,
    arrays: Batch,
    rows: jax.Array | int,
    mesh: Mesh | None = None,
) -> tuple[dict[str, Any], jax.Array]:
    """name -> a task's metrics' sums and counts `[batches]` of a model; whether it is finite.

    Of the first `rows` rows; `batch_size` of them together; over the devices of `mesh`.
    """

    def one_batch(k: jax.Array, params: Params, arrays: Batch, rows: jax.Array | int) -> dict:
        places = k * batch_size + jnp.arange(batch_size)
        batch = {name: jnp.asarray(a)[jnp.minimum(places, rows - 1)] for name, a in arrays.items()}
        return metrics(params, batch, places < rows)

    batches = -(-num_rows(arrays) // batch_size)
    sums = _spread(mesh, one_batch, batches, params, arrays, rows)
    return sums, tree_util.all_finite(params)
