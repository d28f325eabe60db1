"""A table of finished runs and sweeps, a line for a run and for each setting of a sweep.

usage: ccfl table FOLDER ... [--format=markdown|csv|latex] [--target='NAME>=NUMBER']

Settings that differ between the lines have columns. The test score is that of the last evaluation,
the best one that of any, so chosen by the test set; `summary.json` of a sweep has means over the
last fifth of the rounds. Of a setting the columns are means over its seeds, scores with their
standard errors; what a target took is "1 of 3" where one of three seeds has reached it.
"""

import sys
from dataclasses import dataclass

from .config import flag as flags
from .config.command import DONE, command, help_of
from .config.expression import COMPARISON
from .config.flag import accept_changed, flag, one_of


@dataclass(frozen=True)
class Options:
    """The flags of the command."""

    format: str = flag(one_of("markdown", "csv", "latex"), "markdown", "of the table", "Table")
    target: str | None = flag(
        COMPARISON, None, "what it took to it is in columns; unset: that of the runs", "Table"
    )
    accept_changed: str = accept_changed("Table")


TABLE = flags.table(Options)


@command("table", lambda: help_of(__doc__, TABLE))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    given = flags.read(argv, TABLE, words="FOLDER")

    from ccfl_jax.runs import provenance

    from .sweeps import summaries, tables

    provenance.check_beside(given.words, flags.listed(given.values["accept_changed"]))
    rows = summaries.of_folders(given.words, given.values["target"])
    print(tables.FORMATS[given.values["format"]](rows), end="")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
