"""What an accelerator's defaults rest on: `python -m experiments.accelerator [--json=FILE]`.

One command of under eight minutes. In this order, each case as in `experiments.bench`:

1. every workload as it is;
2. `lanes` 1, 5 and 32 for rounds of 32 clients;
3. the three lowerings of a convolution, for the CNN and for ResNet-20;
4. bfloat16 for the model (compare with float32 in 1 and 2);
5. nine server rates one after another, and together as one more batch axis.

`--minutes` is how long new cases are started for; those left out are named at the end. The default
lanes (`ccfl_jax.layout.lanes`) and lowering (`ccfl_jax.models.lowerings.default_lowering`) say what
they were measured on; change them where this says otherwise.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import ccfl_jax as ccfl
from ccfl_jax.folder import replace_file
from experiments import arguments, bench
from experiments.workloads import CASES, Workload, cifar_resnet20, fmnist_cnn, stackoverflow_lr

_COHORT = 32
_RATES = [10 ** (-k / 2) for k in range(9)]

Case = tuple[dict[str, Any], Callable[[], dict[str, Any]]]  # what is set, and its measurement


def main(argv: list[str]) -> int:
    """Runs the command line `argv`; 0, or 2 where it was refused."""
    parser = arguments.Parser(prog="accelerator")
    parser.add_argument("--minutes", type=float, default=7.0, help="to start cases for, default 7")
    parser.add_argument("--seconds", type=float, default=2.0, help="to time each for, default 2")
    parser.add_argument("--json", type=Path, help="file for the results")
    try:
        asked, _ = arguments.read(parser, argv)
    except ValueError as error:
        print("accelerator: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    end, results = time.monotonic() + 60 * asked.minutes, []
    print(f"device {bench.device_name()}, jax {jax.__version__}", flush=True)
    for setting, measure in cases(asked.seconds):
        result = {"setting": setting}
        if time.monotonic() < end:
            try:
                result |= measure()
            except jax.errors.JaxRuntimeError as error:  # out of memory, above all
                result["error"] = str(error).splitlines()[0]
        else:
            result["error"] = "left out, out of time"
        results.append(result)
        print(_line(result), flush=True)
        if asked.json is not None:
            replace_file(asked.json, json.dumps(results, indent=1, allow_nan=False) + "\n")
    return 0


def cases(seconds: float) -> Iterator[Case]:
    """All cases in order; nothing is built before its measurement."""

    def case(build: Callable, settings: dict, lanes: int | None = None) -> Case:
        setting = {"workload": build.__name__, **settings}
        setting |= {} if lanes is None else {"lanes": lanes}
        return setting, lambda: bench.measure(build(**settings), seconds, lanes=lanes)

    for kinds in CASES.values():
        for build, settings in kinds:
            yield case(build, settings)
    cohort = {"batch_size": 20, "buffer_size": _COHORT}
    for lanes in (1, 5, _COHORT):
        yield case(fmnist_cnn, cohort, lanes)
    for lowering in ("xla", "shifted", "banded"):
        yield case(fmnist_cnn, cohort | {"lowering": lowering})
        yield case(cifar_resnet20, {"lowering": lowering})
    short = {"compute_dtype": "bfloat16"}
    yield case(fmnist_cnn, cohort | short)
    yield case(cifar_resnet20, short)
    yield case(stackoverflow_lr, short)
    for together in (False, True):
        setting = {"workload": "nine server rates", "together": together}
        yield setting, partial(measure_rates, together, seconds)


def measure_rates(together: bool, seconds: float, **settings: Any) -> dict[str, Any]:
    """Useful samples per second over nine trials that differ in the server's rate alone."""
    workload = fmnist_cnn(**({"batch_size": 20} | settings))
    run = trials(workload, together)
    run(bench.cut(workload.schedule, 0, 2))
    started, samples, first = time.perf_counter(), 0, 0
    while (taken := time.perf_counter() - started) < seconds or not samples:
        samples += int(run(bench.cut(workload.schedule, first, 2))[1].samples.sum())
        first += 2
    return {"samples_per_s": samples / taken, "gflops": samples / taken * workload.flops / 1e9}


def trials(workload: Workload, together: bool) -> Callable[[ccfl.Schedule], tuple]:
    """A function that runs rounds for every rate, each time from the start.

    It returns states and infos `[trials, ...]`, whether the trials are a batch axis of one program
    or run one after another in it.
    """

    def round_at(rate: jax.Array, *state_slots_data: Any) -> tuple:
        server = ccfl.cc_fedams(rate)
        round_fn = ccfl.build_round(workload.task, server, workload.local_lr, workload.batch_size)
        return round_fn(*state_slots_data)

    def first(rate: jax.Array) -> ccfl.State:
        return ccfl.init_state(workload.task, ccfl.cc_fedams(rate), jax.random.key(0))

    rates, data = jnp.array(_RATES), jax.device_put(workload.data)
    round_fn, states = jax.tree_util.Partial(round_at, rates), jax.vmap(first)(rates)
    size = len(_RATES) if together else 1
    return lambda piece: ccfl.run_trials(round_fn, states, piece, data, together=size)


def _line(result: dict[str, Any]) -> str:
    name = " ".join(f"{key}={value}" for key, value in result["setting"].items())
    if "error" in result:
        return f"{name}: {result['error']}"
    line = f"{name}: {result['samples_per_s']:.0f} samples/s, {result['gflops']:.1f} GFLOP/s"
    if "compile_s" in result:
        line += f", compiled in {result['compile_s']:.1f} s"
        line += f", useful steps {result['useful_steps']:.2f} with {result['lanes']} lanes"
    return line


if __name__ == "__main__":
    sys.exit(main(sys.argv))
