"""Trials that differ in rates and seed alone, trained and evaluated together by one program."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial

import ccfl_jax as ccfl
from ccfl_jax import layout, record, tree
from experiments import build, cadence, devices
from experiments.flags import Config
from experiments.rules import VARIABLE
from experiments.underway import Position


class Ground(NamedTuple):
    """What is learnt from what, and where.

    Attributes:
        task: what is learnt.
        train: the training samples, on the host.
        data: "x" and "y" of them, on every device.
        test: "x" and "y" of the test set, on every device.
        mesh: devices that trials are spread over.
    """

    task: ccfl.Task
    train: dict[str, np.ndarray]
    data: dict[str, jax.Array]
    test: dict[str, jax.Array]
    mesh: Mesh


class Program(NamedTuple):
    """What trials that differ in rates and seed alone have in common.

    Attributes:
        config: that of one of them.
        models: how many global models each keeps.
        round_at: `build.round_at`; one object, so that it is compiled once.
        first_states: `first_states(rates, keys)`, both `[trials]`: the states before round 0.
        ground: what is learnt from what, and where.
    """

    config: Config
    models: int
    round_at: Callable
    first_states: Callable
    ground: Ground


class _Trials(NamedTuple):
    """Arguments of `ccfl.run_trials`; states are `[trials, ...]`."""

    round_fn: Partial
    states: ccfl.State
    schedules: list[ccfl.Schedule]
    data: ccfl.FederatedData


class Watch(NamedTuple):
    """What else happens while trials train.

    Attributes:
        report: called with the rounds of each stretch, after it.
        asked: whether to stop.
        due: `due(config, done)`, whether to save where they stand after `done` rounds.
        save: saves it.
    """

    report: Callable[[int], None] = lambda rounds: None
    asked: Callable[[], bool] = lambda: False
    due: Callable[[Config, int], bool] = lambda config, done: False
    save: Callable[[Position], None] = lambda position: None


def shared(config: Config) -> tuple:
    """What trials must agree in to share a program, hashable."""
    every = dataclasses.asdict(config)
    own = set(VARIABLE) - {"server"}
    same = tuple((name, value) for name, value in every.items() if name not in own)
    return (*same, build.source(config))


def ground(mesh: Mesh, source: tuple, model: str, compute_dtype: str) -> Ground:
    """Loads data by `build.load(*source)`, and puts them on the devices."""
    train, test, _ = build.load(*source)
    task = build.task(source[0], model, compute_dtype, train)
    data, test = ({name: part[name] for name in ("x", "y")} for part in (train, test))
    return Ground(task, train, *devices.put((data, test), mesh), mesh)


def program(config: Config, models: int, ground: Ground) -> Program:
    """What trials like `config` share, whose schedules ask for a history of so many models."""
    first_states = jax.jit(jax.vmap(partial(build.first_state, config, ground.task, models)))
    return Program(config, models, build.round_at(config, ground.task, None), first_states, ground)


def at_once(program: Program, memory: float | None) -> tuple[int, int, float | None]:
    """Bytes that a trial takes on a device, how many advance together there, and its bytes for all.

    A trial takes its state twice, for before and after a piece, and four models a lane for its
    steps. On a CPU there is one at a time: a batch of models is slower there than one by one.

    Args:
        program: that of the trials.
        memory: bytes of a device for trials, by default a quarter of what it has.
    """
    config, device = program.config, program.ground.mesh.devices.flat[0]
    first = partial(build.first_state, config, program.ground.task, program.models)
    state = jax.eval_shape(first, build.rates(config), jax.random.key(0))._replace(key=())
    held, model = record.model_bytes(state), record.model_bytes(state.params)
    parameters = sum(a.size for a in jax.tree.leaves(state.params))
    lanes = config.lanes or layout.lanes(device.platform, parameters, config.buffer_size, 1)
    nbytes = 2 * held + 4 * model * min(lanes, config.buffer_size)
    if device.platform == "cpu":
        return nbytes, 1, None
    memory = memory or (device.memory_stats() or {}).get("bytes_limit", 0) / 4
    return nbytes, max(1, int(memory // nbytes)), memory


def train(
    program: Program,
    configs: Sequence[Config],
    watch: Watch = Watch(),  # noqa: B008, it holds functions that change nothing
    begun: Position | None = None,
) -> Position:
    """Trains the trials `configs`; their rows are as a run's `metrics.jsonl` holds them.

    A trial that has come to nothing has no row after that; the others go on. Seconds in a row are a
    trial's share of what all took together.

    Args:
        program: what they share.
        configs: one for each trial; a multiple of the devices leaves none idle.
        watch: what else happens meanwhile.
        begun: where they stand; by default before round 0.

    Returns:
        Where they stand in the end: after the last round, or where it was asked to stop.
    """
    # Filled up here and not in every piece: the states then stay on their devices.
    count, config = len(configs), program.config
    filled = [*configs, *[configs[-1]] * (-count % program.ground.mesh.size)]
    trials = _start(program, filled)
    if begun is None:
        trials, _, seconds = _advance(program, trials, 0, 0)
        position = _first_rows(program, trials, count, seconds)
    else:
        places = np.minimum(np.arange(len(filled)), count - 1)
        trials = trials._replace(states=jax.tree.map(lambda a: a[places], begun.states))
        position = begun
    done = int(trials.states.round[0])
    for stop in cadence.stops(config, done, config.rounds):
        if not position.alive.any():
            break
        trials, position, now = _go_on(program, trials, position, done, stop, watch.asked)
        watch.report(now - done)
        done = now
        if done == stop and cadence.is_evaluation(config, done):
            position = _next_rows(program, trials, position)
        stopped = watch.asked()
        if done < config.rounds and (stopped or watch.due(config, done)):
            watch.save(_of_these(trials, position, count))
        if stopped:
            break
    return _of_these(trials, position, count)


def like(program: Program) -> ccfl.State:
    """A state of the program's trials, `[1, ...]`."""
    rates = jax.tree.map(lambda a: np.asarray(a)[None], build.rates(program.config))
    return program.first_states(rates, jax.vmap(jax.random.key)(np.zeros(1, np.uint32)))


def is_done(program: Program, position: Position) -> bool:
    """Whether no trial goes on from there."""
    done = int(position.states.round[0])
    return done == program.config.rounds or not position.alive.any()


def _of_these(trials: _Trials, position: Position, count: int) -> Position:
    """The position with its states, of the trials that were asked for."""
    if len(trials.states.round) == count:
        return position._replace(states=trials.states)
    return position._replace(states=jax.tree.map(lambda a: a[:count], trials.states))


def _go_on(
    program: Program,
    trials: _Trials,
    position: Position,
    done: int,
    stop: int,
    asked: Callable[[], bool],
) -> tuple[_Trials, Position, int]:
    """`_advance` piece by piece, until `stop` or until asked to stop; and the rounds done."""
    infos, seconds = [] if position.infos is None else [position.infos], position.seconds
    while done < stop and not asked():
        piece = min(done + build.PIECE, stop)
        trials, info, more = _advance(program, trials, done, piece)
        infos.append(jax.tree.map(lambda a: a[: len(position.rows)], info))
        seconds, done = seconds + more, piece
    joined = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *infos) if infos else None
    return trials, position._replace(infos=joined, seconds=seconds), done


def _first_rows(program: Program, trials: _Trials, count: int, seconds: float) -> Position:
    tests, finite = _evaluate(program, trials)
    shares, has_clock = _adaptive_shares(trials), trials.schedules[0].time is not None
    rows = []
    for k in range(count):
        row = record.first_row(tests[k], bool(finite[k]), seconds / count, has_clock)
        rows.append([record.plain(row | shares[k])])
    return Position(trials.states, None, rows, finite[:count], 0.0)


def _next_rows(program: Program, trials: _Trials, position: Position) -> Position:
    """The position after an evaluation, with a row more for each trial that goes on."""
    tests, finite = _evaluate(program, trials)
    shares, limit = _adaptive_shares(trials), program.config.max_rejected
    rows, alive = [*position.rows], position.alive.copy()
    model_bytes = record.model_bytes(trials.states.params) // len(finite)
    for k in np.flatnonzero(position.alive):
        info = jax.tree.map(lambda a, k=k: a[k], position.infos)
        schedule = trials.schedules[k if len(trials.schedules) > 1 else 0]
        run = record.Run(schedule, model_bytes, limit)
        came = info, tests[k], bool(finite[k]), position.seconds / len(rows), None
        row = record.next_row(rows[k], run, *came)
        rows[k] = [*rows[k], record.plain(row | shares[k])]
        alive[k] = not record.has_failed(rows[k], bool(finite[k]), limit)
    return Position(position.states, None, rows, alive, 0.0)


def _start(program: Program, configs: Sequence[Config]) -> _Trials:
    rates = jax.tree.map(lambda *a: np.stack(a), *map(build.rates, configs))
    keys = jax.vmap(jax.random.key)(np.array([config.seed for config in configs], np.uint32))
    states = program.first_states(rates, keys)
    of_seed = {config.seed: config for config in configs}
    schedules = {seed: build.schedule(config) for seed, config in of_seed.items()}
    owners = {seed: build.owners(config, program.ground.train) for seed, config in of_seed.items()}
    seeds = [configs[0].seed] if len(of_seed) == 1 else [config.seed for config in configs]
    lists = zip(*(owners[seed] for seed in seeds), strict=True)
    lists = [np.stack(parts).astype(np.int32) for parts in lists]
    if len(seeds) == 1:  # common to all, and so not kept for each
        lists = [a[0] for a in lists]
    data = ccfl.FederatedData(program.ground.data, *map(jnp.asarray, lists))
    return _Trials(
        Partial(program.round_at, rates),
        states,
        [schedules[seed] for seed in seeds],
        data,
    )


def _advance(
    program: Program, trials: _Trials, first: int, stop: int
) -> tuple[_Trials, ccfl.Info, float]:
    """The trials after round `stop`, what the rounds on the way brought, and the seconds taken."""
    started = time.perf_counter()
    pieces = [one.rounds(first, stop) for one in trials.schedules]
    states, info = ccfl.run_trials(
        trials.round_fn, trials.states, pieces[0] if len(pieces) == 1 else pieces, trials.data,
        program.ground.mesh, donate=True,
    )  # fmt: skip
    jax.block_until_ready(states)
    return trials._replace(states=states), info, time.perf_counter() - started


def _evaluate(program: Program, trials: _Trials) -> tuple[list[dict[str, float]], np.ndarray]:
    """Each trial's metrics on the test set, and whether its model and loss are finite."""
    params = trials.states.params
    task, _, _, test, mesh = program.ground
    tests = ccfl.evaluate_trials(task, params, test, mesh=mesh)
    finite = np.asarray(_all_finite(params)) & np.isfinite(tests["loss"])
    count = len(finite)
    return [{name: float(a[k]) for name, a in tests.items()} for k in range(count)], finite


def _adaptive_shares(trials: _Trials) -> list[dict[str, float]]:
    shares = build.adaptive_shares(trials.round_fn.args[0], trials.states)
    return [{"adaptive_share": float(share)} for share in shares]


_all_finite = jax.jit(jax.vmap(tree.all_finite))
