"""Compares the curves of finished runs and sweeps.

usage: ccfl plot FOLDER ... --out=FILE[,FILE] [--x=AXIS] [--y=COLUMN,COLUMN]

A folder is that of a run, or of a sweep: of that the setting of each method that was chosen,
by held-out samples if it has them or else by training score, with a band over its seeds; --x is
the mean over them, too, as their virtual times differ. With --x=clients the sorted scores of the
clients of runs, and of two runs those of each client.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from .config import flag as flags
from .config.command import DONE, command, help_of
from .config.plot_flags import CLIENTS, PLOT, Options


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
    columns, folders = flags.listed(options.y), [Path(name) for name in given.words]
    if options.x == CLIENTS:
        _draw_clients(folders, columns, options)
        return DONE
    drawn = [one for name in folders for one in lines.of_folder(name, options.x, columns)]
    labels = lines.labels(drawn, flags.listed(options.labels))
    runs = {label: one.runs for label, one in zip(labels, drawn, strict=True)}
    curves.draw_methods(runs, options.pictures, "", options.x, columns or curves.with_loss(runs))
    print(*options.pictures, sep="\n")
    return DONE


def _draw_clients(folders: Sequence[Path], columns: Sequence[str], options: Options) -> None:
    """Draws a score of every client, of runs."""
    from .figures import curves
    from .sweeps import clients, lines

    if len(columns) > 1:
        raise ValueError(f"--y: expected one column with --x=clients, found {options.y}")
    found = [clients.read(folder, *columns) for folder in folders]
    if len(names := {name for name, _ in found}) > 1:
        raise ValueError(f"--x=clients: expected one metric, found {', '.join(sorted(names))}")
    drawn = [one for folder in folders for one in lines.of_folder(folder, "round")]
    labels = lines.labels(drawn, flags.listed(options.labels))
    scores = dict(zip(labels, (values for _, values in found), strict=True))
    curves.draw_fairness(scores, options.pictures, "", found[0][0].replace("_", " "))
    print(*options.pictures, sep="\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
