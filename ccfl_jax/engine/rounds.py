"""One round of client-centric federated optimisation (Algorithm 2)."""

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import aggregators as aggregation
from ccfl_jax.algorithm import client_memory, tree_util
from ccfl_jax.algorithm import model_history as past
from ccfl_jax.algorithm.client_update import (
    RULE_STREAM,
    Client,
    LocalInfo,
    build_local,
    count_steps,
)
from ccfl_jax.algorithm.types import (
    Aggregate,
    Array,
    Arrivals,
    Normalise,
    Params,
    Rule,
    Task,
    Visit,
    WorkUnit,
)
from ccfl_jax.checks import check_kind, check_whole
from ccfl_jax.data import FederatedData
from ccfl_jax.engine.client_batching import Report, Slot, add_up
from ccfl_jax.engine.method_checks import (
    as_a_round_takes_it,
    check_kinds,
    check_local,
    check_state,
    check_step,
)
from ccfl_jax.engine.rule_checks import check_finished, named, stepped
from ccfl_jax.engine.state import Info, State
from ccfl_jax.schedules.schedule import Schedule

# The server's draws of a round: no client's number, those are below 2**31.
_SERVER = 2**32 - 1

Local = optax.GradientTransformation | float
RoundFn = Callable[[State, Schedule, FederatedData], tuple[State, Info]]


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
    rule: Rule | None = None,
) -> RoundFn:
    """One round as a pure function `round_fn(state, slots, data) -> (state, info)`.

    Args:
        task: the learning problem.
        server: any optax transformation; its "gradient" is the pseudo-gradient, its `value`, where
            it needs one, the round's training loss; `arrivals`, an `Arrivals`, and `key`, a PRNG
            key of the round, are further extra arguments. A part of the model that `optax.masked`
            leaves out moves by +Delta, as with any gradient: freeze it with `optax.set_to_zero`.
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
            twice. On a CPU use the run commands' XLA_FLAGS: `--xla_cpu_multi_thread_eigen=false
            --xla_backend_extra_options=xla_cpu_disable_loop_unrolling`: rounds are faster.

    Returns:
        `round_fn`; `slots` is a row of a `Schedule` (arrays `[slots]`), `data` a `FederatedData`.
        The history is read and written as the schedule's plan says, as a ring where it has none.
        The result depends on lanes and devices only by the rounding of sums.

    Raises:
        ValueError: for a batch size or lanes below 1, an unknown work unit or normalisation, a
            `local` that is neither optimiser, number nor function of the round, or a server that
            cannot step; from `round_fn`, for a schedule in another unit than `work_unit`, a state
            of another kind of server, aggregate or rule, a rule's error, and unlike uploads.

    Examples:
        >>> train, test, clients = ccfl.data.synthetic(num_clients=4)
        >>> data = ccfl.FederatedData.from_indices(train, clients)
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=20, num_clients=4, buffer_size=2)
        >>> server = ccfl.cc_fedams(0.05)
        >>> round_fn = ccfl.build_round(task, server, local=0.02, batch_size=20)
        >>> state = ccfl.init_state(task, server, jax.random.key(0), history_length=6)
        >>> state, info = ccfl.run_rounds(round_fn, state, schedule, data)
        >>> int(state.round), round(float(info.train_loss[0]), 1)
        (20, 0.7)
    """
    _check_choices(work_unit, normalise, mesh)
    batch_size = check_whole("batch_size", batch_size, 1)
    lanes = None if lanes is None else check_whole("lanes", lanes, 1)
    server, local = as_a_round_takes_it(server), as_a_round_takes_it(local)
    check_kinds(task, server, aggregate, rule)
    check_local(task, local)
    check_step("server", task, server)
    rule, combine = named(rule or Rule()), aggregate or aggregation.mean()

    def round_fn(state: State, slots: Schedule, data: FederatedData) -> tuple[State, Info]:
        check_state(server, combine, rule, state)
        unit = _unit_of_work(work_unit, slots)
        visit = _client_part(task, rule, combine, local, batch_size, unit, normalise)
        work = jnp.where(slots.present, slots.work, 0)  # an absent slot takes no step
        steps = count_steps(work, _client(data, slots.client).size, batch_size, unit)
        (read, write), rows = _history_slots(slots, state), _memory_rows(slots)
        visits = _visits(rule, slots, read, work, steps, tree_util.read(state.clients, rows[0]))
        total, report = add_up(visit, visits, steps, lanes, mesh, state, data)

        arrivals = _arrivals(slots, report)
        uploads = report.upload if combine.stacked else total
        delta, memory = combine.finish(uploads, arrivals, state.aggregate)
        known, entries = (state.clients, state.shared), (visits.memory, report.memory)
        clients, shared = client_memory.keep(rule.shared, known, rows[1], entries, arrivals)
        mean = jax.tree.map(lambda a: a / len(data), shared)
        delta, loss = rule.combine(delta, mean, state), _mean_of(report.info.loss, report.counted)
        params, server_state = _server_step(server, delta, state, arrivals, loss)
        # Without uploads there is no server step: momentum would change the model otherwise.
        new, old = (params, server_state, memory), (state.params, state.server, state.aggregate)
        params, server_state, memory = tree_util.select(arrivals.participants > 0, new, old)

        following = state._replace(params=params, server=server_state, aggregate=memory)
        following = following._replace(round=state.round + 1, clients=clients, shared=shared)
        message = rule.message(mean, following)
        history = past.write(state.history, write, params, following.round, message)
        info = _info(arrivals, report.info, loss, tree_util.all_finite(params))
        return following._replace(history=history), info

    vars(round_fn)["labels"] = task.labels  # for the warning of `run_rounds`
    return round_fn


def _visits(
    rule: Rule, slots: Schedule, read: Array, work: Array, steps: jax.Array, memory: Any
) -> Slot:
    visits = Slot(slots.client, read, work, _which_visit(slots))
    if rule == Rule():  # which looks at nothing else
        return visits
    return visits._replace(staleness=slots.staleness, steps=steps, memory=memory)


def _client_part(
    task: Task,
    rule: Rule,
    combine: Aggregate,
    local: Any,
    batch_size: int,
    unit: WorkUnit,
    normalise: Normalise,
) -> Callable[[State, FederatedData, Slot], tuple[Any, Report]]:
    """One client's part of a round: retrieve a past model, work on it, upload."""

    @partial(jax.jit, inline=True)
    def visit(state: State, data: FederatedData, slot: Slot) -> tuple[Any, Report]:
        start_model = past.read(state.history, slot.start)
        key = jax.random.fold_in(_round_key(state), slot.client)
        key = jax.random.fold_in(key, slot.number)
        optimiser = as_a_round_takes_it(local(state.round)) if callable(local) else local
        client = _client(data, slot.client)
        own = _visit(state, slot, start_model, client, key)
        cc_local = build_local(task, rule.local(own, optimiser), batch_size, unit, normalise)
        end = cc_local(rule.begin(own), client, slot.work, key)
        upload, memory = check_finished(rule.finish(own, end), own.memory)
        counted = (end.info.steps > 0) & tree_util.all_finite((upload, memory))
        memory = tree_util.select(counted, memory, own.memory)
        once, apart = ((), upload) if combine.stacked else (upload, ())
        return once, Report(end.info, counted, memory, apart)

    return visit


def _visit(state: State, slot: Slot, start: Params, client: Client, key: jax.Array) -> Visit:
    return Visit(
        client=slot.client,
        round=state.round,
        staleness=slot.staleness,
        steps=slot.steps,
        size=jnp.asarray(client.size),
        start=start,
        current=state.params,
        message=past.message(state.history, slot.start),
        memory=slot.memory,
        key=jax.random.fold_in(key, RULE_STREAM),
    )


def _server_step(
    server: optax.GradientTransformation,
    delta: Params,
    state: State,
    arrivals: Arrivals,
    loss: jax.Array,
) -> tuple[Params, optax.OptState]:
    """The server's step along the pseudo-gradient, with the round as optax's extra arguments."""
    key = jax.random.fold_in(_round_key(state), jnp.uint32(_SERVER))
    # Uploads of bfloat16 models are float32; so are the parameters and moments beside them.
    start, update = tree_util.wide(state.params), optax.with_extra_args_support(server).update
    more = {"value": loss, "arrivals": arrivals, "key": key}
    updates, server_state = stepped(update, delta, state.server, start, **more)
    return optax.apply_updates(state.params, updates), server_state


def _round_key(state: State) -> jax.Array:
    """The key of this round, of which its clients' and its server's are made."""
    return jax.random.fold_in(state.key, state.round)


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


def _memory_rows(slots: Schedule) -> tuple[Array, Array]:
    """The rows of what each slot's client remembers, int32 `[slots]`: to read, and to write."""
    if slots.recall is not None and slots.store is not None:
        return slots.recall, slots.store
    return slots.client, slots.client


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


def _arrivals(slots: Schedule, report: Report) -> Arrivals:
    return Arrivals(
        client=jnp.asarray(slots.client),
        staleness=jnp.asarray(slots.staleness),
        steps=report.info.steps,
        samples=report.info.samples,
        counted=report.counted,
        participants=report.counted.sum(dtype=jnp.int32),
    )


def _info(arrivals: Arrivals, report: LocalInfo, loss: jax.Array, finite: jax.Array) -> Info:
    returned, counted = report.steps > 0, arrivals.counted
    return Info(
        train_loss=loss,
        # Of those who have one: a client without tags has no recall.
        train_metrics=jax.tree.map(lambda a: _mean_of(a, counted & ~jnp.isnan(a)), report.metrics),
        participants=arrivals.participants,
        rejected=(returned & ~counted).sum(dtype=jnp.int32),
        finite=finite,
        present=returned,
        counted=counted,
        staleness=arrivals.staleness,
        steps=report.steps,
        samples=report.samples,
    )


def _mean_of(a: jax.Array, counted: jax.Array) -> jax.Array:
    """The mean over the counted slots; nan without any."""
    return tree_util.masked_sum(a, counted) / counted.sum(dtype=jnp.int32)


def _check_choices(work_unit: str | None, normalise: str, mesh: Any) -> None:
    check_kind("mesh", mesh, jax.sharding.Mesh | None, "a jax Mesh or None")
    choices = (("work_unit", work_unit or "epochs", WorkUnit), ("normalise", normalise, Normalise))
    for name, value, words in choices:
        if value not in get_args(words):
            raise ValueError(f"{name}: expected {', '.join(get_args(words))}, found {value!r}")
