"""Makes a schedule, writes it and its picture, and says what is in it.

usage: python -m experiments.schedule --file=NAME.npz [--rule=RULE] [--FLAG=VALUE ...]
       python -m experiments.schedule --show=NAME.npz

NAME.npz is what `--schedule_file` of a run takes, NAME.png its picture, and NAME.log.npz every task
of the clock. The other flags are those of `python -m experiments.train --help`: the seed, clients,
buffer and work of the run it is made for. Exit codes: 0 done; 2 refused (one line says why).
"""

import sys

from .config.command import DONE, command, help_of
from .config.schedule_flags import SCHEDULE, parse_schedule


@command("schedule", lambda: help_of(__doc__, SCHEDULE))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    asked = parse_schedule(argv)

    from .schedules import make

    print("\n".join(make.show(asked) if asked.config is None else make.make(asked)))
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
