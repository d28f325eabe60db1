"""Makes a schedule, writes it with its figure, and describes it.

usage: ccfl schedule --file=NAME.npz [--world=WORLD] [--FLAG=VALUE ...]
       ccfl schedule --show=NAME.npz

NAME.npz is for `--schedule_file` of a run, NAME.png its figure, and NAME.log.npz every task of the
clock. The other flags are those of `ccfl train --help`: the seed, clients, buffer and work of the
run it is made for. Exit codes: 0 done; 2 refused (one line says why).
"""

import sys

from .config.command import DONE, command, help_of
from .config.schedule_flags import SCHEDULE, parse_schedule


@command("schedule", lambda: help_of(__doc__, SCHEDULE))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    request = parse_schedule(argv)

    from .schedules import make

    print("\n".join(make.show(request) if request.config is None else make.make(request)))
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
