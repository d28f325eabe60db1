"""Training from code: the commands' loop, with rows in memory and callbacks."""

import contextlib
import signal
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax.algorithm.types import Batch
from ccfl_jax.checks import check_kind, check_whole
from ccfl_jax.data import FederatedData
from ccfl_jax.data.arrays import formed, held
from ccfl_jax.engine.evaluate import evaluate as scores_of
from ccfl_jax.engine.method_checks import check_functions
from ccfl_jax.engine.run import run_rounds
from ccfl_jax.engine.simulation import Simulation
from ccfl_jax.engine.state import State
from ccfl_jax.runs import metrics, train_loop
from ccfl_jax.runs.metrics import Row
from ccfl_jax.runs.train_loop import Program, Progress, Store, Times, Watch
from ccfl_jax.schedules.schedule import Schedule

# After an evaluation: the rows so far, and the state they describe; True ends training.
Callback = Callable[[list[Row], State], bool | None]


def train(
    simulation: Simulation,
    schedule: Schedule,
    data: FederatedData,
    test: Batch,
    eval_every: int = 10,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    key: jax.Array | None = None,
    state: State | None = None,
    rows: Sequence[Row] = (),
    sent: tuple[int, int] | None = None,
) -> tuple[State, list[Row]]:
    """Trains over a schedule, evaluates every few rounds, and returns what a plot needs.

    The loop is that of `ccfl train`, and the rows have its columns (`metrics.next_row`). It
    ends before the last round where a callback returns True, where the model is no longer finite,
    and at a KeyboardInterrupt: after the piece of rounds that is under way, which is evaluated.
    What is returned goes on where it ended:

        state, rows = ccfl.train(simulation, schedule, data, test, state=state, rows=rows)

    Args:
        simulation: of a method.
        schedule: the whole run, `[rounds, slots]`; planned or not.
        data: the clients' samples.
        test: name -> `[N, ...]`, what models are scored on.
        eval_every: rounds between evaluations; one is made before the first round and at the end.
        callbacks: called after every evaluation, `callback(rows, state)`, with all rows so far;
            the state's buffers are used again afterwards.
        progress: whether to show a bar, or where stderr is neither a terminal nor a notebook, a
            line for each evaluation.
        key: PRNG key of the first model and of local randomness; by default `jax.random.key(0)`.
        state: to go on from; by default `simulation.init` makes one that suits the schedule.
        rows: those until `state`.
        sent: bytes that a client sends and receives in a visit; by default one model each.

    Returns:
        The state at the end, and the rows: dicts of plain numbers, None where not finite. A row
        has `round`; `test_loss`, `test_accuracy` and so on of each metric; the same as `train_`,
        means since the row before; `client_updates`, `samples`, `bytes_sent`, `bytes_received` and
        `seconds` since the start; `virtual_time`, of a schedule with a clock. Those of `ccfl train`
        have `adaptive_share` too: it takes the server's eps, which no transformation tells.

    Raises:
        ValueError: as `run_rounds` and `evaluate`; for a task whose functions do not take these
            samples or give something else than `Task` says; for callbacks that are no functions,
            and rows that do not end at the state's round.

    Examples:
        >>> train, test, clients = ccfl.data.synthetic(num_clients=4)
        >>> data = ccfl.FederatedData.from_indices(train, clients)
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=20, num_clients=4, buffer_size=2)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedams(0.05), local=0.02)
        >>> enough = ccfl.callbacks.ToTarget("accuracy>=0.5")  # ends the run
        >>> state, rows = ccfl.train(
        ...     simulation, schedule, data, test, eval_every=5, callbacks=[enough], progress=False
        ... )
        >>> rows[-1]["round"], rows[-1]["test_accuracy"] >= 0.5
        (10, True)
    """
    check_kind("simulation", simulation, Simulation, "what ccfl.simulation returns")
    check_kind("schedule", schedule, Schedule, "a ccfl.Schedule")
    check_kind("data", data, FederatedData, "ccfl.FederatedData")
    times = Times(schedule.num_rounds, check_whole("eval_every", eval_every, 1))
    check_kind("callbacks", callbacks, Sequence, "a list of functions")
    for callback in callbacks:
        check_kind("callbacks", callback, Callable, "functions")
    check_functions(simulation.task, data.arrays, formed(test))
    if state is None:
        begun = _first(simulation, schedule, data, key)
    else:  # copied, as the loop uses the buffers of its states again
        begun = jax.tree.map(jnp.copy, held("state", state))
    _check_rows(rows, int(begun.round))
    now = train_loop.start(begun, 1)._replace(rows=[[*rows]])
    program = _program(simulation, times, schedule, data, test, sent or _one_model(begun))
    bar = train_loop.progress_bar(times.rounds, now.done, progress)
    with bar, _interrupts() as interrupted:
        ended = [False]

        def after(now: Progress) -> None:
            train_loop.show(bar, now, progress)
            with _noted(interrupted):
                ended[0] = any([callback(now.rows[0], now.states) for callback in callbacks])

        watch = Watch(lambda: ended[0] or bool(interrupted), lambda *_: False, bar, after)
        if not program.is_over(now):
            now = train_loop.train(program, now, _MEMORY, watch)
        if now.infos is not None:  # it ended between two evaluations
            now = train_loop.evaluate(program, now, _MEMORY, watch)
    return now.states, now.rows[0]


def _first(
    simulation: Simulation, schedule: Schedule, data: FederatedData, key: jax.Array | None
) -> State:
    """The state before round 0, with as much history and as many memories as the schedule needs."""
    oldest = int(np.where(schedule.present, schedule.staleness, 0).max(initial=0))
    length = oldest + 1 if schedule.read is None else schedule.history_slots()
    rows = None if schedule.recall is None else schedule.memory_rows()
    key = jax.random.key(0) if key is None else key
    return simulation.init(key, length, len(data), rows)


def _check_rows(rows: Sequence[Row], begun: int) -> None:
    last = rows[-1]["round"] if rows else 0
    if last != begun:
        raise ValueError(
            f"rows: expected those until round {begun}, the state's, found them until {last}"
        )


def _one_model(state: State) -> tuple[int, int]:
    nbytes = metrics.model_bytes(state.params)
    return nbytes, nbytes


def _program(
    simulation: Simulation,
    times: Times,
    schedule: Schedule,
    data: FederatedData,
    test: Batch,
    sent: tuple[int, int],
) -> Program:
    def advance(state: State, own: list[Schedule], data: FederatedData) -> tuple:
        state, infos = run_rounds(simulation.round, state, own[0], data, donate=True)
        return state, jax.tree.map(lambda a: a[None], infos)

    def evaluate(state: State) -> list:
        return [(scores_of(simulation.task, state.params, test), {})]

    def rest(first: int) -> list:
        return [([schedule.rounds(first, times.rounds)], data)]

    return Program(times, [schedule], sent, rest, advance, evaluate)


def _add(progress: Progress, new: dict[int, Row]) -> Progress:
    rows = [
        [*own, metrics.plain(new[k])] if k in new else own for k, own in enumerate(progress.rows)
    ]
    for line in filter(None, map(metrics.rejection, rows)):
        warnings.warn(f"uploads: {line}", stacklevel=2)
    return progress._replace(rows=rows)


_MEMORY = Store(_add, lambda progress, score: None)


@contextlib.contextmanager
def _interrupts() -> Iterator[list[bool]]:
    """In this context an interrupt is noted, and a second one raises KeyboardInterrupt as usual."""
    noted: list[bool] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield noted
        return

    def note(number: int, frame: types.FrameType | None) -> None:
        if noted:
            before(number, frame)
        noted.append(True)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _noted(interrupted: list[bool]) -> Iterator[None]:
    """Notes a KeyboardInterrupt that a callback raises."""
    try:
        yield
    except KeyboardInterrupt:
        interrupted.append(True)
