"""Runs and sweeps that are stopped, killed or left without room end as the uninterrupted ones."""

import contextlib
import itertools
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_runs import ROOT, SMALL, line, near, rows_of, six, start, without_clocks

from ccfl_jax.io import folder_lock
from ccfl_jax.runs import checkpoints, run_config, train_loop
from experiments import sweep, train
from experiments.sweeps import runner
from experiments.training import run, signals

pytestmark = pytest.mark.usefixtures("undrawn")


def newest(folder):
    """The round of the newest checkpoint, -1 without any."""
    names = [path.name for path in Path(folder, checkpoints.CHECKPOINTS).glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


def last_arrays(folder):
    (path,) = (folder / checkpoints.CHECKPOINTS / str(newest(folder))).rglob("arrays.npz")
    return dict(np.load(path))


def assert_same(folder, whole, tolerance=0.0):
    ours, theirs = (without_clocks(rows_of(path)) for path in (folder, whole))
    assert ours == near(theirs, tolerance)
    ours, theirs = last_arrays(folder), last_arrays(whole)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=tolerance, atol=tolerance)


@pytest.fixture
def stop(monkeypatch, capfd):
    """`stop(main, folder, number, calls)`: the command gets the signal before a stop was asked for
    so often, and ends before the next round; asked before each round and each evaluation."""

    def stopped(main, folder, number, calls):
        @contextlib.contextmanager
        def on_signals():
            with signals.on_signals() as stop_requested:
                count = itertools.count()

                def asked():
                    if next(count) == calls:
                        os.kill(os.getpid(), number)
                        while not stop_requested():
                            time.sleep(0.01)
                    return stop_requested()

                yield asked

        with monkeypatch.context() as patch:
            for module in (run, runner):
                patch.setattr(module, "on_signals", on_signals)
            assert main(folder) == 5
        said = capfd.readouterr()
        assert f"{number.name}: stops after this piece of rounds; once more ends at" in said.err
        assert "stopped   " in said.out and not (folder / "lock").exists()

    monkeypatch.setattr(train_loop, "PIECE", 1)  # rounds
    return stopped


def rarely(folder, *args):
    return six(folder, "--checkpoint_every=100", *args)


def test_a_run_that_is_stopped_and_resumed_is_the_uninterrupted_one(straight, stop, tmp_path):
    folder = tmp_path / "stopped"
    stop(rarely, folder, signal.SIGTERM, 4)
    assert newest(folder) == 3 and [row["round"] for row in rows_of(folder)] == [0, 2]
    assert rarely(folder, "--resume") == 0
    assert_same(folder, straight[0])


@pytest.mark.parametrize("devices", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_sweep_that_is_stopped_goes_on_with_its_unfinished_trial(stop, tmp_path, capfd, devices):
    """Two seeds are trained together before the third, which is resumed on so many devices."""
    whole, folder = tmp_path / "whole", tmp_path / "stopped"
    base = ["sweep", *SMALL, "--server_lr=0.1", "--rounds=6", "--eval_every=2"]
    base += ["--checkpoint_every=100", "--compilation_cache=off", "--vary=seed=0,1,2"]

    def swept(folder, devices=2):
        return sweep.main([*base, f"--devices={devices}", f"--out_dir={folder}"])

    def done(folder):
        return {path.name: path.read_bytes() for path in folder.glob("trials/*")}

    def results(folder):
        return {name: without_clocks(json.loads(t)["rows"]) for name, t in done(folder).items()}

    stop(swept, folder, signal.SIGINT, 9 + 4)
    place, before = folder / "underway" / "seed=2", done(folder)
    assert newest(place) == 3 and [row["round"] for row in rows_of(place)] == [0, 2]
    assert swept(folder, devices) == 0 == swept(whole)
    assert "3 trials, 2 of them done before, 1 unfinished" in capfd.readouterr().out
    assert len(before) == 2 and before.items() < done(folder).items()
    assert results(folder) == results(whole) and not place.parent.exists()


def test_a_second_signal_ends_at_once():
    code = (
        "import os, signal, time\n"
        "from experiments.training.signals import on_signals\n"
        "with on_signals():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
    )
    pipes = {"cwd": ROOT, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stderr.readline() == "\n"
        assert "SIGTERM: stops after this piece" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_full_disk_ends_a_run_in_a_line_and_it_is_resumed_later(tmp_path, capfd):
    """A limit on the size of files stands for a full disk: checkpoints fit, but not all rows."""
    whole, folder = tmp_path / "whole", tmp_path / "full"
    args = ["--rounds=80", "--eval_every=1", "--checkpoint_every=10"]
    assert six(whole, *args) == 0
    largest = max(p.stat().st_size for p in (whole / "checkpoints").rglob("*") if p.is_file())
    rows = (whole / "metrics.jsonl").stat().st_size
    room, before = (largest + rows) // 2, resource.getrlimit(resource.RLIMIT_FSIZE)
    assert largest < room < rows
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        assert six(folder, *args) == 4
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capfd.readouterr().err.splitlines()[-1].startswith("train: ")
    kept = without_clocks(rows_of(folder))
    assert kept == without_clocks(rows_of(whole))[: len(kept)] and 2 < len(kept) < 81
    assert six(folder, *args, "--resume") == 0
    assert_same(folder, whole)


@pytest.mark.parametrize("how", ["--resume", "--overwrite"])
def test_two_processes_cannot_write_one_run(straight, refuses, how):
    lock, owner = folder_lock.lock(straight[0]), f"process {os.getpid()} on ..."
    message = f"{straight[0]}: expected one process at a time, found in use by {owner}"
    refuses(message, train.main, *line("--rounds=6", f"--out_dir={straight[0]}", how))
    lock.release()
    assert rows_of(straight[0]) == straight[1]


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_moment_ends_as_the_unbroken_one(tmp_path, capfd, kills):
    """Killed while it starts, computes and saves; every start resumes from the last checkpoint."""
    whole, folder, draw = tmp_path / "whole", tmp_path / "run", random.Random(kills)
    done, killed = [], []
    args = [f"--rounds={30 * kills}", "--eval_every=3", "--checkpoint_every=1"]
    for k in range(kills):
        how = "--resume" if (folder / run_config.CONFIG).exists() else "--overwrite"
        process = start(*args, f"--out_dir={folder}", how)
        target = newest(folder) + draw.randint(1, 20)
        moment = time.monotonic() + (draw.uniform(0.5, 4) if k % 4 == 3 else math.inf)  # it starts
        while process.poll() is None and newest(folder) < target and time.monotonic() < moment:
            time.sleep(0.002)
        process.kill()
        process.wait(60)
        killed.append(f"process {process.pid} on ")
        done.append(newest(folder))
    assert done == sorted(done) and done[-1] > 0  # nothing that was saved is ever lost
    assert (folder / "lock").exists()
    assert six(folder, *args) == 2
    assert capfd.readouterr().err.endswith(", found content\n")
    assert six(folder, *args, "--resume") == 0
    error = capfd.readouterr().err  # of the last one that had the lock
    assert any(process in error for process in killed)
    assert six(whole, *args[:2]) == 0
    assert_same(folder, whole, 1e-4)
