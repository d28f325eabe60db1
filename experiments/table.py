"""A table of finished runs and sweeps, a line for a run and for each setting of a sweep.

usage: python -m experiments.table FOLDER ... [--format=markdown|csv|latex]
"""

import sys
from dataclasses import dataclass

from .config import flag as flags
from .config.command import DONE, command, help_of
from .config.flag import flag, one_of


@dataclass(frozen=True)
class Options:
    """The flags of the command."""

    format: str = flag(one_of("markdown", "csv", "latex"), "markdown", "of the table", "Table")


TABLE = flags.table(Options)


@command("table", lambda: help_of(__doc__, TABLE))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    given = flags.read(argv, TABLE, words="FOLDER")

    from .sweeps import summaries, tables

    rows = [row for folder in given.words for row in summaries.of_folder(folder)]
    print(tables.FORMATS[given.values["format"]](rows), end="")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
