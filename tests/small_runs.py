"""Small runs of `experiments.train`, for the tests of the command and of what goes on later."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from ccfl_jax.runs import checkpoints, metrics
from experiments import train
from experiments.config import run_flags

ROOT = Path(__file__).parents[1]
SMALL = ["--dataset=digits", "--model=logistic", "--num_clients=12", "--buffer_size=3"]
SMALL += ["--max_delay=2", "--local_epochs=1"]
BASE = [*SMALL, "--server_lr=0.1", "--devices=1", "--compilation_cache=off", "--noprogress"]
_CLOCKS = ("seconds", "compile_seconds")


def line(*args):
    """A command line of `train.main`."""
    return ["train", *BASE, *args]


def config_of(*args):
    return run_flags.parse(line(*args))


def main(*args):
    return train.main(line(*args))


def start(*args, **pipes):
    """The command as a process of its own."""
    command = [sys.executable, "-m", "experiments.train", *BASE, *args]
    return subprocess.Popen(command, cwd=ROOT, **pipes)


def six(folder, *args):
    """Runs six rounds, evaluated every second one, unless `args` say otherwise; the exit code."""
    return main("--rounds=6", "--eval_every=2", f"--out_dir={folder}", *args)


def rows_of(folder):
    """The rows; NaN and Infinity are no JSON."""
    lines = (Path(folder) / metrics.METRICS).read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def without_clocks(rows):
    return [{name: v for name, v in row.items() if name not in _CLOCKS} for row in rows]


def near(rows, tolerance):
    """What other rows are compared to: floats within the tolerance, all else is the same."""
    close = partial(pytest.approx, rel=tolerance, abs=tolerance)
    return [{n: close(v) if type(v) is float else v for n, v in row.items()} for row in rows]


def restored(folder, like):
    kept = checkpoints.open_checkpoints(folder)
    saved, _ = checkpoints.restore(kept, like)
    checkpoints.close(kept)
    return saved.state


def contents(folder):
    return {path: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def copied(folder, target):
    return shutil.copytree(folder, target)
