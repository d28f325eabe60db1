"""The cases of a benchmark, one after the other, printed and written to a file."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax

from ccfl_jax.io.files import replace_file

from ..config.bench_flags import Case, Options
from ..training import devices
from . import measure, methods, scale, workloads


def run(cases: Sequence[Case], options: Options) -> list[dict[str, Any]]:
    """Times the cases; `options.json` has all results so far after each.

    Raises:
        ValueError, ImportError: for missing devices or packages.
    """
    devices.make_host_devices(options.devices)
    mesh, loops = devices.mesh(options.devices), _loops(options.against)
    end = time.monotonic() + 60 * (options.minutes or float("inf"))
    print(f"device {measure.device_name()}, jax {jax.__version__}", flush=True)
    results = []
    for case in cases:
        measure.forget_peak()
        result = {"case": {name: value for name, value in case._asdict().items() if value}}
        if time.monotonic() < end:
            try:
                result |= _measure(case, options, mesh, loops)
            except jax.errors.JaxRuntimeError as error:  # mostly out of memory
                result["error"] = str(error).splitlines()[0]
        else:
            result["error"] = "left out, out of time"
        results.append(result)
        print(_report(result), flush=True)
        if options.json is not None:
            replace_file(options.json, json.dumps(results, indent=1, allow_nan=False) + "\n")
    sizes = [result for result in results if result["case"]["workload"] == "scale"]
    if sizes:
        print(scale.table(sizes), flush=True)
    return results


def _measure(
    case: Case, options: Options, mesh: jax.sharding.Mesh, loops: Callable
) -> dict[str, Any]:
    if case.workload == "scale":
        return scale.case(options.seconds, mesh, options.lanes, **case.settings)
    workload = getattr(workloads, case.workload)(**case.settings)
    if case.rates is not None:
        return measure.measure_rates(workload, options.seconds, case.rates == "together")
    lanes = case.lanes or options.lanes
    if case.method is not None:
        method = getattr(methods, case.method)(workload.local_lr)
        return measure.measure(workload, options.seconds, mesh, lanes, method=method)
    with loops(workload) as others:
        return measure.measure(workload, options.seconds, mesh, lanes, others)


def _loops(against: str | None) -> Callable[[workloads.Workload], AbstractContextManager[dict]]:
    """`loops(workload)`: name -> another loop to time it against, while the context is open."""
    if against is None:
        return lambda workload: nullcontext({})
    try:
        from .torch_loops import loops
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("--against: expected torch to be installed, found it missing") from None

    def one_round(loop: Callable) -> Callable:
        return lambda piece: loop(piece.rounds(0, 1))

    @contextmanager
    def of(workload: workloads.Workload) -> Iterator[dict]:
        with loops(workload) as found:
            yield {name: one_round(loop) for name, loop in found.items()}

    return of


def _report(result: dict[str, Any]) -> str:
    case = result["case"]
    words = [f"{name}={value}" for name, value in case.get("settings", {}).items()]
    words += [f"{name}={case[name]}" for name in ("lanes", "rates", "method") if name in case]
    name = " ".join([case["workload"], *words])
    if "error" in result:
        return f"{name}: {result['error']}"
    if case["workload"] == "scale":
        return "{name}: {rounds_per_s:.4g} rounds/s, peak {host_mb:.0f} MB".format(
            name=name, **result
        )
    if "rates" in case:
        return f"{name}: {result['samples_per_s']:.0f} samples/s, {result['gflops']:.1f} GFLOP/s"
    line = name + (
        ": {samples_per_s:.0f} samples/s, {client_updates_per_s:.1f} client updates/s, "
        "{rounds_per_s:.2f} rounds/s ({rounds} rounds in {pieces} pieces)\n"
        "  compiled in {compile_s:.1f} s, first round after {first_round_s:.1f} s; useful steps "
        "{useful_steps:.2f} with {lanes} lanes on {devices} devices; host {host_mb:.0f} MB\n"
        "  {gflops:.1f} of {product_gflops:.0f} GFLOP/s"
    ).format(**result)
    if result["memories"]:
        line += f"; {result['memories']} memories"
    if result["device_mb"] is not None:
        line += f"; device {result['device_mb']:.0f} MB"
    for other, found in result["against"].items():
        line += f"\n  {found['times']:.2f} times {other}, {found['samples_per_s']:.0f} samples/s"
        if len(result["against"]) > 1 and other == result["fastest"]:
            line += ", the fastest of these"
    return line
