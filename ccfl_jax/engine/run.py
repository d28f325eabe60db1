"""Running: many rounds as one compiled program."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from ccfl_jax.algorithm import model_history as past
from ccfl_jax.checks import check_kind
from ccfl_jax.data import FederatedData
from ccfl_jax.data.arrays import held, warn_of_faults
from ccfl_jax.data.federated_data import converted
from ccfl_jax.engine.programs import compiled
from ccfl_jax.engine.rounds import RoundFn
from ccfl_jax.engine.state import Info, State
from ccfl_jax.schedules import history_plan, memory_plan
from ccfl_jax.schedules.schedule import Schedule, check_clients

# Pieces of a schedule are padded to a multiple of this, so that pieces of other lengths, the last
# one of a run above all, use the program that is already compiled.
_ROUNDS_PADDED_TO = 256

# The first arguments of a round: positional ones, and keywords.
Given = tuple[tuple, dict[str, Any]]


def run_rounds(
    round_fn: RoundFn, state: State, schedule: Schedule, data: FederatedData, donate: bool = False
) -> tuple[State, Info]:
    """Runs the rounds of a schedule, or of a piece of it, as one compiled program.

    A schedule may be run in pieces, `schedule.rounds(a, b)`, each from the state of the one before;
    the results are the same; so they are for pieces of `schedule.planned()`, with a history of
    fewer models. The program is compiled once per round function and shapes of state and data,
    and once more for plans: neither the clients, their sizes and work nor, up to 256 rounds, the
    length of a piece compile it again. A piece of no rounds compiles without training.

    Args:
        round_fn: from `build_round`; or a `jax.tree_util.Partial` that builds the round from its
            first arguments, learning rates above all: those are then arguments of the program, and
            other values do not compile it again.
        state: the state before the first of these rounds.
        schedule: arrays `[rounds, slots]`; row k is round `state.round + k`.
        data: the clients' samples.
        donate: whether the buffers of `state` may be reused; it must not be used afterwards.

    Returns:
        The state after the last round, and the infos stacked `[rounds, ...]` as NumPy arrays.

    Raises:
        ValueError: if the schedule is malformed, has clients that the data do not, or needs a model
            that does not exist (yet) or is not kept, or if its plan does not match it; for a piece
            of other rounds than those after the state; for parameters that were replaced in the
            state; for memories of another number of clients; for 2**31 rows of data or more.

    Warns of labels that the task of `build_round` does not know, with a count and the first row.

    Examples:
        >>> train, test, clients = ccfl.data.synthetic(num_clients=4)
        >>> data = ccfl.FederatedData.from_indices(train, clients)
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=20, num_clients=4, buffer_size=2)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedams(0.05), local=0.02)
        >>> state = simulation.init(jax.random.key(0), history_length=6)
        >>> state, info = ccfl.run_rounds(simulation.round, state, schedule.rounds(0, 12), data)
        >>> state, more = ccfl.run_rounds(simulation.round, state, schedule.rounds(12, 20), data)
        >>> int(state.round), info.train_loss.shape, more.train_loss.shape
        (20, (12,), (8,))
    """
    check_parts(round_fn, state, schedule)
    data = usable(data)
    function, given = taken_apart(held("round_fn", round_fn))
    labels = getattr(function, "labels", ())
    warn_of_faults({n: data.arrays[n] for n, *_ in labels if n in data.arrays}, labels)
    state = held("state", state)
    check_schedule(schedule, len(data), int(state.round), np.asarray(state.history.version))
    check_newest(state)
    if memories := jax.tree.leaves(state.clients):
        memory_plan.check_rows(schedule.rows, schedule.recall, len(memories[0]), len(data))
    slots, rounds = padded(schedule)
    run = compiled(loop, function, donate_argnums=(1,) if donate else ())
    state, infos = run(given, state, slots, np.int32(rounds), data)
    # A copy: a view would keep the padding in memory as long as the infos.
    infos = jax.tree.map(lambda a: np.array(np.asarray(a)[:rounds]), infos)
    warn_of_nobody(infos.present)
    return state, infos


def check_parts(round_fn: Any, state: Any, *schedules: Any) -> None:
    """Raises ValueError for arguments of a run that are of another kind than their names say."""
    check_kind("round_fn", round_fn, Callable, "what build_round returns")
    check_kind("state", state, State, "a ccfl.State")
    for schedule in schedules:
        check_kind("schedule", schedule, Schedule, "a ccfl.Schedule")


def usable(data: FederatedData) -> FederatedData:
    """The data for a compiled program; ValueError for rows that 32 bits cannot number."""
    check_kind("data", data, FederatedData, "ccfl.FederatedData")
    rows = np.shape(data.indices)[-1]
    if rows >= 2**31:
        raise ValueError(
            f"data: expected fewer than 2**31 rows (more: see stream_rounds), found {rows}"
        )
    return converted(data)


def warn_of_nobody(present: np.ndarray) -> None:
    """Warns if none of the rounds run has anybody who trained, `present` of infos."""
    if present.size and not present.any():
        warnings.warn(
            "schedule: expected somebody to train in some round, found no slot of these rounds "
            "that is present, with work, and of a client with samples",
            stacklevel=3,
        )


def padded(schedule: Schedule) -> tuple[Schedule, int]:
    """The schedule's arrays on the device, padded with rounds that are not run; the rounds."""
    rounds = schedule.num_rounds
    padding = max(-rounds % _ROUNDS_PADDED_TO, 0 if rounds else _ROUNDS_PADDED_TO)

    def fill(a: np.ndarray) -> jax.Array:
        a = np.asarray(a)
        widths = [(0, padding), *[(0, 0)] * (a.ndim - 1)]
        return jnp.asarray(np.pad(a, widths), bool if a.dtype == bool else jnp.int32)

    # Static fields are part of the program; only the unit of work changes it.
    plain = schedule.replace(time=None, num_clients=None, first_round=None, rows=None)
    return jax.tree.map(fill, plain, is_leaf=lambda a: isinstance(a, list | tuple)), rounds


def check_schedule(
    schedule: Schedule, num_clients: int, first_round: int, versions: np.ndarray
) -> None:
    """Raises ValueError for a schedule that cannot be run from a history of these versions.

    Raises:
        ValueError: if the schedule is malformed, was made for other clients or has one outside
            0..num_clients-1, needs more models than the history holds or, in some round t, one from
            before x_0, or has a plan that does not match it.
    """
    schedule = schedule.checked()
    check_clients(schedule, num_clients)
    if schedule.num_rounds and schedule.first_round not in (None, first_round):
        raise ValueError(
            f"schedule: expected rounds from {first_round} on, the next of the state, found a "
            f"piece from round {schedule.first_round} on"
        )
    if schedule.read is None:
        oldest = int(np.where(schedule.present, schedule.staleness, 0).max(initial=0))
        if oldest >= len(versions):
            raise ValueError(
                f"history_length: expected at least {oldest + 1}, the schedule's largest staleness "
                f"is {oldest}, found {len(versions)}"
            )
    history_plan.check_versions(schedule.staleness, schedule.present, first_round)
    if schedule.read is not None and schedule.write is not None:
        history_plan.check_plan(
            schedule.read,
            schedule.write,
            schedule.staleness,
            schedule.working(),
            first_round,
            versions,
        )


_is_newest = jax.jit(past.has_newest)
_are_all_newest = jax.jit(jax.vmap(past.has_newest))


def check_newest(state: State) -> None:
    """Raises ValueError for parameters that are not the newest model of the state's history.

    Clients would start from that one.
    """
    own = state.history._replace(messages=()), state.params, state.round
    if np.ndim(state.round):
        newest = _are_all_newest(*own)
    elif all(map(_on_host, jax.tree.leaves(own))):
        # By NumPy: a program takes 0.6 s to compile for a ResNet.
        newest = past.has_newest(*jax.tree.map(np.asarray, own))
    else:
        newest = _is_newest(*own)
    if not np.asarray(newest).all():
        raise ValueError(
            "state: expected params that are the newest model of its history, found others "
            "(init_state(..., params=) starts from a model of one's own)"
        )


def _on_host(a: Any) -> bool:
    """Whether all of an array is in this process's own memory."""
    if not isinstance(a, jax.Array):
        return isinstance(a, np.ndarray)
    return a.is_fully_replicated and all(d.platform == "cpu" for d in a.devices())


def taken_apart(round_fn: RoundFn) -> tuple[Callable, Given]:
    """A round as a function, and its first arguments where it is a Partial."""
    if isinstance(round_fn, Partial):
        return round_fn.func, (round_fn.args, round_fn.keywords)
    return round_fn, ((), {})


def loop(
    function: Callable,
    given: Given,
    state: State,
    slots: Schedule,
    rounds: jax.Array,
    data: FederatedData,
) -> tuple[State, Info]:
    """A scan over the first `rounds` rows; traced, so the length is no part of the program."""
    round_fn = Partial(function, *given[0], **given[1])
    row = jax.tree.map(lambda a: a[0], slots)
    one_round = jax.jit(round_fn, inline=True)  # for the info's shapes and the scan: traced once
    info = jax.eval_shape(one_round, state, row, data)[1]
    infos = jax.tree.map(lambda a: jnp.zeros((slots.num_rounds, *a.shape), a.dtype), info)

    def step(k: jax.Array, carry: tuple[State, Info]) -> tuple[State, Info]:
        state, infos = carry
        state, info = one_round(state, jax.tree.map(lambda a: a[k], slots), data)
        return state, jax.tree.map(lambda all_, one: all_.at[k].set(one), infos, info)

    return jax.lax.fori_loop(0, rounds, step, (state, infos))
