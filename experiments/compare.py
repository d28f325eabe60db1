"""Compares systems under the same arrivals.

usage: ccfl compare --out_dir=FOLDER [--methods=A,B,...] [--worlds=A,B,...]
           [--budget=N] [--ranges='local_lr(0.1,30)'] [--seeds=N] [--target='NAME>=NUMBER']
           [--FLAG=VALUE ...]

In every world (who comes when) all methods have the same schedules, one for each seed. Each is
tuned with the same budget: so many settings of its rates, the same points of their ranges, seed 0.
The setting with the best score of held-out training samples (`--validation`, by default a tenth) in
the last fifth of the rounds is trained with every seed. `table.md`, `.csv` and `.tex` have the
scores of the test set, mean ± standard error, and with `--target` what it took to it: rounds,
client updates, bytes, virtual hours and seconds of training; `results.csv` has every evaluation of
every trial, `WORLD-round.png` the curves. The same command again trains only what is not done. The
other flags are those of `ccfl train --help`; the rates among them are then not tuned.

Exit codes: 0 done; 2 refused; 3 some trial diverged; 4 some failed; 5 a signal stopped it, and the
same command continues it.
"""

import sys
from pathlib import Path

from .config import flag as flags
from .config.command import command, help_of
from .config.compare_flags import COMPARE, Options
from .config.methods import PARTS
from .config.run_flags import RUN

# By the comparison; a target ends none of its trials.
_TAKEN = ("method", "server", "seed", "schedule_seed", "schedule_file", "target", "out_dir")


@command("compare", lambda: help_of(__doc__, COMPARE))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    given = flags.read(argv, RUN, COMPARE)
    flags.refuse_useless("a sweep", given, RUN)
    flags.refuse_useless("tuned trials", given, RUN)
    if given.values["out_dir"] is None:
        raise ValueError("--out_dir: expected a value, found none")
    for name in _TAKEN[:-2]:
        if name in given.written:
            raise ValueError(f"--{name}: expected in --methods, --worlds, --seeds, found alone")
    # Of a preset what belongs to a method is left out, as methods bring their own.
    own = [
        name for name in RUN
        if name in given.names and name not in _TAKEN
        and (name in given.written or name not in PARTS)
    ]  # fmt: skip
    words = [f"--{name}={given.values[name]}" for name in own]
    if given.values["validation"] is None:
        words.append("--validation=0.1")

    from .arena import comparison
    from .arena.plan import Plan

    options, folder = flags.made(Options, given), Path(given.values["out_dir"])
    plan = Plan(words, given.written, options, given.values["target"], folder)
    return comparison.compare(plan)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
