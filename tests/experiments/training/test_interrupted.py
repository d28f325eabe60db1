"""Runs that are stopped, killed or left without room go on, and end as the unbroken run does.

The long form, 20 kills: `python -m pytest -m slow tests/test_interrupted.py`.
"""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from small_runs import SMALL, without_clocks

from ccfl_jax.runs import checkpoints, metrics, run_config
from experiments.config import run_flags
from experiments.training import run_setup

_ROOT = Path(__file__).parents[3]
# Without what other tests have set: how a product is split over threads decides its last bit.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
_ARGS = [*SMALL, "--server_lr=0.1", "--devices=1"]


def _start(module, folder, cache, *args):
    """The command as a process of its own, its output in a pipe: so there is no progress bar."""
    command = [sys.executable, "-m", f"experiments.{module}", *_ARGS, f"--out_dir={folder}"]
    return subprocess.Popen(
        [*command, f"--compilation_cache={cache}", *args],
        cwd=_ROOT,
        env=_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _finish(process):
    out, _ = process.communicate(timeout=300)
    return process.returncode, out


def _rows(folder):
    return without_clocks(metrics.read_rows(folder))


def _state(folder, like):
    kept = checkpoints.open_checkpoints(folder, keep=99)
    saved, broken = checkpoints.restore(kept, like)
    checkpoints.close(kept)
    assert broken == []
    return jax.tree.leaves(saved.state._replace(key=jax.random.key_data(saved.state.key)))


def _newest(folder):
    names = [path.name for path in Path(folder, checkpoints.CHECKPOINTS).glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _wait_for(holds, process, seconds=120.0):
    """Whether it came to hold while the process lived."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if holds():
            return True
        time.sleep(0.002)
    return False


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run of 200 rounds that nobody disturbs, saved after every one; its compiled programs; and a
    state like its own."""
    base = tmp_path_factory.mktemp("unbroken")
    code, out = _finish(_start("train", base / "run", base / "cache", *_LONG))
    assert code == 0, out
    config = run_flags.parse(["train", *_ARGS, *_LONG, "--compilation_cache=off"])
    ready = run_setup.prepare(dataclasses.replace(config, out_dir=str(base / "ready")))
    run_setup.close(ready)
    return base / "run", base / "cache", ready.progress.states


_LONG = ["--rounds=200", "--eval_every=3", "--checkpoint_every=1"]


def _same_ends(folder, whole, like):
    assert _rows(folder) == _rows(whole)
    for ours, theirs in zip(_state(folder, like), _state(whole, like), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["checkpoints", "config.json", "curves.png", "metrics.jsonl", "schedule.npz"]


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_moment_ends_as_the_unbroken_one(unbroken, tmp_path, kills):
    """Killed while it starts, computes and saves; every start goes on where the last save was."""
    whole, cache, like = unbroken
    folder, draw, done, killed = tmp_path / "run", random.Random(kills), [], 0
    while True:
        begun = (folder / run_config.CONFIG).exists()
        process = _start("train", folder, cache, *_LONG, "--resume" if begun else "--overwrite")
        if killed < kills:
            before = _newest(folder)
            if draw.random() < 0.2:
                time.sleep(draw.uniform(0.5, 4.0))  # while it starts, most likely
            else:
                ahead = draw.randint(1, max(1, (200 - before) // (2 * kills)))
                _wait_for(lambda: _newest(folder) >= before + ahead, process)  # noqa: B023
                time.sleep(draw.uniform(0, 0.03))  # a save takes about that long
            process.kill()
        code, out = _finish(process)
        if code != -signal.SIGKILL:
            assert code == 0, out
            break
        killed += 1
        done.append(_newest(folder))
        rounds = [row["round"] for row in metrics.read_rows(folder)] if begun else []
        assert rounds == sorted(set(rounds))
    assert killed == kills
    assert done == sorted(done)  # nothing that was saved is ever lost
    _same_ends(folder, whole, like)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_with_everything_saved(unbroken, tmp_path, number):
    whole, cache, like = unbroken
    folder, rare = tmp_path / "run", ["--checkpoint_every=1000"]
    process = _start("train", folder, cache, *_LONG, *rare)
    assert _wait_for(lambda: len(_lines(folder)) > 3, process)
    process.send_signal(number)
    code, out = _finish(process)
    assert code == 5, out
    assert f"{number.name}: stops at the next piece's end; once more ends at once" in out
    assert f"stopped   --resume --out_dir={folder} goes on" in out
    assert not (folder / "lock").exists()
    stopped = _newest(folder)
    assert _rows(folder)[-1]["round"] <= stopped < 200
    code, out = _finish(_start("train", folder, cache, *_LONG, "--resume"))
    assert code == 0, out
    _same_ends(folder, whole, like)


def test_a_second_signal_ends_at_once(unbroken, tmp_path):
    folder, cache = tmp_path / "run", unbroken[1]
    # Pieces of 250 rounds of 60 epochs: the first signal would take long to be obeyed.
    slow = ["--rounds=2000", "--eval_every=2000", "--local_epochs=60"]
    process = _start("train", folder, cache, *slow)
    assert _wait_for(lambda: len(_lines(folder)) > 0, process)
    process.send_signal(signal.SIGTERM)
    for line in process.stdout:
        if "once more ends at once" in line:
            break
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert [row["round"] for row in metrics.read_rows(folder)] == [0]


def _lines(folder):
    path = Path(folder, metrics.METRICS)
    return path.read_bytes().splitlines() if path.exists() else []


def test_a_full_disk_ends_a_run_in_a_line_and_it_goes_on_later(unbroken, tmp_path):
    """A limit on the size of files stands for a full disk: checkpoints fit, but not all rows."""
    whole, cache, like = unbroken
    largest = max(p.stat().st_size for p in (whole / "checkpoints").rglob("*") if p.is_file())
    rows = (whole / metrics.METRICS).stat().st_size
    folder, room = tmp_path / "run", (largest + rows) // 2
    assert largest < room < rows
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room})); "
        "from experiments import train; sys.exit(train.main(sys.argv))"
    )
    args = [*_ARGS, *_LONG, f"--out_dir={folder}", "--compilation_cache=off"]
    done = subprocess.run(
        [sys.executable, "-c", limited, *args],
        cwd=_ROOT,
        env=_ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4, done.stderr
    assert done.stderr.splitlines()[-1].startswith("train: ")
    kept = _rows(folder)
    assert kept == _rows(whole)[: len(kept)] and 2 < len(kept) < len(_rows(whole))
    code, out = _finish(_start("train", folder, cache, *_LONG, "--resume"))
    assert code == 0, out
    _same_ends(folder, whole, like)


def test_two_processes_cannot_write_one_run(unbroken, tmp_path):
    folder, cache = tmp_path / "run", unbroken[1]
    first = _start("train", folder, cache, *_LONG, "--rounds=100000")
    assert _wait_for(lambda: _newest(folder) > 0, first)
    for how in ("--resume", "--overwrite"):
        code, out = _finish(_start("train", folder, cache, *_LONG, "--rounds=100000", how))
        assert code == 2, out
        assert f"{folder}: found in use by process {first.pid} on " in out
    first.kill()
    _finish(first)
    assert (folder / "lock").exists()
    code, out = _finish(_start("train", folder, cache, *_LONG, "--rounds=1"))
    assert code == 2 and "found a folder with content" in out
    code, out = _finish(_start("train", folder, cache, *_LONG, "--rounds=1", "--overwrite"))
    assert code == 0, out
    assert [row["round"] for row in _rows(folder)] == [0, 1]


_SWEEP = ["--rounds=60", "--eval_every=4", "--vary=server=cc_fedsgd,cc_fedams seed=0,1,2"]
_TWO = ["--devices=2"]


def _trials(folder):
    found = {}
    for path in sorted((folder / "trials").glob("*.json")):
        one = json.loads(path.read_text())
        one["rows"] = without_clocks(one["rows"])
        found[path.name] = {**one, "config": None}
    return found


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep on two devices that nobody disturbs, and its compiled programs."""
    folder = tmp_path_factory.mktemp("swept")
    code, out = _finish(_start("sweep", folder / "whole", folder / "cache", *_SWEEP, *_TWO))
    assert code == 0, out
    return folder / "whole", folder / "cache"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_sweep_goes_on_with_the_trials_under_way(swept, tmp_path, number):
    """Stopped on two devices within a group, it goes on on one; each trial is the same."""
    undisturbed, cache = swept
    folder, two, often = tmp_path / "sweep", _TWO, ["--checkpoint_every=3"]
    process = _start("sweep", folder, cache, *_SWEEP, *two, *often)
    under = folder / "underway" / "server=cc_fedsgd,seed=2"
    assert _wait_for(lambda: _newest(under) >= 6, process)
    process.send_signal(number)
    code, out = _finish(process)
    assert code == (5 if number == signal.SIGTERM else -9), out
    before = _trials(folder)
    assert len(before) == 2
    begun = _newest(under)
    assert 6 <= begun < 60
    code, out = _finish(_start("sweep", folder, cache, *_SWEEP, *often))
    assert code == 0, out
    assert "6 trials, 2 of them done before, 1 under way" in out
    assert not (folder / "underway").exists()
    after, whole = _trials(folder), _trials(undisturbed)
    assert {name: after[name] for name in before} == before
    assert after.keys() == whole.keys()
    for name in whole:
        for ours, theirs in zip(after[name]["rows"], whole[name]["rows"], strict=True):
            assert ours.keys() == theirs.keys()
            for column, value in theirs.items():
                near = isinstance(value, float)
                assert ours[column] == (pytest.approx(value, rel=1e-5, abs=1e-6) if near else value)
