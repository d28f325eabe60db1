"""Writes a page of finished runs, sweeps and comparisons, to be opened in a browser.

usage: ccfl report FOLDER ... --out=FILE.html

One file without anything from the network: curves with the values under the pointer, lines that are
switched on and off, a table that is sorted by its columns, schedules that are zoomed into, settings
and origin. Of a sweep its curves are those of `ccfl plot`, the chosen setting of each method, and
its table is that of `ccfl table`; the folder of a comparison stands for the final runs of its
worlds. All of it works by keyboard.
"""

import sys
from pathlib import Path

from .config import flag as flags
from .config.command import DONE, command, help_of
from .config.report_flags import REPORT, Options


@command("report", lambda: help_of(__doc__, REPORT))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    given = flags.read(argv, REPORT, words="FOLDER")
    options = flags.made(Options, given)
    if options.out is None:
        raise ValueError("--out: expected a file for the page, as report.html, found none")

    from ccfl_jax.io.files import replace_file
    from ccfl_jax.runs import provenance

    from .pages import content, page

    folders = content.folders(given.words)
    provenance.check_beside([*folders], flags.listed(options.accept_changed))
    path = Path(options.out).expanduser()
    replace_file(path, page.page(folders))
    print(path)
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
