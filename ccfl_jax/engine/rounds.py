"""One round of client-centric federated optimisation (Algorithm 2)."""

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import aggregators as aggregation
from ccfl_jax.algorithm import model_history as past
from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.client_update import Client, LocalInfo, build_local, count_steps
from ccfl_jax.algorithm.types import Aggregate, Array, Normalise, Task, WorkUnit
from ccfl_jax.checks import check_kind, check_whole
from ccfl_jax.data import FederatedData
from ccfl_jax.data.arrays import held
from ccfl_jax.engine.client_batching import Visit, add_up
from ccfl_jax.engine.method_checks import (
    as_a_round_takes_it,
    check_key,
    check_kinds,
    check_local,
    check_params,
    check_state,
    check_step,
)
from ccfl_jax.engine.state import Info, State
from ccfl_jax.schedules.schedule import Schedule

# Streams of one seed: a new consumer takes a new number, so the others draw the same.
_INIT_STREAM, _LOCAL_STREAM = range(2)


Local = optax.GradientTransformation | float
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
        ValueError: if `history_length` is below 1, for a part of another kind than its name says,
            parameters that are no floats, and a key of another generator than threefry2x32.
    """
    check_key(key)
    server = as_a_round_takes_it(server)
    check_kinds(task, server, aggregate)
    # With dtypes of their own: Python's numbers would compile the first piece apart.
    params = jax.tree.map(
        lambda a: jnp.asarray(a, jnp.asarray(a).dtype),
        held("params", task.init(jax.random.fold_in(key, _INIT_STREAM))),
    )
    check_params(params)
    return State(
        params=params,
        server=server.init(tree_util.wide(params)),
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
    work_unit: WorkUnit | None = None,
    normalise: Normalise = "steps",
    aggregate: Aggregate | None = None,
    lanes: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> RoundFn:
    """One round as a pure function `round_fn(state, slots, data) -> (state, info)`.

    Args:
        task: the learning problem.
        server: any optax transformation; its "gradient" is the pseudo-gradient, its `value`, where
            it needs one, the round's training loss. A part of the model that `optax.masked` leaves
            out moves by +Delta, as with any gradient: freeze it with `optax.set_to_zero`.
        local: the clients' optax optimiser, or a number, the rate of plain SGD; or a function of
            the round t (int32 scalar) that gives one of the two, as an optax schedule does. It
            follows the server's rounds, whenever a client joins and however stale its model is; a
            schedule inside an optimiser counts the steps of one visit and starts again in the next.
            Noise of an optimiser is drawn anew in each visit; what `optax.MultiSteps` has not
            applied at the end of one is dropped.
        batch_size: B, local batch size.
        work_unit: what the schedule's `work` counts, "epochs" or "steps"; by default the schedule's
            own unit, or epochs where it has none.
        normalise: by what an upload is divided, "steps" (the paper's K), "epochs" or "none".
        aggregate: m uploads -> pseudo-gradient, `mean()` by default.
        lanes: how many clients advance together on a device. A lane costs as much as the longest of
            its group. By default `load_balancing.lanes` of the size of the model.
        mesh: devices to spread the clients of a round over, along its first axis; one device by
            default. All of them hold state and data: put them there first, with
            `jax.device_put(..., NamedSharding(mesh, PartitionSpec()))`, or every run compiles
            twice. For host devices set XLA_FLAGS to `--xla_cpu_multi_thread_eigen=false`, or each
            device's operations are split over all cores.

    Returns:
        `round_fn`; `slots` is a row of a `Schedule` (arrays `[slots]`), `data` a `FederatedData`.
        The history is read and written as the schedule's plan says, as a ring where it has none.
        The result depends on lanes and devices only by the rounding of sums.

    Raises:
        ValueError: for a batch size or lanes below 1, an unknown work unit or normalisation, a
            `local` that is neither optimiser, number nor function of the round, or a server that
            cannot step; from `round_fn`, for a schedule in another unit of work than `work_unit`,
            and a state that `init_state` made for another kind of server or aggregate.
    """
    _check_choices(work_unit, normalise)
    batch_size = check_whole("batch_size", batch_size, 1)
    lanes = None if lanes is None else check_whole("lanes", lanes, 1)
    server, local = as_a_round_takes_it(server), as_a_round_takes_it(local)
    check_kinds(task, server, aggregate)
    check_kind("mesh", mesh, jax.sharding.Mesh | None, "a jax Mesh or None")
    check_local(task, local)
    check_step("server", task, server)
    combine, update = aggregate or aggregation.mean(), optax.with_extra_args_support(server).update

    def round_fn(state: State, slots: Schedule, data: FederatedData) -> tuple[State, Info]:
        check_state(server, combine, state)
        unit = _unit_of_work(work_unit, slots)
        visit = _client_part(task, local, batch_size, unit, normalise)
        work = jnp.where(slots.present, slots.work, 0)  # an absent slot takes no step
        steps = count_steps(work, _client(data, slots.client).size, batch_size, unit)
        read, write = _history_slots(slots, state)
        visits = Visit(slots.client, read, work, _which_visit(slots))
        total, report, counted = add_up(visit, combine, visits, steps, lanes, mesh, state, data)

        participants = counted.sum(dtype=jnp.int32)
        delta, memory = combine.finish(total, participants, state.aggregate)
        loss = _mean_of(report.loss, counted)
        # Uploads of bfloat16 models are float32; so are the parameters and moments beside them.
        start = tree_util.wide(state.params)
        updates, server_state = update(delta, state.server, start, value=loss)
        params = optax.apply_updates(state.params, updates)

        # Without uploads there is no server step: momentum would change the model otherwise.
        params, server_state, memory = tree_util.select(
            participants > 0,
            (params, server_state, memory),
            (state.params, state.server, state.aggregate),
        )
        following = state.round + 1
        history = past.write(state.history, write, params, following)
        next_state = State(params, server_state, history, memory, following, state.key)
        return next_state, _info(slots, report, counted, tree_util.all_finite(params))

    return round_fn


def _client_part(
    task: Task, local: Any, batch_size: int, unit: WorkUnit, normalise: Normalise
) -> Callable[[State, FederatedData, Visit], tuple]:
    """One client's part of a round: retrieve a past model, work on it, upload."""

    @partial(jax.jit, inline=True)
    def visit(state: State, data: FederatedData, slot: Visit) -> tuple:
        start_model = past.read(state.history, slot.start)
        key = jax.random.fold_in(state.key, state.round)
        key = jax.random.fold_in(jax.random.fold_in(key, slot.client), slot.number)
        optimiser = as_a_round_takes_it(local(state.round)) if callable(local) else local
        cc_local = build_local(task, optimiser, batch_size, unit, normalise)
        upload, report = cc_local(start_model, _client(data, slot.client), slot.work, key)
        return upload, report, (report.steps > 0) & tree_util.all_finite(upload)

    return visit


def _unit_of_work(own: WorkUnit | None, slots: Schedule) -> WorkUnit:
    """The schedule's unit, else that of `build_round`, else epochs."""
    if own is not None and slots.work_unit not in (None, own):
        raise ValueError(
            f"work_unit: expected {slots.work_unit!r}, as in the schedule, or None, found {own!r}"
        )
    return slots.work_unit or own or "epochs"


def _client(data: FederatedData, client: Array) -> Client:
    begin, end = data.offsets[client], data.offsets[client + 1]
    return Client(data.arrays, data.indices, begin, end - begin)


def _history_slots(slots: Schedule, state: State) -> tuple[Array, Array]:
    """The history slots of each slot's x_{t-s}, int32 `[slots]`, and of x_{t+1}."""
    if slots.read is not None and slots.write is not None:
        return slots.read, slots.write
    length = past.length(state.history)
    read = past.ring_slot(state.round - slots.staleness, length)
    return read, past.ring_slot(state.round + 1, length)


def _which_visit(slots: Schedule) -> jax.Array:
    """int32 `[slots]`: how many earlier present slots the same client fills in this round."""
    # By sorting: all pairs take a seventh of a round of a thousand tiny clients on one core.
    client = jnp.where(slots.present, slots.client, -1)
    order = jnp.argsort(client, stable=True)
    place = jnp.arange(len(client), dtype=jnp.int32)
    is_first = jnp.diff(client[order], prepend=-2) != 0
    visit = place - jax.lax.cummax(jnp.where(is_first, place, 0))
    visit = jnp.zeros_like(place).at[order].set(visit)
    return jnp.where(slots.present, visit, 0)


def _info(slots: Schedule, report: LocalInfo, counted: jax.Array, finite: jax.Array) -> Info:
    returned = report.steps > 0
    return Info(
        train_loss=_mean_of(report.loss, counted),
        # Of those who have one: a client without tags has no recall.
        train_metrics=jax.tree.map(lambda a: _mean_of(a, counted & ~jnp.isnan(a)), report.metrics),
        participants=counted.sum(dtype=jnp.int32),
        rejected=(returned & ~counted).sum(dtype=jnp.int32),
        finite=finite,
        present=returned,
        counted=counted,
        staleness=jnp.asarray(slots.staleness),
        steps=report.steps,
        samples=report.samples,
    )


def _mean_of(a: jax.Array, counted: jax.Array) -> jax.Array:
    """The mean over the counted slots; nan without any."""
    return tree_util.masked_sum(a, counted) / counted.sum(dtype=jnp.int32)


def _check_choices(work_unit: str | None, normalise: str) -> None:
    choices = (("work_unit", work_unit or "epochs", WorkUnit), ("normalise", normalise, Normalise))
    for name, value, words in choices:
        if value not in get_args(words):
            raise ValueError(f"{name}: expected {', '.join(get_args(words))}, found {value!r}")
