"""CC-Local: the work of one client in one round (Algorithm 3)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import minibatches, tree_util
from ccfl_jax.algorithm.types import Array, Batch, End, Normalise, Params, Task, WorkUnit

# Streams of a visit's key: a new consumer takes a new number, so the others draw the same.
_DRAW_STREAM, _LOSS_STREAM, _OPTIMISER_STREAM, RULE_STREAM = range(4)


class Client(NamedTuple):
    """One client's samples: rows `indices[start : start + size]` of the shared arrays.

    Attributes:
        arrays: the data of all clients, name -> `[N, ...]`.
        indices: int32 `[total]`, the index lists of all clients one after another.
        start: int32 scalar, where this client's list begins.
        size: int32 scalar, its length.
    """

    arrays: Batch
    indices: Array
    start: Array
    size: Array


class LocalInfo(NamedTuple):
    """What one client did in one round.

    Attributes:
        steps: int32 scalar, K_{t,i}, local steps taken.
        samples: int32 scalar, samples processed, counted once per visit.
        loss: float32 scalar, mean over those samples of the loss just before their step; nan
            without work.
        metrics: name -> float32 scalar, the task's metrics over the same samples and models.
    """

    steps: jax.Array
    samples: jax.Array
    loss: jax.Array
    metrics: dict[str, jax.Array]


LocalFn = Callable[[Params, Client, Array, jax.Array], End]


def build_local(
    task: Task,
    optimiser: optax.GradientTransformation | float,
    batch_size: int,
    work_unit: WorkUnit = "epochs",
    normalise: Normalise = "steps",
) -> LocalFn:
    r"""CC-Local for one client (Algorithm 3), the batch axis over clients comes from outside.

    From the start model :math:`x_{\mu,0} = x_\mu` it takes :math:`K_{t,i}` steps of the local
    optimiser, whose state is fresh in every round, and returns the upload

    .. math:: \Delta^i_\mu = (x_{\mu,0} - x_{\mu,K_{t,i}}) / K_{t,i}

    Work in epochs (E): every epoch is a fresh permutation of the client's samples, the last short
    batch is kept, so K = E ceil(n_i / B). Work in steps: K batches drawn with replacement. A client
    without samples does no work; no work gives a zero upload.

    Departures from the paper: its Algorithm 3 divides by steps, its section 5.1 counts work in
    epochs; `normalise` says by which the upload is divided (`"epochs"`: E, or K B / n_i where work
    is steps), `"none"` sends the plain delta. Any optax optimiser may stand for SGD.

    Loss and metrics are summed step by step in float32, in which counts are exact up to 2**24:
    over a visit of more samples than that their means lose digits, and with batches of one sample
    the sums stop growing. `LocalInfo.samples` is an int32 and exact.

    Args:
        task: what is learnt.
        optimiser: the local optax optimiser, or a number: the rate of plain SGD, which takes the
            task's own way to step (`Task.descend`) where it has one.
        batch_size: B.
        work_unit: what `work` counts. Steps and samples of a visit are counted in int32: work in
            epochs times the client's samples, or in steps times B, has to be under 2**31.
        normalise: by what the upload is divided.

    Returns:
        `local(start_model, client, work, key) -> End`; `work` is an int32 scalar; the upload has
        the model's shapes, in float32 where the model is in a shorter float.
    """
    in_epochs = work_unit == "epochs"
    draw = minibatches.epoch_batch if in_epochs else minibatches.random_batch
    init, descend = _stepper(task, optimiser)

    def local(start: Params, client: Client, work: Array, key: jax.Array) -> End:
        size = jnp.maximum(client.size, 1)  # an empty client takes no step, but may not divide by 0
        steps = count_steps(work, client.size, batch_size, work_unit)
        draws = jax.random.fold_in(key, _DRAW_STREAM)
        source = minibatches.shuffle_seeds(key) if in_epochs else draws
        loss_key = jax.random.fold_in(key, _LOSS_STREAM)

        def step(k: jax.Array, carry: tuple) -> tuple:
            params, optimiser_state, sums = carry
            positions, mask = draw(source, k, size, batch_size)
            rows = client.indices[client.start + positions]
            batch = {name: _gather(array, rows) for name, array in client.arrays.items()}
            step_key = jax.random.fold_in(loss_key, k)
            seen, params, optimiser_state = descend(params, optimiser_state, batch, mask, step_key)
            return params, optimiser_state, _add(sums, mask, *seen)

        own = _seeded(init(start), jax.random.fold_in(key, _OPTIMISER_STREAM))
        begin = (start, own, _no_sums(task, start, client, batch_size))
        end, optimiser_state, sums = jax.lax.fori_loop(0, steps, step, begin)
        divisor = _divisor(normalise, work_unit, steps, work, size, batch_size)
        upload = _upload(start, end, *divisor)
        return End(upload, _info(steps, sums), end, optimiser_state)

    return local


def _seeded(state: Any, key: jax.Array) -> Any:
    """An optimiser's fresh state; its keys, as of `optax.add_noise`, become this visit's own."""
    number = jax.random.bits(key)

    def seeded(path: tuple, leaf: jax.Array) -> jax.Array:
        dtype = getattr(leaf, "dtype", float)
        is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
        named = path and getattr(path[-1], "name", None) in ("rng_key", "key")
        is_raw_key = named and dtype == jnp.uint32
        return jax.random.fold_in(leaf, number) if is_key or is_raw_key else leaf

    return jax.tree_util.tree_map_with_path(seeded, state)


def _gather(array: jax.Array, rows: jax.Array) -> jax.Array:
    # As rows of numbers: XLA for CPUs is four times slower on rows of more axes.
    return array.reshape(len(array), -1)[rows].reshape(*rows.shape, *array.shape[1:])


def count_steps(work: Array, size: Array, batch_size: int, work_unit: WorkUnit) -> jax.Array:
    """K_{t,i}, local steps: work ceil(n_i / B) for epochs, work for steps, 0 without samples."""
    if work_unit == "epochs":
        return jnp.asarray(work * minibatches.steps_per_epoch(size, batch_size))
    return jnp.where(size > 0, work, 0)


def _stepper(
    task: Task, optimiser: optax.GradientTransformation | float
) -> tuple[Callable, Callable]:
    """`init(params) -> state` and one step of the optimiser:

    `descend(params, state, batch, mask, key) -> ((loss, metrics), params, state)`.
    """
    plain = not isinstance(optimiser, optax.GradientTransformation)
    if plain and task.descend is not None:
        sgd, rate = task.descend, optimiser

        def descend_as_task(params: Params, state: Any, *batch: Any) -> tuple:
            *seen, params = sgd(params, *batch, rate)
            return seen, params, state

        return lambda params: (), descend_as_task
    optimiser = optax.sgd(optimiser) if plain else optimiser

    def both(params: Params, batch: Batch, mask: jax.Array, key: jax.Array) -> tuple:
        return task.loss(params, batch, mask, key), task.metrics(params, batch, mask)

    # From one pass where possible: XLA does not always see that two passes are equal.
    observe = jax.value_and_grad(task.observe or both, has_aux=True)
    update = optax.with_extra_args_support(optimiser).update

    def descend(params: Params, state: Any, *batch: Any) -> tuple:
        seen, gradient = observe(params, *batch)
        line = {"value": seen[0], "grad": gradient, "value_fn": lambda at: task.loss(at, *batch)}
        updates, state = update(gradient, state, params, **line)
        return seen, optax.apply_updates(params, updates), state

    return optimiser.init, descend


# Over the steps: samples, int32; the loss times samples; each metric's (total, count). float32.
_Sums = tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]


def _no_sums(task: Task, params: Params, client: Client, batch_size: int) -> _Sums:
    batch = {
        name: jax.ShapeDtypeStruct((batch_size, *a.shape[1:]), a.dtype)
        for name, a in client.arrays.items()
    }
    mask = jax.ShapeDtypeStruct((batch_size,), bool)
    metrics = jax.eval_shape(task.metrics, params, batch, mask)
    zero = jnp.zeros((), jnp.float32)
    return jnp.zeros((), jnp.int32), zero, jax.tree.map(lambda _: zero, metrics)


def _add(sums: _Sums, mask: jax.Array, loss: jax.Array, metrics: dict) -> _Sums:
    count = mask.sum(dtype=jnp.int32)
    loss, metrics = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (loss, metrics))
    return jax.tree.map(jnp.add, sums, (count, count * loss, metrics))


def _info(steps: jax.Array, sums: _Sums) -> LocalInfo:
    samples, loss, metrics = sums
    metrics = {name: total / count for name, (total, count) in metrics.items()}
    return LocalInfo(steps, samples, loss / samples, metrics)


def _divisor(
    normalise: str,
    work_unit: str,
    steps: jax.Array,
    work: Array,
    size: jax.Array,
    batch_size: int,
) -> tuple[Array | int, Array | int]:
    """What an upload is divided by, as a quotient of integers."""
    if normalise == "none":
        return 1, 1
    if normalise == "steps":
        return jnp.maximum(steps, 1), 1
    if work_unit == "epochs":
        return jnp.maximum(work, 1), 1
    return jnp.maximum(steps, 1) * batch_size, size


def _upload(start: Params, end: Params, work: Array | int, unit: Array | int) -> Params:
    def delta(a: jax.Array, b: jax.Array) -> jax.Array:
        dtype = tree_util.at_least_float32(a.dtype)
        divisor = jnp.asarray(work, dtype) / jnp.asarray(unit, dtype)
        return (a.astype(dtype) - b.astype(dtype)) / divisor

    return jax.tree.map(delta, start, end)
