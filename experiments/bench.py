"""Times the engine.

usage: ccfl bench [--workload=NAME] [--against=torch] [--FLAG=VALUE ...]

For every case, in a table and with `--json=FILE` as a list of objects:

* `samples_per_s`, `client_updates_per_s`, `rounds_per_s`: medians over pieces of several rounds,
  after compilation, blocked on the result. Samples are useful ones, those that Algorithm 3 asks
  for; masked work does not count. `pieces` and `rounds` say how much was timed.
* `compile_s`: until a piece of no rounds has returned (tracing, compiling, or reading a cache);
  `first_round_s`: from the data in host memory to the first round done, compiling included.
* `host_mb`, `device_mb`: peak resident memory of the process during the case, where the system does
  not tell until then; peak memory of the first device, null where the backend has no
  statistics.
* `useful_steps`: the share of lanes' steps that were not masked.
* `gflops`: samples times the operations a sample needs, counted by hand (`Workload.flops`);
  `product_gflops`: a 2048 x 2048 float32 matrix product after each workload, default precision.
* `memories`: rows of what clients remember, 0 where the method keeps nothing.
* `against`: the same rounds in other loops, or of a system (`method`) by CC-FedAvg, in turn with
  ours: their samples per second, and `times`, how many times ours is that, the median over pieces.
  PyTorch trains in one process and in one per core, with a convolution's channels first and last.
* `fastest`: which of `against` has the most samples per second, null where there is none.
* `error`: why a case gave none of these.
"""

import sys

from .config import flag as flags
from .config.bench_flags import BENCH, Options, cases
from .config.command import DONE, command, help_of


@command("bench", lambda: help_of(__doc__, BENCH))
def main(argv: list[str]) -> int:
    """Runs the command line `argv` and returns the exit code."""
    options = flags.made(Options, flags.read(argv, BENCH))

    from .benchmarks import suite

    suite.run(cases(options), options)
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
