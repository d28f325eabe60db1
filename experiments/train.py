"""Trains one federated run and writes its folder.

usage: ccfl train [--preset=NAME] [--FLAG=VALUE ...]

Of a flag given twice the last value counts. Exit codes: 0 done; 2 a flag, value or file was refused
(one line says why); 3 the run diverged; 4 its metrics or checkpoints could not be written; 5 a
signal stopped it, and `--resume --out_dir=FOLDER` continues it.
"""

import sys

from .config import run_file
from .config.command import DIVERGED, DONE, FAILED, STOPPED, command, help_of, refused
from .config.run_flags import RUN, parse


@command("train", lambda: help_of(__doc__, RUN))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    config = parse(run_file.resumed(argv))

    from .training import report, run, run_setup

    job = run_setup.prepare(config)
    try:
        rows = run.train(job)
    except OSError as error:
        return refused("train", error, FAILED)
    if report.is_short(rows, job.config):
        return STOPPED
    return DIVERGED if rows[-1]["diverged"] else DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
