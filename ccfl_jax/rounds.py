"""One round of client-centric federated optimisation (Algorithm 2).

This is the only place that batches clients.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from ccfl_jax import aggregate as aggregation
from ccfl_jax import history as ring
from ccfl_jax import tree
from ccfl_jax.data import FederatedData
from ccfl_jax.local import Client, LocalFn, LocalInfo, Normalise, WorkUnit, build_local
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
    history: ring.History
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
        present: bool `[slots]`, returned slots.
        staleness: int32 `[slots]`, versions between download and use.
        steps: int32 `[slots]`, local steps; 0 where absent.
        samples: int32 `[slots]`, samples processed; 0 where absent.
    """

    train_loss: jax.Array
    train_metrics: dict[str, jax.Array]
    participants: jax.Array
    rejected: jax.Array
    present: jax.Array
    staleness: jax.Array
    steps: jax.Array
    samples: jax.Array


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
        history_length: global models kept, max_delay + 1.

    Raises:
        ValueError: if `history_length` is below 1.
    """
    params = jax.tree.map(jnp.asarray, task.init(jax.random.fold_in(key, _INIT_STREAM)))
    return State(
        params=params,
        server=server.init(params),
        history=ring.init(params, history_length),
        aggregate=(aggregate or aggregation.mean()).init(params),
        round=jnp.zeros((), jnp.int32),
        key=jax.random.fold_in(key, _LOCAL_STREAM),
    )


def build_round(
    task: Task,
    server: optax.GradientTransformation,
    local: optax.GradientTransformation | None = None,
    batch_size: int = 20,
    work_unit: WorkUnit = "epochs",
    normalise: Normalise = "steps",
    aggregate: Aggregate | None = None,
    lanes: int | None = None,
) -> RoundFn:
    """One round as a pure function `round_fn(state, slots, data) -> (state, info)`.

    Args:
        task: what is learnt.
        server: any optax transformation; its "gradient" is the pseudo-gradient.
        local: the clients' optax optimiser, `optax.sgd(0.01)` by default.
        batch_size: B, local batch size.
        work_unit: what the schedule's `work` counts, "epochs" or "steps".
        normalise: by what an upload is divided, "steps" (the paper's K), "epochs" or "none".
        aggregate: m uploads -> pseudo-gradient, `mean()` by default.
        lanes: how many clients advance together. A lane costs as much as the longest of its group.
            By default all on an accelerator and one on a CPU, where a kernel per client only
            makes convolutions slow. The result does not depend on it.

    Returns:
        `round_fn`; `slots` is a row of a `Schedule` (arrays `[slots]`), `data` a `FederatedData`.

    Raises:
        ValueError: for a batch size or lanes below 1, or an unknown work unit or normalisation.
    """
    _check_choices(batch_size, work_unit, normalise, lanes)
    cc_local = build_local(task, local or optax.sgd(0.01), batch_size, work_unit, normalise)
    combine = aggregate or aggregation.mean()

    def round_fn(state: State, slots: Schedule, data: FederatedData) -> tuple[State, Info]:
        t = state.round
        uploads, local_info = _run_clients(cc_local, state, slots, data, lanes)

        returned = slots.present & (local_info.steps > 0)
        delta, counted, memory = combine.update(uploads, returned, state.aggregate)
        updates, server_state = server.update(delta, state.server, state.params)
        params = optax.apply_updates(state.params, updates)

        # A round that brings nothing is no server step: momentum would move the model otherwise.
        params, server_state, memory = tree.select(
            counted.any(),
            (params, server_state, memory),
            (state.params, state.server, state.aggregate),
        )
        history = ring.push(state.history, t + 1, params)
        next_state = State(params, server_state, history, memory, t + 1, state.key)
        return next_state, _info(slots, local_info, returned, counted)

    return round_fn


def _run_clients(
    cc_local: LocalFn, state: State, slots: Schedule, data: FederatedData, lanes: int | None
) -> tuple[Params, LocalInfo]:
    """The local work of every slot: uploads `[slots, ...]` and infos `[slots]`."""
    visits = _visits(slots)
    round_key = jax.random.fold_in(state.key, state.round)

    def one_client(slot: tuple) -> tuple[Params, LocalInfo]:
        client, staleness, work, visit = slot
        start_model = ring.read(state.history, state.round, staleness)
        begin, end = data.offsets[client], data.offsets[client + 1]
        samples = Client(data.arrays, data.indices, begin, end - begin)
        key = jax.random.fold_in(jax.random.fold_in(round_key, client), visit)
        return cc_local(start_model, samples, work, key)

    work = jnp.where(slots.present, slots.work, 0)  # an absent slot costs no step
    return _map_lanes(one_client, (slots.client, slots.staleness, work, visits), lanes)


def _visits(slots: Schedule) -> jax.Array:
    """int32 `[slots]`: how many earlier present slots the same client fills in this round."""
    same = (slots.client[:, None] == slots.client[None]) & slots.present[None]
    return jnp.tril(same, -1).sum(axis=1, dtype=jnp.int32)


def _map_lanes(function: Callable, slots: tuple, lanes: int | None) -> Any:
    """`function` over the leading axis of `slots`, `lanes` entries at a time."""
    count = slots[0].shape[0]
    if lanes is None:
        lanes = 1 if jax.default_backend() == "cpu" else count
    if lanes == 1:
        return jax.lax.map(function, slots)
    if lanes >= count:
        return jax.vmap(function)(slots)
    groups = -(-count // lanes)

    def group(a: jax.Array) -> jax.Array:
        # Zeros fill the last group: client 0 without work.
        return jnp.pad(a, (0, groups * lanes - count)).reshape(groups, lanes)

    results = jax.lax.map(jax.vmap(function), jax.tree.map(group, slots))
    return jax.tree.map(lambda a: a.reshape(groups * lanes, *a.shape[2:])[:count], results)


def _info(slots: Schedule, local_info: LocalInfo, returned: jax.Array, counted: jax.Array) -> Info:
    participants = counted.sum(dtype=jnp.int32)

    def mean(a: jax.Array) -> jax.Array:
        return jnp.where(participants > 0, tree.masked_mean(a, counted), jnp.nan)

    return Info(
        train_loss=mean(local_info.loss),
        train_metrics=jax.tree.map(mean, local_info.metrics),
        participants=participants,
        rejected=(returned & ~counted).sum(dtype=jnp.int32),
        present=returned,
        staleness=slots.staleness,
        steps=local_info.steps,
        samples=local_info.samples,
    )


def _check_choices(batch_size: int, work_unit: str, normalise: str, lanes: int | None) -> None:
    for name, count in (("batch_size", batch_size), ("lanes", 1 if lanes is None else lanes)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{name}: found {count!r}, legal: a whole number from 1 on")
    choices = (("work_unit", work_unit, WorkUnit), ("normalise", normalise, Normalise))
    for name, value, legal in choices:
        if value not in get_args(legal):
            raise ValueError(f"{name}: found {value!r}, legal: {', '.join(get_args(legal))}")
