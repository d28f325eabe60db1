"""The flags of a sweep: those of a run, what to vary, and where all of it goes."""

import itertools
import math
from dataclasses import replace
from typing import NamedTuple

from experiments.flags import (
    FLAGS,
    PATH,
    POSITIVE,
    Config,
    Flag,
    check_domains,
    described,
    read,
    resolve,
)
from experiments.rules import VARIABLE, check_sweep

_MOST_TRIALS = 10_000
_SWEEP = {
    "vary": Flag(PATH, None, "NAME=VALUE,VALUE,... of each flag to vary, with blanks between"),
    "trial_memory": Flag(
        POSITIVE,
        None,
        "MB of a device for trials that advance together; unset: a quarter of an accelerator's; "
        "on a CPU trials advance one by one on each device",
    ),
}


class Sweep(NamedTuple):
    """What a sweep was asked for.

    Attributes:
        trials: name -> settings, in the order they are run in; `out_dir` is None.
        out_dir: the sweep's folder.
        memory: bytes of a device for trials that advance together, or None.
        overwrite: whether to remove first what a sweep has left in `out_dir`.
    """

    trials: dict[str, Config]
    out_dir: str
    memory: float | None
    overwrite: bool


def parse_sweep(argv: list[str]) -> Sweep:
    """Reads the command line of a sweep: that of a run, and what to vary.

    Raises:
        ValueError: as `parse`, for any of the trials; for flags that a sweep has no use for.
    """
    values, given = read(argv, FLAGS | _SWEEP)
    check_domains({name: values[name] for name in _SWEEP}, given, _SWEEP)
    check_sweep(values, given)
    trials = {}
    for settings in _combinations(values["vary"]):
        line = [*argv, *(f"--{name}={value}" for name, value in settings)]
        own, own_given = read(line, FLAGS | _SWEEP)
        name = " ".join(f"{name}={value}" for name, value in settings)
        config = resolve({n: own[n] for n in FLAGS}, own_given & FLAGS.keys())
        trials[name] = replace(config, out_dir=None)
    memory = values["trial_memory"]
    memory = None if memory is None else memory * 1e6
    return Sweep(trials, values["out_dir"], memory, values["overwrite"])


def _combinations(vary: str) -> list[tuple[tuple[str, str], ...]]:
    """Every choice of one value for each name; the last name varies fastest."""
    axes = {}
    for word in vary.split():
        name, _, listed = word.partition("=")
        values = listed.split(",")
        if name not in VARIABLE or not all(values) or len({*values}) < len(values) or name in axes:
            raise ValueError(
                f"--vary: found {word!r:.300}, legal: NAME=VALUE,VALUE,... once for a name, with "
                f"different values, NAME one of {', '.join(VARIABLE)}"
            )
        axes[name] = [(name, value) for value in values]
    count = math.prod(map(len, axes.values()))
    if count > _MOST_TRIALS:
        raise ValueError(f"--vary: found {count} combinations, legal: up to {_MOST_TRIALS}")
    return list(itertools.product(*axes.values()))


def sweep_help_text() -> str:
    """What `--help` of a sweep prints."""
    lines = [
        "Trains every combination of the values that flags are given, and compares them.",
        "",
        "usage: python -m experiments.sweep --vary='NAME=VALUE,... NAME=VALUE,...' --out_dir=DIR",
        "           [--FLAG=VALUE ...]",
        "",
        "The other flags are those of `python -m experiments.train --help`. The same command again",
        "goes on with a sweep that was stopped. Exit codes: 0 done, 2 refused, 3 some trial "
        "diverged,",
        "4 some failed, 5 stopped by SIGTERM or SIGINT.",
    ]
    return "\n".join(lines + described({"Sweep": _SWEEP}))
