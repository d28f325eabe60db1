"""The flags of a schedule: those of its run, the world that it is of, and its file."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from . import flag as flags
from .datasets import dataset_of
from .expression import AVAILABILITIES, DISTRIBUTIONS, domain, expression
from .flag import PATH, POSITIVE, SWITCH, Domain, Given, flag, one_of, whole
from .parsers import Number, define
from .run_flags import RUN, Config, resolve

_DISTRIBUTION = domain(DISTRIBUTIONS)
_CORRELATION = Domain(define(Number()), "a number from -1 to 1", lambda v: -1 <= v <= 1)
_OF_LABELS = ("label", "label_diurnal")

_any = partial(flag, section="Schedule")
_rounds = partial(_any, no_use={"--world=paper": "with rounds", "--world=clock": "with rounds"})
_available = partial(_any, no_use={"--world=paper": "with rounds, clock"})
_clock = partial(_any, no_use={"--world=paper": "with clock", "--world=rounds": "with clock"})


@dataclass(frozen=True)
class Options:
    """The flags of a schedule besides those of the run that it is made for."""

    world: Literal["paper", "rounds", "clock"] = _any(
        one_of("paper", "rounds", "clock"),
        "clock",
        "paper: cohorts of all clients and random delays; rounds: of the available clients; clock: "
        "devices, availability and a server's buffer on a virtual clock",
    )
    file: str | None = _any(
        PATH,
        None,
        "file to write, NAME.npz; {seed} in it is its seed. NAME.png is its figure, NAME.log.npz "
        "the tasks of the clock",
    )
    show: str | None = _any(
        PATH, None, "describe this schedule instead; with --num_clients, --overwrite alone"
    )
    overwrite: bool = _any(SWITCH, False, "replace the files of that name")
    round_seconds: float = _rounds(POSITIVE, 60.0, "rounds: seconds from one round to the next")
    availability: str = _available(
        domain(AVAILABILITIES),
        "always",
        "rounds, clock: which clients are available; in seconds, of diurnal in hours. Phases of "
        "cyclic and zones of diurnal are drawn; those of label follow a client's main label. Of a "
        "trace the first --num_clients clients",
    )
    step: str = _clock(_DISTRIBUTION, "constant(1)", "seconds a local step, drawn for each client")
    download_time: str | None = _clock(_DISTRIBUTION, None, "seconds, drawn for each client")
    upload_time: str | None = _clock(_DISTRIBUTION, None, "seconds, drawn for each client")
    capacity: str | None = _clock(
        PATH,
        None,
        "FedScale's file of device capacities, the first --num_clients of them, instead of --step, "
        "--download_time, --upload_time",
    )
    task_factor: str | None = _clock(_DISTRIBUTION, None, "factor of a task's computing time")
    extra: str | None = _clock(_DISTRIBUTION, None, "seconds added to each task")
    concurrency: int = _clock(whole(1), 10, "clients that train at the same time, at most")
    start: Literal["replace", "constant", "poisson"] = _clock(
        one_of("replace", "constant", "poisson"),
        "replace",
        "replace: whenever fewer train; constant, poisson: --rate times a second",
    )
    rate: float | None = _clock(POSITIVE, None, "starts a second; with constant, poisson")
    max_staleness: int | None = _clock(
        whole(0), None, "uploads with a larger staleness are dropped; unset: no limit"
    )
    timeout: float | None = _clock(
        POSITIVE, None, "seconds after which a round ends; unset: no limit"
    )
    on_timeout: Literal["fire", "skip"] = _clock(
        one_of("fire", "skip"), "fire", "a round of the uploads in the buffer, or drop them"
    )
    work_correlation: float = _clock(
        _CORRELATION, 0.0, "correlation of work and slowness; 1: the slowest do most"
    )


SCHEDULE = flags.table(Options)


class Request(NamedTuple):
    """A parsed command line.

    Attributes:
        config: the run's settings; None where a schedule is described.
        options: the flags of the schedule.
        file: of the schedule.
        num_clients: of the schedule, or None where its file says it.
    """

    config: Config | None
    options: Options
    file: Path
    num_clients: int | None


def parse_schedule(argv: list[str]) -> Request:
    """Parses a command line (`argv[0]` is the program).

    With the clock `max_delay` is allowed in a flag file, where it is for training, and not on the
    command line.

    Raises:
        ValueError: as `run_flags.parse`; for flags that this world does not use.
    """
    given = flags.read(argv, RUN, SCHEDULE)
    options = flags.made(Options, given)
    if options.show is not None:
        return _shown(given, options)
    if options.file is None:
        raise ValueError("--file: expected NAME.npz, or --show=NAME.npz, found none")
    flags.refuse_useless(f"--world={options.world}", given, SCHEDULE)
    flags.refuse_useless("a schedule to make", given, RUN)
    if options.world == "clock" and "max_delay" in given.written:
        raise ValueError(
            "--max_delay: expected with paper, rounds (--max_staleness limits clock), found with "
            "--world=clock"
        )
    _check_starts(options, given.names)
    _check_capacity(options, given.names)
    values = given.values | {"overwrite": False}
    if values["server_lr"] is None:
        values["server_lr"] = 1.0  # not used by a schedule
    config = resolve(Given(values, given.names - {"overwrite"}, [], given.written))
    _check_labels(options, config)
    file = _npz("file", options.file.replace("{seed}", str(config.seed_of("schedule"))))
    return Request(config, options, file, config.num_clients)


def _shown(given: Given, options: Options) -> Request:
    others = sorted(given.names - {"show", "num_clients", "overwrite"})
    if others:
        raise ValueError(
            f"--show: expected with --num_clients, --overwrite alone, found with --{others[0]}"
        )
    num_clients = given.values["num_clients"] if "num_clients" in given.names else None
    return Request(None, options, _npz("show", options.show), num_clients)


def _npz(name: str, text: str) -> Path:
    path = Path(text)
    if path.suffix != ".npz" or path.stem.endswith(".log"):
        raise ValueError(
            f"--{name}: expected NAME.npz, other than NAME.log.npz, found {text!r:.300}"
        )
    return path


def _check_starts(options: Options, given: set[str]) -> None:
    if (options.rate is None) != (options.start == "replace"):
        raise ValueError(
            "--rate: expected none with replace, a number with constant, poisson, found "
            f"{options.rate} with --start={options.start}"
        )
    if "on_timeout" in given and options.timeout is None:
        raise ValueError("--on_timeout: expected with --timeout, found without")


def _check_capacity(options: Options, given: set[str]) -> None:
    others = sorted(given & {"step", "download_time", "upload_time"})
    if options.capacity is not None and others:
        raise ValueError(f"--{others[0]}: expected without --capacity, found with it")


def _check_labels(options: Options, config: Config) -> None:
    name = expression(options.availability, AVAILABILITIES)[0]
    if name in _OF_LABELS and not dataset_of(config.dataset)[2].one_label:
        raise ValueError(
            f"--availability: expected a model without labels with --dataset={config.dataset}, "
            f"whose samples have several, found {name}"
        )
