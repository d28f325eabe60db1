"""Times the engine: `python -m experiments.bench [--workload=NAME|all] [--against=torch] ...`.

For every workload, in a table and with `--json=FILE` as a list of objects:

* `samples_per_s`, `client_updates_per_s`, `rounds_per_s`: medians over pieces of several rounds,
  after compilation, blocked on the result. Samples are useful ones, those that Algorithm 3 asks
  for; masked work does not count. `pieces` and `rounds` say how much was timed.
* `compile_s`: until a piece of no rounds has returned (tracing, compiling, or reading a cache);
  `first_round_s`: from the data in host memory to the first round done, compiling included.
* `host_mb`, `device_mb`: peak resident memory of the process so far, so with several workloads in
  one process the largest yet; peak memory of the first device, null where the backend has no
  statistics.
* `useful_steps`: the share of lanes' steps that were not masked.
* `gflops`: samples times the operations a sample needs, counted by hand (`Workload.flops`);
  `product_gflops`: a 2048 x 2048 float32 matrix product after each workload, default precision.
* `against`: the same rounds in other loops, in turn with ours: their samples per second and how
  many times ours is that.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import ccfl_jax as ccfl
from ccfl_jax import layout
from ccfl_jax.folder import replace_file
from experiments import arguments, devices
from experiments.workloads import CASES, Workload

_PIECES = 5  # so many pieces make up the asked time
_PRODUCT = 2048

Advance = Callable[[ccfl.Schedule], ccfl.Info]


def main(argv: list[str]) -> int:
    """Runs the command line `argv`; 0, or 2 where it was refused."""
    try:
        asked, _ = arguments.read(_parser(), argv)
        devices.make_host_devices(asked.devices)
        mesh = devices.mesh(asked.devices)
        others = _others(asked.against)
    except (ValueError, ImportError) as error:
        print("bench: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    results = []
    for name in CASES if asked.workload == "all" else [asked.workload]:
        for build, settings in _cases(name, asked.batch_size):
            workload = build(**settings)
            results.append(measure(workload, asked.seconds, mesh, asked.lanes, others(workload)))
            print(_report(results[-1]), flush=True)
            if asked.json is not None:  # after each: a run that is cut short leaves its results
                replace_file(asked.json, json.dumps(results, indent=1, allow_nan=False) + "\n")
    return 0


def measure(
    workload: Workload,
    seconds: float,
    mesh: Mesh | None = None,
    lanes: int | None = None,
    others: dict[str, Callable[[ccfl.Schedule], int]] | None = None,
) -> dict[str, Any]:
    """Times one workload; what the entries mean stands at the head of this module.

    Args:
        workload: what to run.
        seconds: how long to time it, apart from compiling and from `others`.
        mesh: devices that the clients are spread over, one by default.
        lanes: clients that advance together on a device; by default as `layout.lanes`.
        others: name -> a loop that trains a piece of schedule and returns its useful samples; each
            does one round in turn with every piece of ours.
    """
    slots, count = workload.schedule.client.shape[1], 1 if mesh is None else mesh.size
    shapes = jax.tree.leaves(jax.eval_shape(workload.task.init, jax.random.key(0)))
    parameters = sum(leaf.size for leaf in shapes)
    lanes = min(lanes or layout.lanes(jax.default_backend(), parameters, slots, count), slots)
    started = time.perf_counter()
    advance = _prepare(workload, mesh, lanes)
    compile_s = _timed(advance, workload.schedule.rounds(0, 0))[1]
    advance(cut(workload.schedule, 0, 1))
    first_round_s = time.perf_counter() - started
    pieces, theirs = _time_pieces(workload.schedule, advance, seconds, others or {})

    steps = np.concatenate([info.steps for info, _ in pieces])
    samples_per_s = median(info.samples.sum() / s for info, s in pieces)
    against = {
        name: {"samples_per_s": median(rates), "times": samples_per_s / median(rates)}
        for name, rates in theirs.items()
    }
    memory = jax.devices()[0].memory_stats() or {}
    peak = memory.get("peak_bytes_in_use")
    return {
        "workload": workload.name,
        "device": device_name(),
        "devices": count,
        "lanes": lanes,
        "samples_per_s": float(samples_per_s),
        "client_updates_per_s": float(median(info.present.sum() / s for info, s in pieces)),
        "rounds_per_s": float(median(len(info.steps) / s for info, s in pieces)),
        "pieces": len(pieces),
        "rounds": len(steps),
        "compile_s": compile_s,
        "first_round_s": first_round_s,
        "host_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "device_mb": None if peak is None else peak / 2**20,
        "useful_steps": useful_steps(steps, lanes),
        "gflops": float(samples_per_s * workload.flops / 1e9),
        "product_gflops": product_gflops(),
        "against": against,
    }


def useful_steps(steps: np.ndarray, lanes: int) -> float:
    """The share of useful steps, `[rounds, slots]`, among those that groups of `lanes` take.

    As in `ccfl_jax.layout.groups`: the slots of a round in order of work, each group as long as its
    longest.
    """
    ordered = -np.sort(-steps, axis=1)
    return float(steps.sum() / (ordered[:, ::lanes].sum() * lanes))


def product_gflops(size: int = _PRODUCT) -> float:
    """10^9 operations a second of a float32 matrix product `size` x `size`, median of five."""
    a = jnp.asarray(np.random.default_rng([0]).normal(size=(size, size)), jnp.float32)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(a, a))
    seconds = median(_timed(product, a, a)[1] for _ in range(5))
    return 2 * size**3 / seconds / 1e9


def cut(schedule: ccfl.Schedule, first: int, count: int) -> ccfl.Schedule:
    """Rounds `first` to `first + count`, of a schedule that goes round and round."""
    rows = np.arange(first, first + count) % len(schedule.client)
    return ccfl.Schedule(*(a[rows] for a in schedule[:4]))


def device_name() -> str:
    """The first device, or how many cores of which processor."""
    device, cpuinfo = jax.devices()[0], Path("/proc/cpuinfo")
    if device.platform != "cpu" or not cpuinfo.is_file():
        return device.device_kind
    names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0].split(':')[1].strip()}" if names else device.device_kind


def _prepare(workload: Workload, mesh: Mesh | None, lanes: int) -> Advance:
    """A function that runs rounds, each call from where the last one ended."""
    server = ccfl.cc_fedavg()
    round_fn = ccfl.build_round(
        workload.task,
        server,
        workload.local_lr,
        workload.batch_size,
        workload.work_unit,
        normalise="none",
        lanes=lanes,
        mesh=mesh,
    )
    length = int(workload.schedule.staleness.max()) + 1
    state = ccfl.init_state(workload.task, server, jax.random.key(0), length)
    if mesh is None:
        data, state = jax.device_put((workload.data, state))
    else:
        data, state = devices.put((workload.data, state), mesh)

    def advance(piece: ccfl.Schedule) -> ccfl.Info:
        nonlocal state
        state, info = ccfl.run_rounds(round_fn, state, piece, data, donate=True)
        jax.block_until_ready(state)
        return info

    return advance


def _time_pieces(
    schedule: ccfl.Schedule, advance: Advance, seconds: float, others: dict[str, Callable]
) -> tuple[list[tuple[ccfl.Info, float]], dict[str, list[float]]]:
    """Our pieces with the seconds of each, and the samples per second of every other loop."""
    _, once = _timed(advance, cut(schedule, 1, 1))
    count = int(np.clip(seconds / _PIECES / once, 1, 256))
    for loop in others.values():
        loop(cut(schedule, 0, 1))
    pieces, theirs, done = [], {name: [] for name in others}, 2
    while len(pieces) < _PIECES or sum(s for _, s in pieces) < seconds:
        pieces.append(_timed(advance, cut(schedule, done, count)))
        for name, loop in others.items():
            samples, taken = _timed(loop, cut(schedule, done, 1))
            theirs[name].append(samples / taken)
        done += count
    return pieces, theirs


def _timed(function: Callable, *arguments: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, time.perf_counter() - started


def _cases(name: str, batch_size: int | None) -> list[tuple[Callable, dict]]:
    if batch_size is None:
        return list(CASES[name])
    cases = []
    for build, settings in CASES[name]:
        case = (build, settings | {"batch_size": batch_size})
        if case not in cases:
            cases.append(case)
    return cases


def _others(against: str | None) -> Callable[[Workload], dict]:
    if against is None:
        return lambda workload: {}
    try:
        from experiments.bench_torch import loops
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("--against: found torch, which is not installed here") from None
    return loops


def _report(result: dict[str, Any]) -> str:
    line = (
        "{workload}: {samples_per_s:.0f} samples/s, {client_updates_per_s:.1f} client updates/s, "
        "{rounds_per_s:.2f} rounds/s ({rounds} rounds in {pieces} pieces)\n"
        "  compiled in {compile_s:.1f} s, first round after {first_round_s:.1f} s; useful steps "
        "{useful_steps:.2f} with {lanes} lanes on {devices} devices; host {host_mb:.0f} MB\n"
        "  {gflops:.1f} of {product_gflops:.0f} GFLOP/s, {device}"
    ).format(**result)
    if result["device_mb"] is not None:
        line += f"; device {result['device_mb']:.0f} MB"
    for name, other in result["against"].items():
        line += f"\n  {other['times']:.2f} times {name}, {other['samples_per_s']:.0f} samples/s"
    return line


def _parser() -> arguments.Parser:
    parser = arguments.Parser(prog="bench", description="Times ccfl_jax")
    add = parser.add_argument
    add("--workload", choices=["all", *CASES], default="all", help="default: all")
    add("--seconds", type=_positive(float), default=10.0, help="to time each for, default 10")
    add("--devices", type=_positive(int), help="default: all; on a CPU one per core")
    add("--lanes", type=_positive(int), help="clients that advance together on a device")
    add("--batch_size", type=_positive(int), help="instead of each workload's own")
    add("--against", choices=["torch"], help="the same work as plain loops, in turn with ours")
    add("--json", type=Path, help="file for the results")
    return parser


def _positive(kind: type) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise ValueError(text)
        return value

    parse.__name__ = f"positive {kind.__name__}"  # argparse puts this name into its message
    return parse


if __name__ == "__main__":
    sys.exit(main(sys.argv))
