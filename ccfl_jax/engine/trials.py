"""Trials: many runs that differ in rates, seeds or schedules, as one compiled program."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import Partial

from ccfl_jax.algorithm.types import Batch, Params, Task
from ccfl_jax.checks import check_kind, check_whole
from ccfl_jax.data import FederatedData
from ccfl_jax.data.arrays import held, num_rows
from ccfl_jax.engine.evaluate import batch_sums, model, ratios, taken
from ccfl_jax.engine.programs import compiled
from ccfl_jax.engine.run import (
    check_newest,
    check_parts,
    check_schedule,
    loop,
    padded,
    taken_apart,
    usable,
    warn_of_nobody,
)
from ccfl_jax.engine.state import Info, State
from ccfl_jax.schedules import memory_plan
from ccfl_jax.schedules.schedule import Schedule


def run_trials(
    round_fn: Partial,
    states: State,
    schedule: Schedule | Sequence[Schedule],
    data: FederatedData,
    mesh: Mesh | None = None,
    together: int | None = None,
    donate: bool = False,
) -> tuple[State, Info]:
    """`run_rounds` over a leading axis of trials: rates, seeds, schedules; one compiled program.

    A trial's result is that of the same single run, up to the rounding of batched sums, and no
    trial's numbers touch another's. The samples are shared, not copied. States of several seeds
    come from `jax.vmap(lambda key: init_state(task, server, key, length))(keys)`.

    Args:
        round_fn: a `jax.tree_util.Partial` that builds a round, without a mesh, from its first
            arguments, which have a leading axis `[trials]`: learning rates, for example.
        states: the states of all trials, stacked `[trials, ...]`, all before the same round. There
            may be more, up to a multiple of the devices: these fill them, and do not count.
        schedule: one for all trials, or a sequence with one for each, all planned or none; as in
            `run_rounds` otherwise.
        data: the clients' samples. `indices` and `offsets` may be `[trials, ...]`, other clients in
            every trial; the arrays are common to all.
        mesh: devices to spread the trials over, along its first axis; each runs its own trials and
            waits for no other before the end. Where trials do not fill them, a device that has
            fewer ends sooner; in a batch of `together` there are copies of the last trial.
        together: trials of a device that advance as one batch, the others wait. By default all of
            them, but one on a CPU: on a core, eight trials by 1, 2 and 8 made 28, 26 and 27
            thousand samples a second of the CNN, 293, 249 and 180 of an MLP on digits, 890, 954
            and 1,190 of logistic regression on them (medians of two).
        donate: whether the buffers of `states` may be reused; they must not be used afterwards.

    Returns:
        The states after the last round, as many as there were, and the infos stacked
        `[trials, rounds, ...]` as NumPy arrays.

    Raises:
        ValueError: as `run_rounds`, if trials, schedules and lists are of unequal number, or if
            some schedules are planned and some are not.

    Examples:
        >>> train, test, clients = ccfl.data.synthetic(num_clients=4)
        >>> data = ccfl.FederatedData.from_indices(train, clients)
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=20, num_clients=4, buffer_size=2)
        >>> def round_at(rate, state, slots, data):
        ...     return ccfl.build_round(task, ccfl.cc_fedams(rate), 0.02)(state, slots, data)

        >>> rates = jnp.array([0.0, 0.05])
        >>> first = ccfl.init_state(task, ccfl.cc_fedams(1.0), jax.random.key(0), history_length=6)
        >>> states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), first)
        >>> states, info = ccfl.run_trials(
        ...     jax.tree_util.Partial(round_at, rates), states, schedule, data
        ... )
        >>> info.train_loss.shape, bool(info.train_loss[1, -1] < info.train_loss[0, -1])
        ((2, 20), True)
    """
    schedules = [*schedule] if isinstance(schedule, Sequence) else [schedule]
    check_kind("round_fn", round_fn, Partial, "a jax.tree_util.Partial that builds a round")
    check_parts(round_fn, states, *schedules)
    data = usable(data)
    states, round_fn = held("states", states), held("round_fn", round_fn)
    size, together = _spread_over(np.size(states.round), mesh, together)
    trials = _number_of(round_fn, states, size)
    _check_trials(round_fn, states, schedules, data, trials)
    check_newest(states)
    slots, (rounds, *_) = zip(*map(padded, schedules), strict=True)
    function, given = taken_apart(round_fn)
    own: dict[str, Any] = {"given": given}
    common: dict[str, Any] = {"arrays": data.arrays}
    filled = trials + -trials % size
    if together == 1 and filled > trials:  # of a batch the longest would decide for all
        own["rounds"] = np.where(np.arange(filled) < trials, rounds, 0).astype(np.int32)
    else:
        common["rounds"] = np.int32(rounds)
    if len(schedules) == 1:
        common["slots"] = slots[0]
    else:
        own["slots"] = jax.tree.map(lambda *a: jnp.stack(a), *slots)
    (common if data.offsets.ndim == 1 else own)["lists"] = data.indices, data.offsets
    before, spread = len(states.round), (mesh, size, together)
    states, infos = _each_trial(_run, function, (), states, own, common, *spread, donate)
    if before < filled:
        states = jax.tree.map(lambda a: a[:before], states)
    # A copy, as in `run_rounds`.
    infos = jax.tree.map(lambda a: np.array(np.asarray(a)[:trials, :rounds]), infos)
    warn_of_nobody(infos.present)
    return states, infos


def evaluate_trials(
    task: Task,
    params: Params,
    arrays: Batch,
    batch_size: int = 1000,
    mesh: Mesh | None = None,
    together: int | None = None,
) -> dict[str, np.ndarray]:
    """`evaluate` for the models of all trials, stacked `[trials, ...]`.

    Args:
        task, arrays, batch_size: as for `evaluate`.
        params: the models.
        mesh, together: as for `run_trials`.

    Returns:
        name -> float64 `[trials]`.

    Raises:
        ValueError: as `evaluate`.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> params = task.init(jax.random.key(0))
        >>> models = jax.tree.map(lambda leaf: jnp.stack([leaf, 0 * leaf]), params)  # two of them
        >>> _, test = ccfl.load_dataset("synthetic")
        >>> print(ccfl.evaluate_trials(task, models, test)["loss"].round(1))
        [2.7 2.3]
    """
    arrays, batch_size = taken(task, arrays, batch_size)
    fixed, params = (min(batch_size, num_rows(arrays)),), model(params)
    trials = len(jax.tree.leaves(params)[0])
    spread = mesh, *_spread_over(trials, mesh, together)
    sums = _each_trial(_sums, task.metrics, fixed, params, (), arrays, *spread)
    return ratios(*jax.tree.map(lambda a: a[:trials], sums))


def _run(
    function: Callable, state: State, own: dict[str, Any], common: dict[str, Any]
) -> tuple[State, Info]:
    its = own | common
    data = FederatedData(its["arrays"], *its["lists"])
    return loop(function, its["given"], state, its["slots"], its["rounds"], data)


def _sums(
    metrics: Callable, batch_size: int, params: Params, own: tuple, arrays: Batch
) -> tuple[dict[str, Any], jax.Array]:
    del own
    return batch_sums(metrics, batch_size, params, arrays, num_rows(arrays))


def _check_trials(
    round_fn: Partial, states: State, schedules: list[Schedule], data: FederatedData, trials: int
) -> None:
    counts = {f"argument {i} of round_fn": len(a) for i, a in enumerate(jax.tree.leaves(round_fn))}
    counts["schedule"] = trials if len(schedules) == 1 else len(schedules)
    counts["data"] = trials if data.offsets.ndim == 1 else len(data.offsets)
    for name, found in counts.items():
        if found != trials:
            raise ValueError(f"{name}: expected {trials} trials, as in states, found {found}")
    first, lengths = int(states.round[0]), {one.num_rounds for one in schedules}
    begun = {*map(int, np.asarray(states.round)[:trials])}
    for name, found in (("states", begun), ("schedule", lengths)):
        if len(found) > 1:
            raise ValueError(
                f"{name}: expected the same number of rounds in each trial, found {sorted(found)}"
            )
    for plan in ("read", "recall"):
        planned = sum(getattr(one, plan) is not None for one in schedules)
        if planned not in (0, len(schedules)):
            raise ValueError(
                f"schedule: expected a plan for all trials or none, found {planned} of "
                f"{len(schedules)}"
            )
    units = sorted({str(one.work_unit) for one in schedules})
    if len(units) > 1:
        raise ValueError(f"work_unit: expected the same in each trial, found {', '.join(units)}")
    kept = np.asarray(states.history.version)[:trials]
    if alike := len(schedules) == 1:  # trials with equal histories need one check
        kept = np.unique(kept, axis=0)
        schedules = schedules * len(kept)
    num_clients, memories = data.offsets.shape[-1] - 1, jax.tree.leaves(states.clients)
    for one, versions in zip(schedules, kept, strict=True):
        check_schedule(one, num_clients, first, versions)
        if memories:
            # Those of the largest plan, where trials have plans of their own.
            planned = one.rows if alike else None
            memory_plan.check_rows(planned, one.recall, memories[0].shape[1], num_clients)


def _number_of(round_fn: Partial, states: State, size: int) -> int:
    """The number of trials; on `size` devices there may be more states."""
    if states.round.ndim != 1:
        raise ValueError(f"states: expected [trials, ...], found a round {states.round.shape}")
    trials = [len(leaf) for leaf in jax.tree.leaves(round_fn)[:1]]
    filled = len(states.round)
    return trials[0] if trials and trials[0] + -trials[0] % size == filled else filled


def _spread_over(trials: int, mesh: Mesh | None, together: int | None) -> tuple[int, int]:
    """The number of devices, and of trials that advance as one batch on each."""
    check_kind("mesh", mesh, Mesh | None, "a jax Mesh or None")
    if together is not None:
        check_whole("together", together, 1)
    size = 1 if mesh is None else mesh.shape[mesh.axis_names[0]]
    if together is None and jax.default_backend() == "cpu":
        together = 1
    most = -(-trials // size)
    return size, min(together or most, most)


def _filled(tree: Any, count: int) -> Any:
    """Arrays `[trials, ...]` with the last entry again, `[count, ...]`."""

    def leaf(a: Any) -> Any:
        return a if len(a) == count else jnp.asarray(a)[np.minimum(np.arange(count), len(a) - 1)]

    return jax.tree.map(leaf, tree)


def _each_trial(
    body: Callable,
    function: Callable,
    fixed: tuple,
    first: Any,
    own: Any,
    common: Any,
    mesh: Mesh | None,
    size: int,
    together: int,
    donate: bool = False,
) -> Any:
    """`body(function, *fixed, first, own, common)` for each trial, entries of `first` and `own`.

    They are lengthened up to a multiple of `size`, the devices, and so is the result.
    """
    trials = len(jax.tree.leaves(first)[0])
    first, own = _filled((first, own), trials + -trials % size)
    if mesh is not None and size > 1:
        mesh = Mesh(mesh.devices, mesh.axis_names)  # automatic axes: results can be indexed
        first, own = jax.device_put((first, own), NamedSharding(mesh, P(mesh.axis_names[0])))
        common = jax.device_put(common, NamedSharding(mesh, P()))
    donated = (2,) if donate else ()
    run = compiled(_spread, function, static_argnums=(0, 1, 5, 6), donate_argnums=donated)
    return run(body, fixed, first, own, common, mesh if size > 1 else None, together)


def _spread(
    function: Callable,
    body: Callable,
    fixed: tuple,
    first: Any,
    own: Any,
    common: Any,
    mesh: Mesh | None,
    together: int,
) -> Any:
    def on_device(first: Any, own: Any, common: Any) -> Any:
        # Not batches of one: a kernel without a leading axis keeps its fast convolution.
        size = together if together > 1 else None
        return jax.lax.map(
            lambda trial: body(function, *fixed, *trial, common), (first, own), batch_size=size
        )

    if mesh is None:
        return on_device(first, own, common)
    axis = P(mesh.axis_names[0])
    spread = jax.shard_map(
        on_device, mesh=mesh, in_specs=(axis, axis, P()), out_specs=axis, check_vma=False
    )
    return spread(first, own, common)
