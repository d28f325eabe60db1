"""The flags of the benchmarks, and their cases."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from . import flag as flags
from .flag import PATH, POSITIVE, flag, one_of, whole

_COHORT = 32


class Case(NamedTuple):
    """One thing to time.

    Attributes:
        workload: a function of `benchmarks.workloads`.
        settings: its arguments.
        lanes: clients that advance together on a device; None: the default.
        rates: nine trials that differ in the server's rate, "together" as one more batch axis or
            "apart", one after another; None: one run.
        method: a function of `benchmarks.methods`, timed in turn with the same rounds of CC-FedAvg;
            None: CC-FedAvg alone.
    """

    workload: str
    settings: dict[str, Any] = {}  # noqa: RUF012, it is not changed
    lanes: int | None = None
    rates: str | None = None
    method: str | None = None


def _variants() -> list[Case]:
    """Cases for the defaults of an accelerator (`load_balancing.lanes`, `models.lowerings`)."""
    cohort, short = {"batch_size": 20, "buffer_size": _COHORT}, {"compute_dtype": "bfloat16"}
    return [
        *(Case("fmnist_cnn", cohort, lanes) for lanes in (1, 5, _COHORT)),
        *(
            Case(workload, settings | {"lowering": lowering})
            for lowering in ("xla", "shifted", "banded")
            for workload, settings in (("fmnist_cnn", cohort), ("cifar_resnet20", {}))
        ),
        Case("fmnist_cnn", cohort | short),
        Case("cifar_resnet20", short),
        Case("stackoverflow_lr", short),
        *(Case("fmnist_cnn", {"batch_size": 20}, rates=how) for how in ("apart", "together")),
    ]


WORKLOADS = {
    "fmnist_cnn": [Case("fmnist_cnn", {"batch_size": size}) for size in (20, 50)],
    "stackoverflow_lr": [Case("stackoverflow_lr")],
    "cifar_resnet20": [Case("cifar_resnet20")],
    "cifar_resnet18": [Case("cifar_resnet18")],
    "logistic_many": [Case("logistic_many")],
    "async": [Case("asynchronous", {"concurrency": c}) for c in (10, 100, 1000)],
    "systems": [
        Case("fmnist_cnn", {"batch_size": 20}, method=method)
        for method in ("scaffold", "feddyn", "fedprox", "median", "trimmed_mean")
    ],
    "memory": [Case("memory", method="scaffold")],
}
_SIZES = {  # of a run, each varied alone from `scale.workload`
    "clients": (1_000, 10_000, 100_000, 350_000),
    "slots": (10, 100, 1_000, 10_000),
    "history": (10, 100, 1_000),
    "trials": (3, 16, 256),
    "parameters": (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000),
}
_ALL = [case for cases in WORKLOADS.values() for case in cases]
CASES = {
    **WORKLOADS,
    "all": _ALL,
    "scale": [Case("scale", {name: size}) for name, sizes in _SIZES.items() for size in sizes],
    "accelerator": [  # systems last, as time may run out
        *(case for case in _ALL if case.method is None),
        *_variants(),
        *(case for case in _ALL if case.method is not None),
    ],
}


@dataclass(frozen=True)
class Options:
    """The flags of the command."""

    workload: str = flag(
        one_of(*CASES),
        "all",
        "cases to time; systems, memory: in turn with CC-FedAvg; accelerator: all of them, and "
        "lanes, lowerings of a convolution, bfloat16, and nine rates together and apart; scale "
        "(not in all): sizes of a run, each varied alone",
        "Benchmark",
    )
    seconds: float = flag(POSITIVE, 10.0, "to time each case for", "Benchmark")
    minutes: float | None = flag(POSITIVE, None, "in which to start cases; unset: all", "Benchmark")
    devices: int | None = flag(
        whole(1), None, "to spread clients over; unset: all, on a CPU one per core", "Benchmark"
    )
    lanes: int | None = flag(
        whole(1), None, "clients that advance together on a device", "Benchmark"
    )
    batch_size: int | None = flag(whole(1), None, "instead of each workload's own", "Benchmark")
    against: str | None = flag(
        one_of("torch"),
        None,
        "time the same work as plain loops too, in one process and in one per core, in turn with "
        "ours",
        "Benchmark",
    )
    json: str | None = flag(PATH, None, "file for the results", "Benchmark")


BENCH = flags.table(Options)


def cases(options: Options) -> list[Case]:
    """The cases to time; `--batch_size` replaces that of each, and equal cases are timed once.

    Raises:
        ValueError: for a flag that `scale` has no use for.
    """
    for name in ("against", "batch_size"):
        if options.workload == "scale" and getattr(options, name) is not None:
            raise ValueError(f"--{name}: expected none for scale, found {getattr(options, name)}")
    found = []
    for case in CASES[options.workload]:
        if options.batch_size is not None:
            case = case._replace(settings=case.settings | {"batch_size": options.batch_size})
        if case not in found:
            found.append(case)
    return found
