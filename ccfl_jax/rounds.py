"""One round of client-centric federated optimisation (Algorithm 2).

This is the only place that batches clients.
"""

from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from ccfl_jax import aggregate as aggregation
from ccfl_jax import history as past
from ccfl_jax import layout, tree
from ccfl_jax.data import FederatedData
from ccfl_jax.local import Client, LocalInfo, Normalise, WorkUnit, build_local, count_steps
from ccfl_jax.schedule import Schedule
from ccfl_jax.types import Aggregate, Params, Task

# One seed, named streams: a new consumer takes a new number and moves no other.
_INIT_STREAM, _LOCAL_STREAM = range(2)


class State(NamedTuple):
    """What the next round needs.

    Attributes:
        params: x_t.
        server: the server's optax state.
        history: past global models, x_t among them.
        aggregate: the aggregator's state.
        round: int32 scalar, t, the next round.
        key: PRNG key, the same in every round; all local randomness derives from it.
    """

    params: Params
    server: optax.OptState
    history: past.History
    aggregate: Any
    round: jax.Array
    key: jax.Array


class Info(NamedTuple):
    """What a person wants to see of a round; "returned" slots are present and did work.

    Attributes:
        train_loss: float32 scalar, mean over the counted slots of their local training loss; nan
            when there is none.
        train_metrics: name -> float32 scalar, the task's metrics in the same way.
        participants: int32 scalar, slots counted in the pseudo-gradient.
        rejected: int32 scalar, returned slots left out because of a non-finite upload.
        finite: bool scalar, whether every number of x_{t+1} is finite.
        present: bool `[slots]`, returned slots.
        counted: bool `[slots]`, those of them that are part of the pseudo-gradient.
        staleness: int32 `[slots]`, versions between download and use.
        steps: int32 `[slots]`, local steps; 0 where absent.
        samples: int32 `[slots]`, samples processed; 0 where absent.
    """

    train_loss: jax.Array
    train_metrics: dict[str, jax.Array]
    participants: jax.Array
    rejected: jax.Array
    finite: jax.Array
    present: jax.Array
    counted: jax.Array
    staleness: jax.Array
    steps: jax.Array
    samples: jax.Array


class _Slot(NamedTuple):
    """A slot as the local work sees it: int32, scalars or `[slots]`.

    `start` is the history slot of the model that it starts from, `visit` as `_which_visit`.
    """

    client: jax.Array
    start: jax.Array
    work: jax.Array
    visit: jax.Array


Local = optax.GradientTransformation | Real
RoundFn = Callable[[State, Schedule, FederatedData], tuple[State, Info]]


def init_state(
    task: Task,
    server: optax.GradientTransformation,
    key: jax.Array,
    history_length: int = 1,
    aggregate: Aggregate | None = None,
) -> State:
    """The state before round 0.

    Args:
        task, server, aggregate: those of `build_round`.
        key: PRNG key; the initial model and the local randomness are separate streams of it.
        history_length: global models kept: max_delay + 1, or `Schedule.history_slots()` for a
            planned schedule.

    Raises:
        ValueError: if `history_length` is below 1.
    """
    params = jax.tree.map(jnp.asarray, task.init(jax.random.fold_in(key, _INIT_STREAM)))
    return State(
        params=params,
        server=server.init(params),
        history=past.init(params, history_length),
        aggregate=(aggregate or aggregation.mean()).init(params),
        round=jnp.zeros((), jnp.int32),
        key=jax.random.fold_in(key, _LOCAL_STREAM),
    )


def build_round(
    task: Task,
    server: optax.GradientTransformation,
    local: Local | Callable[[jax.Array], Local] = 0.01,
    batch_size: int = 20,
    work_unit: WorkUnit = "epochs",
    normalise: Normalise = "steps",
    aggregate: Aggregate | None = None,
    lanes: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> RoundFn:
    """One round as a pure function `round_fn(state, slots, data) -> (state, info)`.

    Args:
        task: what is learnt.
        server: any optax transformation; its "gradient" is the pseudo-gradient.
        local: the clients' optax optimiser, or a number, the rate of plain SGD; or a function of
            the round t (int32 scalar) that gives one of the two, as an optax schedule does. It
            follows the server's rounds, whenever a client joins and however stale its model is; a
            schedule inside an optimiser counts the steps of one visit and starts again in the next.
        batch_size: B, local batch size.
        work_unit: what the schedule's `work` counts, "epochs" or "steps".
        normalise: by what an upload is divided, "steps" (the paper's K), "epochs" or "none".
        aggregate: m uploads -> pseudo-gradient, `mean()` by default.
        lanes: how many clients advance together on a device. A lane costs as much as the longest of
            its group. By default as many as `layout.lanes` says for the size of the model.
        mesh: devices to spread the clients of a round over, along its first axis; one device by
            default. State and data are held by all of them: put them there first, with
            `jax.device_put(..., NamedSharding(mesh, PartitionSpec()))`, or every run compiles
            twice. For host devices set XLA_FLAGS to `--xla_cpu_multi_thread_eigen=false`: one's
            operations are then not split over the cores of all.

    Returns:
        `round_fn`; `slots` is a row of a `Schedule` (arrays `[slots]`), `data` a `FederatedData`.
        The history is read and written as the schedule's plan says, as a ring where it has none.
        The result depends on lanes and devices only by the rounding of sums.

    Raises:
        ValueError: for a batch size or lanes below 1, an unknown work unit or normalisation, or a
            `local` that is neither optimiser, number nor function.
    """
    _check_choices(local, batch_size, work_unit, normalise, lanes)
    combine = aggregate or aggregation.mean()

    def visit(state: State, data: FederatedData, slot: _Slot) -> tuple:
        """One client's part: retrieve a past model, work on it, upload."""
        start_model = past.read(state.history, slot.start)
        key = jax.random.fold_in(state.key, state.round)
        key = jax.random.fold_in(jax.random.fold_in(key, slot.client), slot.visit)
        optimiser = local(state.round) if callable(local) else local
        cc_local = build_local(task, optimiser, batch_size, work_unit, normalise)
        upload, report = cc_local(start_model, _client(data, slot.client), slot.work, key)
        return upload, report, (report.steps > 0) & tree.all_finite(upload)

    def round_fn(state: State, slots: Schedule, data: FederatedData) -> tuple[State, Info]:
        work = jnp.where(slots.present, slots.work, 0)  # an absent slot costs no step
        steps = count_steps(work, _client(data, slots.client).size, batch_size, work_unit)
        read, write = _history_slots(slots, state)
        visits = _Slot(slots.client, read, work, _which_visit(slots))
        total, report, counted = _add_up(visit, combine, visits, steps, lanes, mesh, state, data)

        participants = counted.sum(dtype=jnp.int32)
        delta, memory = combine.finish(total, participants, state.aggregate)
        updates, server_state = server.update(delta, state.server, state.params)
        params = optax.apply_updates(state.params, updates)

        # A round that brings nothing is no server step: momentum would move the model otherwise.
        params, server_state, memory = tree.select(
            participants > 0,
            (params, server_state, memory),
            (state.params, state.server, state.aggregate),
        )
        following = state.round + 1
        history = past.write(state.history, write, params, following)
        next_state = State(params, server_state, history, memory, following, state.key)
        return next_state, _info(slots, report, counted, tree.all_finite(params))

    return round_fn


def _client(data: FederatedData, client: jax.Array) -> Client:
    begin, end = data.offsets[client], data.offsets[client + 1]
    return Client(data.arrays, data.indices, begin, end - begin)


def _history_slots(slots: Schedule, state: State) -> tuple[jax.Array, jax.Array]:
    """Where x_{t-s} of every slot stands, int32 `[slots]`, and where x_{t+1} goes."""
    if slots.read is not None:
        return slots.read, slots.write
    length = past.length(state.history)
    read = past.ring_slot(state.round - slots.staleness, length)
    return read, past.ring_slot(state.round + 1, length)


def _which_visit(slots: Schedule) -> jax.Array:
    """int32 `[slots]`: how many earlier present slots the same client fills in this round."""
    # Sorted, not every slot with every other: for a thousand tiny clients that is a seventh of a
    # round on one core, and every device does it again.
    client = jnp.where(slots.present, slots.client, -1)
    order = jnp.argsort(client, stable=True)
    place = jnp.arange(len(client), dtype=jnp.int32)
    is_first = jnp.diff(client[order], prepend=-2) != 0
    visit = place - jax.lax.cummax(jnp.where(is_first, place, 0))
    visit = jnp.zeros_like(place).at[order].set(visit)
    return jnp.where(slots.present, visit, 0)


def _add_up(
    visit: Callable,
    combine: Aggregate,
    visits: _Slot,
    steps: jax.Array,
    lanes: int | None,
    mesh: jax.sharding.Mesh | None,
    state: State,
    data: FederatedData,
) -> tuple[Any, LocalInfo, jax.Array]:
    """The sum of all slots' uploads, with the slots' reports and what `counted`, `[slots, ...]`.

    Slots advance in groups of `lanes` on each device; no more uploads than that exist at a time.
    """
    if lanes is None:
        devices = 1 if mesh is None else mesh.size
        parameters = optax.tree.size(state.params)
        lanes = layout.lanes(jax.default_backend(), parameters, len(steps), devices)
    groups, costs = layout.groups(steps, min(lanes, len(steps)))
    world = (groups, visits, state, data)
    run_groups = partial(_run_groups, visit, combine)
    if mesh is None or mesh.size == 1:
        total, reports = run_groups(jnp.arange(len(groups)), len(groups), *world)
        return total, *reports
    axis = mesh.axis_names[0]
    plan, numbers = layout.longest_first(costs, mesh.shape[axis])

    def on_device(plan: jax.Array, numbers: jax.Array, *world: Any) -> tuple:
        device = jax.lax.axis_index(axis)
        # Every slot is reported by one device, the others report zeros.
        return jax.lax.psum(run_groups(plan[device], numbers[device], *world), axis)

    total, (report, counted) = jax.shard_map(
        on_device, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )(plan, numbers, *world)
    return total, report, counted > 0


def _run_groups(
    visit: Callable,
    combine: Aggregate,
    plan: jax.Array,
    number: int | jax.Array,
    groups: jax.Array,
    visits: _Slot,
    state: State,
    data: FederatedData,
) -> tuple[Any, tuple[LocalInfo, jax.Array]]:
    """One device's part: the first `number` groups of its `plan`, one after another."""
    count, lanes = len(visits.client), groups.shape[1]
    visit_one = partial(visit, state, data)

    def run_group(k: jax.Array, carry: tuple) -> tuple:
        total, reports = carry
        group = groups[plan[k]]
        # A slot that is none reads zeros: client 0 without work.
        slots = jax.tree.map(lambda a: a.at[group].get(mode="fill", fill_value=0), visits)
        uploads, report, counted = _together(visit_one, slots, lanes)
        reports = jax.tree.map(
            lambda a, b: a.at[group].set(b, mode="drop"), reports, (report, counted)
        )
        return combine.add(total, uploads, counted), reports

    shapes = jax.eval_shape(visit_one, jax.tree.map(lambda a: a[0], visits))[1:]
    reports = jax.tree.map(lambda a: jnp.zeros((count, *a.shape), a.dtype), shapes)
    return jax.lax.fori_loop(0, number, run_group, (combine.start(state.params), reports))


def _together(visit: Callable, slots: _Slot, lanes: int) -> tuple:
    """`visit` for every entry along a leading axis of length `lanes`."""
    if lanes > 1:
        return jax.vmap(visit)(slots)
    # Not a batch of one: a kernel without a leading axis keeps its fast convolution.
    alone = visit(jax.tree.map(lambda a: a[0], slots))
    return jax.tree.map(lambda a: a[None], alone)


def _info(slots: Schedule, report: LocalInfo, counted: jax.Array, finite: jax.Array) -> Info:
    returned = report.steps > 0
    participants = counted.sum(dtype=jnp.int32)

    def mean(a: jax.Array) -> jax.Array:
        return tree.masked_sum(a, counted) / participants  # nan where nobody counts

    return Info(
        train_loss=mean(report.loss),
        train_metrics=jax.tree.map(mean, report.metrics),
        participants=participants,
        rejected=(returned & ~counted).sum(dtype=jnp.int32),
        finite=finite,
        present=returned,
        counted=counted,
        staleness=slots.staleness,
        steps=report.steps,
        samples=report.samples,
    )


def _check_choices(
    local: Any, batch_size: int, work_unit: str, normalise: str, lanes: int | None
) -> None:
    if not (callable(local) or isinstance(local, Local | jax.Array)):
        legal = "an optax optimiser, a number, or a function of the round that gives one"
        raise ValueError(f"local: found {local!r}, legal: {legal}")
    for name, count in (("batch_size", batch_size), ("lanes", 1 if lanes is None else lanes)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{name}: found {count!r}, legal: a whole number from 1 on")
    choices = (("work_unit", work_unit, WorkUnit), ("normalise", normalise, Normalise))
    for name, value, legal in choices:
        if value not in get_args(legal):
            raise ValueError(f"{name}: found {value!r}, legal: {', '.join(get_args(legal))}")
