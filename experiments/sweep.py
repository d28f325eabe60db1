"""Trains every combination of given values of flags, and compares them.

usage: ccfl sweep --vary='NAME=VALUE,... NAME=VALUE,...' --out_dir=DIR [--FLAG=VALUE ...]
       ccfl sweep --resume --out_dir=DIR

NAME is any flag that changes a result. Trials that differ in rates, seeds, the clients' samples and
work alone are trained by one compiled program, spread over the devices. The same seed gives the
same clients, schedule and initial model to every method and rate. The folder has `trials/` with a
file for each, `results.csv` with every evaluation of every trial, a column for each NAME, and
`summary.json` with mean and standard error over seeds of every setting, and the best one of each
method. Flags of Clients, Method and Server are a method's and chosen by its score; the others but
the seeds are the problem, and the best is chosen for each of their values. The same command again,
or `--resume` with the folder alone, trains what is not done, and resumes unfinished trials. The
other flags are those of `ccfl train --help`.

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

    own = given.memory, given.overwrite, given.flags, given.cluster
    done = runner.run(given.trials, given.out_dir, *own)
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
