"""The flags of a sweep: those of a run, and what to vary."""

import contextlib
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from absl.flags import DEFINE_string

from . import flag as flags
from . import sweep_file
from .expression import split
from .flag import PATH, POSITIVE, Domain, Given, flag
from .run_flags import RUN, Config, resolve
from .settings import DECIDING

_MOST_TRIALS = 10_000
_LONGEST = 240  # of a file's name, in characters


_CLUSTER = Domain(
    DEFINE_string,
    "auto, local:N or HOST:PORT",
    lambda v: re.fullmatch(r"auto|local:[1-9]\d{0,3}|(?!local:)[^\s/]+:\d{1,5}", v) is not None,
)


def cluster(section: str) -> Any:
    """A field of a table: the flag of that name, of commands that train many trials."""
    known = (
        "workers of Ray that train the trials, each on one core or GPU, or --devices of them; "
        "auto: of the cluster that runs; local:N: N here; unset: this process trains"
    )
    return flag(_CLUSTER, None, known, section)


@dataclass(frozen=True)
class Options:
    """The flags of a sweep besides those of a run."""

    vary: str | None = flag(
        PATH,
        None,
        "NAME=VALUE,VALUE,... for each flag to vary, separated by blanks; none: the flag unset",
        "Sweep",
    )
    trial_memory: float | None = flag(
        POSITIVE,
        None,
        "MB of a device for trials that train together; unset: a quarter of an accelerator's; on a "
        "CPU each device trains one trial at a time",
        "Sweep",
    )
    cluster: str | None = cluster("Sweep")


SWEEP = flags.table(Options)


class Trial(NamedTuple):
    """A trial of a sweep.

    Attributes:
        varied: flag -> value as written, for the flags that differ between trials.
        config: its settings; `out_dir` is None.
    """

    varied: dict[str, str]
    config: Config


Trials = dict[str, Trial]  # by name, in the order of training


class Sweep(NamedTuple):
    """A parsed command line of a sweep.

    Attributes:
        trials: to train.
        out_dir: the sweep's folder.
        memory: bytes of a device for trials that train together, or None.
        overwrite: whether to remove an earlier sweep in `out_dir` first.
        cluster: whose workers train, or None.
        flags: those given, for `sweep_file.resumed`.
    """

    trials: Trials
    out_dir: str
    memory: float | None
    overwrite: bool
    cluster: str | None
    flags: dict[str, dict[str, Any]]


@contextlib.contextmanager
def named(varied: dict[str, str]) -> Iterator[None]:
    """Names the trial with these values in a ValueError about its settings."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}, of the trial {name_of(varied)}") from None


def name_of(varied: dict[str, str]) -> str:
    """The name of a trial, or of a setting, with these values."""
    return " ".join(f"{name}={value}" for name, value in varied.items())


def file_of(name: str) -> str:
    """The name of a trial as that of a file, without its ending: no path, and no blanks."""
    file = quote(name.replace(" ", ","), safe="=,()+")
    if len(file) > _LONGEST:
        raise ValueError(
            f"--vary: expected names of at most {_LONGEST} characters, found {name!r:.300}"
        )
    return file


def parse_sweep(argv: list[str]) -> Sweep:
    """Parses the command line of a sweep; with `--resume` the flags in its folder come first.

    Raises:
        FileNotFoundError: for `--resume` in a folder that is none of a sweep.
        ValueError: as `run_flags.parse`, for any of the trials; for flags that a sweep does not
            use; for a folder whose flags cannot be read.
    """
    given = flags.read(argv, RUN, SWEEP)
    folder, resume = given.values["out_dir"], given.values["resume"]
    is_kept = folder is not None and (Path(folder) / sweep_file.SWEEP_FILE).exists()
    if folder is None or not (resume is True or (resume == "auto" and is_kept)):
        return _sweep(given)
    own = given.names - {*sweep_file.OF_NOW}
    given = sweep_file.resumed(argv, folder, {**RUN, **SWEEP})
    try:
        return _sweep(given)
    except ValueError as error:
        if own:  # which may be the cause
            raise
        raise ValueError(f"{Path(folder) / sweep_file.SWEEP_FILE}: {error}") from None


def _sweep(given: Given) -> Sweep:
    """The sweep of parsed flags."""
    for name in ("vary", "out_dir"):
        if given.values[name] is None:
            raise ValueError(f"--{name}: expected a value, found none")
    flags.refuse_useless("a sweep", given, RUN)
    every = [_trial(given, varied) for varied in _combinations(given.values["vary"])]
    trials = {name_of(trial.varied): trial for trial in every}
    _check_different(trials)
    memory = given.values["trial_memory"]
    return Sweep(
        trials,
        given.values["out_dir"],
        None if memory is None else memory * 1e6,
        given.values["overwrite"],
        given.values["cluster"],
        sweep_file.flags_of(given),
    )


def _trial(given: Given, varied: dict[str, str]) -> Trial:
    """The trial with these values of flags and, for all others, those that are given."""
    unset = {n for n, value in varied.items() if value == "none" and RUN[n].default is None}
    words = [f"--{name}={value}" for name, value in varied.items() if name not in unset]
    own = flags.read(["", *words], {name: RUN[name] for name in varied})
    names, written = (now - unset | own.names for now in (given.names, given.written))
    with named(varied):
        config = resolve(Given(given.values | own.values, names, [], written))
    return Trial(varied, replace(config, out_dir=None, resume=False))


def _check_different(trials: Trials) -> None:
    """Raises ValueError for two trials with the same settings, as of 0.01 and 1e-2."""
    first: dict[tuple, str] = {}
    for name, trial in trials.items():
        given = [(RUN[flag], value) for flag, value in asdict(trial.config).items()]
        read = tuple(v if v is None else flag.domain.read(v) for flag, v in given)
        same = first.setdefault(read, name)
        if same != name:
            raise ValueError(
                f"--vary: expected trials with different settings, found {same!r} and {name!r}"
            )


def _combinations(vary: str) -> list[dict[str, str]]:
    """Every choice of one value for each name; the last name varies fastest."""
    axes: dict[str, list[str]] = {}
    for word in split(vary, " \t\n"):
        name, _, listed = word.partition("=")
        values = listed.split(",") if "(" not in listed else split(listed, ",")
        if not all(values) or len({*values}) < len(values) or name in axes:
            raise ValueError(
                "--vary: expected NAME=VALUE,VALUE,... once for a name, with different values, "
                f"found {word!r:.300}"
            )
        if name not in DECIDING:
            near = flags.nearest(name, DECIDING)
            raise ValueError(
                f"--vary: expected a flag that changes a result, found {word!r:.300}{near}"
            )
        axes[name] = values
    count = math.prod(map(len, axes.values()))
    if count > _MOST_TRIALS:
        raise ValueError(f"--vary: expected at most {_MOST_TRIALS} combinations, found {count}")
    return [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*axes.values())]
