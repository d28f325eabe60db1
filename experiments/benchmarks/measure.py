"""Timing one workload: pieces of rounds after compilation, blocked on their results."""

import contextlib
import gc
import os
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import ccfl_jax as ccfl
from ccfl_jax.engine import load_balancing

from ..training import devices
from .methods import Method, cc_fedavg
from .workloads import Workload

_PIECES = 5  # pieces in the time of a case
_PRODUCT = 2048
_RATES = [10 ** (-k / 2) for k in range(9)]

Advance = Callable[[ccfl.Schedule], ccfl.Info]


def measure(
    workload: Workload,
    seconds: float,
    mesh: Mesh | None = None,
    lanes: int | None = None,
    others: dict[str, Callable[[ccfl.Schedule], int]] | None = None,
    method: Method | None = None,
    pieces: int | None = None,
) -> dict[str, Any]:
    """Times one workload; the head of `experiments.bench` explains the entries.

    Args:
        workload: to run.
        seconds: to time it for, without compilation and `others`.
        mesh: devices that the clients are spread over, one by default.
        lanes: clients that advance together on a device; by default as `load_balancing.lanes`.
        others: name -> a loop that trains a piece of schedule, or a part of it, and returns the
            useful samples; each gets every piece after us.
        method: what to train with; CC-FedAvg is then one of the others. By default that alone.
        pieces: that the time has, at least; five by default.
    """
    slots, count = workload.schedule.num_slots, 1 if mesh is None else mesh.size
    lanes = min(lanes or _default_lanes(workload, slots, count), slots)
    started = time.perf_counter()
    advance, memories = _prepare(workload, mesh, lanes, method)
    compile_s = timed(advance, workload.schedule.rounds(0, 0))[1]
    advance(cut(workload.schedule, 0, 1))
    first_round_s = time.perf_counter() - started
    others = others or {}
    if method is not None:
        plain, _ = _prepare(workload, mesh, lanes)
        others = others | {"cc_fedavg": lambda piece: int(plain(piece).samples.sum())}
    timing = seconds, pieces or _PIECES, others
    timed_pieces, theirs = _time_pieces(workload.schedule, advance, *timing)

    steps = np.concatenate([info.steps for info, _ in timed_pieces])
    ours = [float(info.samples.sum() / s) for info, s in timed_pieces]
    samples_per_s = median(ours)
    against = {name: _compared(ours, rates) for name, rates in theirs.items()}
    return {
        "workload": workload.name,
        "device": device_name(),
        "devices": count,
        "lanes": lanes,
        "samples_per_s": samples_per_s,
        "client_updates_per_s": float(median(info.present.sum() / s for info, s in timed_pieces)),
        "rounds_per_s": float(median(len(info.steps) / s for info, s in timed_pieces)),
        "pieces": len(timed_pieces),
        "rounds": len(steps),
        "compile_s": compile_s,
        "first_round_s": first_round_s,
        "host_mb": peak_mb(),
        "device_mb": _device_mb(),
        "memories": memories,
        "useful_steps": useful_steps(steps, lanes),
        "gflops": float(samples_per_s * workload.flops / 1e9),
        "product_gflops": product_gflops(),
        "against": against,
        "fastest": max(against, key=lambda name: against[name]["samples_per_s"], default=None),
    }


def _compared(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Piece by piece: what slows the machine for a while slows both."""
    ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
    return {"samples_per_s": median(theirs), "times": median(ratios)}


def _default_lanes(workload: Workload, slots: int, count: int) -> int:
    shapes = jax.tree.leaves(jax.eval_shape(workload.task.init, jax.random.key(0)))
    parameters = sum(leaf.size for leaf in shapes)
    return load_balancing.lanes(jax.default_backend(), parameters, slots, count)


def peak_mb() -> float:
    """The most resident memory of this process since `forget_peak`."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def forget_peak() -> None:
    """Begins a new peak of memory, where the system can; else it stays that of the process."""
    gc.collect()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _device_mb() -> float | None:
    """The most memory that was in use on the first device, where it tells."""
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return None if peak is None else peak / 2**20


def useful_steps(steps: np.ndarray, lanes: int) -> float:
    """The share of useful steps, `[rounds, slots]`, among those that groups of `lanes` take.

    As in `load_balancing.groups`: the slots of a round in order of work, each group as long as its
    longest.
    """
    ordered = -np.sort(-steps, axis=1)
    return float(steps.sum() / (ordered[:, ::lanes].sum() * lanes))


def product_gflops(size: int = _PRODUCT) -> float:
    """10^9 operations a second of a float32 matrix product `size` x `size`, median of five."""
    a = jnp.asarray(np.random.default_rng([0]).normal(size=(size, size)), jnp.float32)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(a, a))
    seconds = median(timed(product, a, a)[1] for _ in range(5))
    return 2 * size**3 / seconds / 1e9


def cut(schedule: ccfl.Schedule, first: int, count: int) -> ccfl.Schedule:
    """Rounds `first` to `first + count` of a schedule that repeats."""
    rows = np.arange(first, first + count) % schedule.num_rounds
    return jax.tree.map(lambda a: a[rows], schedule)


def device_name() -> str:
    """The kind of the first device, or the number and kind of cores."""
    device, cpuinfo = jax.devices()[0], Path("/proc/cpuinfo")
    if device.platform != "cpu" or not cpuinfo.is_file():
        return device.device_kind
    names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0].split(':')[1].strip()}" if names else device.device_kind


def _prepare(
    workload: Workload, mesh: Mesh | None, lanes: int, method: Method | None = None
) -> tuple[Advance, int]:
    """A function that runs rounds, each call from the state of the last one; the memories kept.

    Past the end of a schedule whose memories are planned clients begin anew, but the sum of what
    they remembered goes on: it is for timing alone.
    """
    server, rule, aggregate = method or cc_fedavg(workload.local_lr)
    simulation = ccfl.simulation(
        workload.task,
        server,
        workload.local_lr,
        workload.batch_size,
        normalise="none",
        aggregate=aggregate,
        lanes=lanes,
        mesh=mesh,
        rule=rule,
    )
    schedule, num_clients = workload.schedule, len(workload.data)
    rows = num_clients if schedule.recall is None else schedule.memory_rows()
    length = int(schedule.staleness.max()) + 1
    state = simulation.init(jax.random.key(0), length, num_clients, rows)
    kept = jax.tree.leaves(state.clients)
    if mesh is None:
        data, state = jax.device_put((workload.data, state))
    else:
        data, state = devices.share(workload.data, mesh), devices.put(state, mesh)

    def advance(piece: ccfl.Schedule) -> ccfl.Info:
        nonlocal state
        state, info = ccfl.run_rounds(simulation.round, state, piece, data, donate=True)
        jax.block_until_ready(state)
        return info

    return advance, rows if kept else 0


def _time_pieces(
    schedule: ccfl.Schedule,
    advance: Advance,
    seconds: float,
    number: int,
    others: dict[str, Callable],
) -> tuple[list[tuple[ccfl.Info, float]], dict[str, list[float]]]:
    """Our pieces with the seconds of each, and the samples per second of every other loop."""
    _, once = timed(advance, cut(schedule, 1, 1))
    count = int(np.clip(seconds / number / once, 1, 256))
    for loop in others.values():
        loop(cut(schedule, 0, 1))
    pieces, theirs, done = [], {name: [] for name in others}, 2
    while len(pieces) < number or sum(s for _, s in pieces) < seconds:
        pieces.append(timed(advance, cut(schedule, done, count)))
        for name, loop in others.items():
            samples, taken = timed(loop, cut(schedule, done, count))
            theirs[name].append(samples / taken)
        done += count
    return pieces, theirs


def timed(function: Callable, *arguments: Any) -> tuple[Any, float]:
    """What a function returns, and the seconds until that is there."""
    started = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, time.perf_counter() - started


def measure_rates(workload: Workload, seconds: float, together: bool) -> dict[str, Any]:
    """Useful samples per second over nine trials that differ in the server's rate alone."""
    run = rate_trials(workload, together)
    run(cut(workload.schedule, 0, 2))
    started, samples, first = time.perf_counter(), 0, 0
    while (taken := time.perf_counter() - started) < seconds or not samples:
        samples += int(run(cut(workload.schedule, first, 2))[1].samples.sum())
        first += 2
    return {
        "workload": workload.name,
        "samples_per_s": samples / taken,
        "gflops": samples / taken * workload.flops / 1e9,
    }


def rate_trials(
    workload: Workload, together: bool, every: Sequence[float] = _RATES, mesh: Mesh | None = None
) -> Callable[[ccfl.Schedule], tuple]:
    """A function that runs rounds for every rate, each time from the start, over a mesh's devices.

    It returns states and infos `[trials, ...]`, whether the trials are a batch axis of one program
    or run one after another in it.
    """

    def round_at(rate: jax.Array, *state_slots_data: Any) -> tuple:
        server = ccfl.cc_fedams(rate)
        round_fn = ccfl.build_round(workload.task, server, workload.local_lr, workload.batch_size)
        return round_fn(*state_slots_data)

    def first(rate: jax.Array) -> ccfl.State:
        return ccfl.init_state(workload.task, ccfl.cc_fedams(rate), jax.random.key(0))

    rates = jnp.array(every)
    data = jax.device_put(workload.data) if mesh is None else devices.share(workload.data, mesh)
    round_fn, states = jax.tree_util.Partial(round_at, rates), jax.vmap(first)(rates)
    size = len(every) if together else 1
    return lambda piece: ccfl.run_trials(round_fn, states, piece, data, mesh, together=size)
