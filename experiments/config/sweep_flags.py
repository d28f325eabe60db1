"""The flags of a sweep: those of a run, and what to vary."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from . import flag as flags
from .expression import split
from .flag import PATH, POSITIVE, Given, flag
from .run_flags import RUN, Config, resolve

_MOST_TRIALS = 10_000


@dataclass(frozen=True)
class Options:
    """The flags of a sweep besides those of a run."""

    vary: str | None = flag(
        PATH, None, "NAME=VALUE,VALUE,... for each flag to vary, separated by blanks", "Sweep"
    )
    trial_memory: float | None = flag(
        POSITIVE,
        None,
        "MB of a device for trials that train together; unset: a quarter of an accelerator's; on a "
        "CPU each device trains one trial at a time",
        "Sweep",
    )


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
    """

    trials: Trials
    out_dir: str
    memory: float | None
    overwrite: bool


def name_of(varied: dict[str, str]) -> str:
    """The name of a trial, or of a setting, with these values."""
    return " ".join(f"{name}={value}" for name, value in varied.items())


def parse_sweep(argv: list[str]) -> Sweep:
    """Parses the command line of a sweep.

    Raises:
        ValueError: as `run_flags.parse`, for any of the trials; for flags that a sweep does not
            use.
    """
    given = flags.read(argv, RUN, SWEEP)
    for name in ("vary", "out_dir"):
        if given.values[name] is None:
            raise ValueError(f"--{name}: expected a value, found none")
    flags.refuse_useless("a sweep", given, RUN)
    trials = {}
    for varied in _combinations(given.values["vary"]):
        words = [f"--{name}={value}" for name, value in varied.items()]
        own = flags.read([argv[0], *words], {name: RUN[name] for name in varied})
        names, written = given.names | own.names, given.written | own.written
        both = Given(given.values | own.values, names, [], written)
        trials[name_of(varied)] = Trial(varied, replace(resolve(both), out_dir=None))
    _check_different(trials)
    memory = given.values["trial_memory"]
    return Sweep(
        trials,
        given.values["out_dir"],
        None if memory is None else memory * 1e6,
        given.values["overwrite"],
    )


def _check_different(trials: Trials) -> None:
    """Raises ValueError for two trials with the same settings, as of 0.01 and 1e-2."""
    first: dict[Config, str] = {}
    for name, trial in trials.items():
        same = first.setdefault(trial.config, name)
        if same != name:
            raise ValueError(
                f"--vary: expected trials with different settings, found {same!r} and {name!r}"
            )


def _combinations(vary: str) -> list[dict[str, str]]:
    """Every choice of one value for each name; the last name varies fastest."""
    axes: dict[str, list[str]] = {}
    known = [name for name, one in RUN.items() if one.varies]
    for word in split(vary, " \t\n"):
        name, _, listed = word.partition("=")
        values = listed.split(",") if "(" not in listed else split(listed, ",")
        if name not in known or not all(values) or len({*values}) < len(values) or name in axes:
            raise ValueError(
                "--vary: expected NAME=VALUE,VALUE,... once for a name, with different values, "
                f"NAME one of {', '.join(known)}, found {word!r:.300}"
            )
        axes[name] = values
    count = math.prod(map(len, axes.values()))
    if count > _MOST_TRIALS:
        raise ValueError(f"--vary: expected at most {_MOST_TRIALS} combinations, found {count}")
    return [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*axes.values())]
