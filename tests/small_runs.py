"""Small runs of `experiments.train`, for the tests of the command and of what goes on later."""

import json
import shutil
from pathlib import Path

from ccfl_jax.runs import checkpoints, metrics
from experiments import train
from experiments.config import run_flags

SMALL = ["--dataset=digits", "--model=logistic", "--num_clients=12", "--buffer_size=3"]
SMALL += ["--max_delay=2", "--local_epochs=1"]
_BASE = [*SMALL, "--server_lr=0.1", "--devices=1", "--compilation_cache=off", "--noprogress"]
_CLOCKS = ("seconds", "compile_seconds")


def config_of(*args):
    return run_flags.parse(["train", *_BASE, *args])


def main(*args):
    return train.main(["train", *_BASE, *args])


def six(folder, *args):
    """Runs six rounds, evaluated every second one, unless `args` say otherwise; the exit code."""
    return main("--rounds=6", "--eval_every=2", f"--out_dir={folder}", *args)


def rows_of(folder):
    def refuse(name):
        raise AssertionError(name)

    lines = (Path(folder) / metrics.METRICS).read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def without_clocks(rows):
    return [{name: v for name, v in row.items() if name not in _CLOCKS} for row in rows]


def restored(folder, like):
    kept = checkpoints.open_checkpoints(folder)
    saved, _ = checkpoints.restore(kept, like)
    checkpoints.close(kept)
    return saved.state


def contents(folder):
    return {path: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def copied(folder, target):
    shutil.copytree(folder, target)
    return target


def assert_refused(message, expected, found):
    """A message is one line that says what is expected first, and last what was found."""
    line = message.rstrip("\n")
    assert line.startswith(expected) and line.endswith(f", found {found}"), message
    assert "\n" not in line
