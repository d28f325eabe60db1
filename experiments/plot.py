"""Compares the curves of finished runs and sweeps.

usage: python -m experiments.plot FOLDER ... --out=FILE[,FILE] [--x=AXIS] [--y=COLUMN,COLUMN]

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
    if not options.pictures:
        raise ValueError("--out: expected a file for the figure, as curves.pdf, found none")

    from ccfl_jax.runs import provenance

    from .figures import curves
    from .sweeps import lines

    provenance.check_beside(given.words, flags.listed(options.accept_changed))
    columns = flags.listed(options.y)
    drawn = [one for name in given.words for one in lines.of_folder(Path(name), options.x, columns)]
    labels = lines.labels(drawn, flags.listed(options.labels))
    runs = {label: one.runs for label, one in zip(labels, drawn, strict=True)}
    curves.draw_methods(runs, options.pictures, "", options.x, columns or curves.with_loss(runs))
    print(*options.pictures, sep="\n")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
