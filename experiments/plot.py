"""Compares the curves of finished runs and sweeps.

usage: python -m experiments.plot FOLDER ... [--x=AXIS] [--out=FILE]

A folder is that of a run, or of a sweep: of that the setting of each method that was chosen,
by held-out samples if it has them or else by training score, with a band over its seeds.
"""

import sys
from pathlib import Path

from .config import flag as flags
from .config.command import DONE, command, help_of
from .config.plot_flags import PLOT, Options


@command("plot", lambda: help_of(__doc__, PLOT))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    given = flags.read(argv, PLOT, words="FOLDER")
    options = flags.made(Options, given)

    from ccfl_jax.runs import provenance

    from .figures import curves
    from .sweeps import lines

    provenance.check_beside(given.words, flags.listed(options.accept_changed))
    drawn = {}
    for folder in given.words:
        for label, runs in lines.of_folder(Path(folder), options.x).items():
            # Two sweeps may have chosen the same setting.
            drawn[f"{folder}: {label}" if label in drawn else label] = runs
    curves.draw_methods(drawn, [options.out], "", options.x)
    print(options.out)
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
