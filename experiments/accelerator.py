"""Measures the defaults of an accelerator, in under eight minutes.

usage: ccfl accelerator [--json=FILE] [--FLAG=VALUE ...]

It is `ccfl bench --workload=accelerator --minutes=7 --seconds=2`, on one device: every workload;
`lanes` 1, 5 and 32 for rounds of 32 clients; the three lowerings of a convolution, for the CNN and
for ResNet-20; bfloat16 for the model; nine server rates one after another, and together as one more
batch axis; systems against CC-FedAvg. The default lanes
(`ccfl_jax.engine.load_balancing`) and lowering (`ccfl_jax.models.lowerings`) have tables of
measurements; change them where these differ.
"""

import sys

from .config import flag as flags
from .config.bench_flags import BENCH, Options, cases
from .config.command import DONE, command, help_of

_OWN = ("--workload=accelerator", "--minutes=7", "--seconds=2", "--devices=1")


@command("accelerator", lambda: help_of(__doc__, BENCH))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    options = flags.made(Options, flags.read([argv[0], *_OWN, *argv[1:]], BENCH))

    from .benchmarks import suite

    suite.run(cases(options), options)
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
