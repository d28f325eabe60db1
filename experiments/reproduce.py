"""Reproduces a figure or a table of the paper.

usage: ccfl reproduce NAME [--rounds=N] [--grid=coarse|paper|wide|joint] [--seeds=N]
           [--FLAG=VALUE ...]

Tunes every method's rates over the paper's grid with one seed, chooses by the mean training score
(with `--validation` that of held-out samples) over the last fifth of the rounds, trains the chosen
ones with several seeds, and prints whether the paper's claim holds. NAME is a name that `list`
prints, or `all`. The folder, `--out_dir` or runs/reproduce-NAME, has `grid/` and `final/` (sweeps),
`results.csv` (every evaluation of every trial), `summary.json` (choices and verdicts) and the
figure as PNG and SVG. The same command again trains only what is not done. The other flags are
those of `ccfl train --help`, and replace the preset's.

Exit codes: 0 done, for any verdict; 2 refused; 3 some trial diverged; 4 some failed; 5 a signal
stopped it, and the same command continues it.
"""

import sys
from pathlib import Path

from .config import flag as flags
from .config.command import DONE, command, help_of
from .config.reproduce_flags import REPRODUCE, Options
from .config.run_flags import RUN
from .paper import presets


@command("reproduce", lambda: help_of(__doc__, REPRODUCE))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    given = flags.read(argv, RUN, REPRODUCE, words="NAME")
    if len(given.words) > 1:
        raise ValueError(f"NAME: expected one name, found {' '.join(given.words)!r:.300}")
    flags.refuse_useless("a sweep", given, RUN)
    flags.refuse_useless("tuned trials", given, RUN)
    (name,), options = given.words, flags.made(Options, given)
    if options.grid == "joint" and "eps" in given.names:
        raise ValueError(
            f"--eps: expected another --grid than joint, which tries three, found "
            f"{given.values['eps']:g}"
        )
    if name == "list":
        for known in presets.names():
            print(f"{known:20} {presets.preset(known, {}).title}")
        return DONE
    out_dir = given.values["out_dir"]
    own = {n: str(given.values[n]) for n in RUN if n in given.names and n != "out_dir"}
    plans = {}  # all are checked before one starts
    for known in presets.names() if name == "all" else [name]:
        preset = presets.preset(known, own)
        plans[known] = preset, presets.rate_grid(preset, options.grid, options.grid_rounds)

    from .paper import reproduction

    codes = []
    for known, (preset, grid) in plans.items():
        folder = Path(out_dir or "runs")
        if out_dir is None or name == "all":
            folder /= f"reproduce-{known}"
        codes.append(reproduction.reproduce(preset, grid, options.seeds, folder, options.cluster))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
