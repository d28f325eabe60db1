"""The flags of a sweep: those of a run, what to vary, and where all of it goes."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from . import flag as flags
from .flag import PATH, POSITIVE, Given, flag
from .run_flags import RUN, Config, resolve

_MOST_TRIALS = 10_000


@dataclass(frozen=True)
class Options:
    """What a sweep has besides the flags of a run."""

    vary: str | None = flag(
        PATH, None, "NAME=VALUE,VALUE,... of each flag to vary, with blanks between", "Sweep"
    )
    trial_memory: float | None = flag(
        POSITIVE,
        None,
        "MB of a device for trials that advance together; unset: a quarter of an accelerator's; on "
        "a CPU trials advance one by one on each device",
        "Sweep",
    )


SWEEP = flags.table(Options)


class Trial(NamedTuple):
    """A trial of a sweep.

    Attributes:
        varied: flag -> value as it was written, of those that tell it from the others.
        config: its settings; `out_dir` is None.
    """

    varied: dict[str, str]
    config: Config


Trials = dict[str, Trial]  # by name, in the order they are run in


class Sweep(NamedTuple):
    """What a sweep was asked for.

    Attributes:
        trials: to run.
        out_dir: the sweep's folder.
        memory: bytes of a device for trials that advance together, or None.
        overwrite: whether to remove first what a sweep has left in `out_dir`.
    """

    trials: Trials
    out_dir: str
    memory: float | None
    overwrite: bool


def name_of(varied: dict[str, str]) -> str:
    """The name of the trial, or of several that have this in common."""
    return " ".join(f"{name}={value}" for name, value in varied.items())


def parse_sweep(argv: list[str]) -> Sweep:
    """Reads the command line of a sweep: that of a run, and what to vary.

    Raises:
        ValueError: as `run_flags.parse`, for any of the trials; for flags that a sweep has no use
            for.
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
        both = Given(given.values | own.values, given.names | own.names, [])
        trials[name_of(varied)] = Trial(varied, replace(resolve(both), out_dir=None))
    memory = given.values["trial_memory"]
    return Sweep(
        trials,
        given.values["out_dir"],
        None if memory is None else memory * 1e6,
        given.values["overwrite"],
    )


def _combinations(vary: str) -> list[dict[str, str]]:
    """Every choice of one value for each name; the last name varies fastest."""
    axes: dict[str, list[str]] = {}
    legal = [name for name, one in RUN.items() if one.varies]
    for word in vary.split():
        name, _, listed = word.partition("=")
        values = listed.split(",")
        if name not in legal or not all(values) or len({*values}) < len(values) or name in axes:
            raise ValueError(
                "--vary: expected NAME=VALUE,VALUE,... once for a name, with different values, "
                f"NAME one of {', '.join(legal)}, found {word!r:.300}"
            )
        axes[name] = values
    count = math.prod(map(len, axes.values()))
    if count > _MOST_TRIALS:
        raise ValueError(f"--vary: expected at most {_MOST_TRIALS} combinations, found {count}")
    return [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*axes.values())]
