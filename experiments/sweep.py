"""Trains every combination of given values of flags, and compares them.

usage: python -m experiments.sweep --vary='NAME=VALUE,... NAME=VALUE,...' --out_dir=DIR
           [--FLAG=VALUE ...]

Trials that differ in rates and seed alone are trained by one compiled program, spread over the
devices. The same seed gives the same clients, schedule and initial model to every method and rate.
The folder has `trials/` with a file for each, `results.csv` with every evaluation of every trial
and `summary.json`. The same command again trains only what is not done, and resumes unfinished
trials. The other flags are those of `python -m experiments.train --help`.

Exit codes: 0 done; 2 a flag, value or file was refused; 3 some trial diverged; 4 some failed; 5 a
signal stopped it, and the same command continues it.
"""

import sys
from pathlib import Path

from .config.command import command, help_of
from .config.sweep_flags import SWEEP, parse_sweep


@command("sweep", lambda: help_of(__doc__, SWEEP))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    given = parse_sweep(argv)

    from .sweeps import results, runner, selection

    done = runner.run(given.trials, given.out_dir, given.memory, given.overwrite)
    folder, choices = Path(given.out_dir), selection.choices(done)
    results.write_table(folder / results.RESULTS, done)
    summary = {"choices": selection.as_json(choices), "settings": selection.scores(done)}
    results.write_summary(folder / results.SUMMARY, summary)
    for contest, choice in choices.items():
        print(f"best      {contest}: {selection.line(choice)}")
    print(f"results   {folder / results.RESULTS}")
    return runner.exit_code(done)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
