"""Trials that differ in what a program takes as arguments: it trains and evaluates them together.

Those are the numbers of their methods, the rows of their clients, their schedules and seeds.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial

import ccfl_jax as ccfl
from ccfl_jax.engine import load_balancing
from ccfl_jax.runs import metrics, train_loop
from ccfl_jax.runs.train_loop import Part, Program, Progress

from ..config.methods import PARTS
from ..config.run_flags import RUN, Config
from ..config.settings import SEEDS
from ..training import client_scores, devices, intervals, method, parts, personal, privacy, tasks
from ..training.client_lists import Owners

# The settings that change no more than the arguments of a program, or are in `method.program`.
_ARRAYS = ("partition", "alpha", "local_epochs", "local_steps", "randomness", "work")
ARGUMENTS = {*PARTS, *_ARRAYS, *SEEDS} - {"normalise"}
# Those that clients and schedule depend on, besides the seeds.
DATA = {n for n, one in RUN.items() if one.section in ("Data and model", "Schedule")}


class TaskData(NamedTuple):
    """A task and its data on the devices.

    Attributes:
        task: the learning problem.
        num_classes: of its labels.
        dealt: `dealt(config)`: the clients' rows, as `parts.dealt`; made once for `data_settings`.
        digests: the data's provenance, as `parts.data_digests`.
        data: "x" and "y" of the training samples, on every device.
        scored: "x" and "y" of the test set and, where samples are held out, of those.
        mesh: devices that trials are spread over.
    """

    task: ccfl.Task
    num_classes: int | None
    dealt: Callable[[Config], dict[str, Owners]]
    digests: dict[str, str]
    data: dict[str, jax.Array]
    scored: list[dict[str, jax.Array]]
    mesh: Mesh


class Group(NamedTuple):
    """What trials that share a program have in common.

    Attributes:
        config: that of one of them.
        history: the length of each one's history.
        schedule: `schedule(config)`: the schedule of a trial; made once for `data_settings`.
        round_at: `parts.round_at`; one object, so that it is compiled once.
        first_states: `first_states(numbers, keys, init_keys)`, all `[trials]`: the states before
            round 0.
        task_data: of all of them.
    """

    config: Config
    history: int
    schedule: Callable[[Config], ccfl.Schedule]
    round_at: Callable
    first_states: Callable
    task_data: TaskData


def shared(config: Config) -> tuple:
    """The settings that trials of one program have in common, hashable."""
    every = dataclasses.asdict(config)
    same = tuple((n, v) for n, v in every.items() if n not in ARGUMENTS)
    return (*same, config.work_unit, *method.program(config), parts.source(config))


def data_settings(config: Config) -> Config:
    """The settings that clients and schedule depend on; the others are None."""
    others = dict.fromkeys(RUN.keys() - DATA - {"batch_size"})
    others |= {f"{what}_seed": config.seed_of(what) for what in ("data", "schedule")}
    return dataclasses.replace(config, **others)


def task_data(mesh: Mesh, source: tuple, model: str, compute_dtype: str) -> TaskData:
    """The task and data of `parts.load(*source)`, on the devices."""
    train, held, test, _, num_classes = parts.load(*source)
    task = tasks.task_of(source[0], model, compute_dtype, train, num_classes)
    tasks.check_samples(source[0], task, train, test, held)
    every = [train, test] if held is None else [train, test, held]
    data, *scored = devices.share([*map(parts.arrays_of, every)], mesh)
    known = {name: train[name] for name in ("y", "client") if name in train}
    made = functools.cache(lambda config: parts.dealt(config, known))

    def dealt(config: Config) -> dict[str, Owners]:
        return made(data_settings(config))

    digests = parts.data_digests(source, train, test)
    return TaskData(task, num_classes, dealt, digests, data, scored, mesh)


def group(
    config: Config, history: int, schedule: Callable[[Config], ccfl.Schedule], task_data: TaskData
) -> Group:
    """The group of trials like `config`, with a history of `history` models."""
    tasks.check_labels(config, task_data.num_classes)
    task_data = task_data._replace(task=personal.task_of(config, task_data.task))
    intervals.check_target(config, task_data.task, task_data.scored[0])
    first = partial(parts.first_state, config, task_data.task, history)
    # One after the other: XLA for CPUs may wait for ever for batched decompositions, those of
    # orthogonal initialisers of recurrent models.
    first_states = devices.compiled_quickly(lambda *own: jax.lax.map(lambda one: first(*one), own))
    round_at = parts.round_at(config, task_data.task, task_data.num_classes, None)
    return Group(config, history, schedule, round_at, first_states, task_data)


def at_once(group: Group, memory: float | None) -> tuple[int, int, float | None]:
    """Bytes of a trial on a device, how many train together there, and the bytes for all.

    A trial takes its state twice, before and after a piece, and four models a lane for its steps.
    On a CPU there is one at a time: a batch of models is slower there than one by one.

    Args:
        group: of the trials.
        memory: bytes of a device for trials, by default a quarter of its own.
    """
    config, device = group.config, group.task_data.mesh.devices.flat[0]
    first = partial(parts.first_state, config, group.task_data.task, group.history)
    state = jax.eval_shape(first, method.numbers(config), jax.random.key(0))._replace(key=())
    held, model = metrics.model_bytes(state), metrics.model_bytes(state.params)
    parameters = sum(a.size for a in jax.tree.leaves(state.params))
    lanes = config.lanes or load_balancing.lanes(device.platform, parameters, config.buffer_size, 1)
    nbytes = 2 * held + 4 * model * min(lanes, config.buffer_size)
    if device.platform == "cpu":
        return nbytes, 1, None
    memory = memory or (device.memory_stats() or {}).get("bytes_limit", 0) / 4
    return nbytes, max(1, int(memory // nbytes)), memory


def like(group: Group, trials: Sequence) -> ccfl.State:
    """Equal states of as many trials."""
    return _first_states(group, [group.config] * len(trials))


def start(group: Group, configs: Sequence[Config]) -> Progress:
    """The progress of trials before round 0."""
    return train_loop.start(_first_states(group, configs), len(configs))


def program(group: Group, configs: Sequence[Config]) -> Program:
    """The program of these trials; there are more states, up to a multiple of the devices."""
    task, mesh = group.task_data.task, group.task_data.mesh
    # Repeated here and not in every piece: the states then stay on their devices.
    places = np.minimum(np.arange(len(configs) + -len(configs) % mesh.size), len(configs) - 1)
    numbers = _numbers(configs)
    floors = method.floor(group.config, _numbers([configs[k] for k in places]))
    alike = len({data_settings(config) for config in configs}) == 1
    schedules = [group.schedule(config) for config in (configs[:1] if alike else configs)]
    dealt = [*map(group.task_data.dealt, configs[:1] if alike else configs)]
    lists = {name: _together([own[name] for own in dealt]) for name in dealt[0]}
    data = ccfl.FederatedData(group.task_data.data, *lists.pop("train"))
    round_fn, own_model = Partial(group.round_at, numbers), method.own_model(group.config, task)

    def rest(first: int) -> list[Part]:
        return [([one.rounds(first, one.num_rounds) for one in schedules], data)]

    def advance(states: ccfl.State, own: list[ccfl.Schedule], data: ccfl.FederatedData) -> tuple:
        if len(states.round) < len(places):
            states = jax.tree.map(lambda a: a[places], states)
        piece = own[0] if alike else own
        return ccfl.run_trials(round_fn, states, piece, data, mesh, donate=True)

    def theirs(k: int, states: ccfl.State) -> dict[str, float]:
        own = {name: a if alike else [one[k] for one in a] for name, a in lists.items()}
        tested = {name: ccfl.FederatedData(group.task_data.data, *a) for name, a in own.items()}
        # By way of the host: trials are spread over a mesh of another kind than the samples.
        models = jax.device_get(jax.tree.map(lambda a: a[k], (states.params, states.clients)))
        return client_scores.columns(task, *models, tested, own_model)

    def evaluate(states: ccfl.State) -> list[tuple[dict[str, float], dict[str, float]]]:
        found, done = [], int(np.asarray(states.round).max())
        for k, (test, further) in enumerate(_scores(group.task_data, floors, states)):
            if k < len(configs):
                further |= theirs(k, states)
                own = schedules[k if len(schedules) > 1 else 0].rounds(0, done)
                found.append((test, further | privacy.columns(configs[k], own)))
        return found

    sent, times = method.sent_bytes(group.config, task), intervals.times(group.config)
    ends = group.config.max_rejected, intervals.target(group.config)
    return Program(times, schedules, sent, rest, advance, evaluate, *ends)


def _scores(
    data: TaskData, floors: np.ndarray, states: ccfl.State
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """For each trial its scores on the test set, and the further columns of its row."""
    found = [
        ccfl.evaluate_trials(data.task, states.params, own, mesh=data.mesh) for own in data.scored
    ]
    every = []
    for k, share in enumerate(parts.adaptive_shares(states.server, floors).tolist()):
        test, *held = ({name: float(a[k]) for name, a in own.items()} for own in found)
        every.append((test, parts.further(held, share)))
    return every


def _together(dealt: Sequence[Owners]) -> list[jax.Array]:
    """Clients' rows and starts, of one trial or `[trials, ...]`.

    Rows are lengthened with the last one, which is then no client's: of trials they may be of
    unequal number.
    """
    rows, starts = zip(*dealt, strict=True)
    longest = max(map(len, rows))
    rows = [np.pad(own, (0, longest - len(own)), mode="edge") for own in rows]
    return [jnp.asarray(a[0] if len(a) == 1 else np.stack(a), jnp.int32) for a in (rows, starts)]


def _numbers(configs: Sequence[Config]) -> method.Numbers:
    return jax.tree.map(lambda *a: np.stack(a), *map(method.numbers, configs))


def _first_states(group: Group, configs: Sequence[Config]) -> ccfl.State:
    seeds = [config.seed for config in configs], [config.seed_of("init") for config in configs]
    return group.first_states(_numbers(configs), *map(_keys, seeds))


def _keys(seeds: list[int]) -> jax.Array:
    return jax.vmap(jax.random.key)(np.array(seeds, np.uint32))
