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
from small_runs import SMALL, assert_refused, rows_of, six, without_clocks

from ccfl_jax.io import folder_lock
from ccfl_jax.runs import checkpoints, run_config
from experiments import sweep, train
from experiments.sweeps import runner
from experiments.training import run, signals, train_loop

ROOT = Path(__file__).parents[3]
BASE = [*SMALL, "--server_lr=0.1", "--compilation_cache=off"]
SIX = ["--rounds=6", "--eval_every=2"]
# command -> its own flags, and those with which it is started again.
COMMANDS = {
    "train": (["--devices=1", "--noprogress"], ["--resume"]),
    "sweep": (["--devices=2", "--vary=seed=0,1,2"], []),
}


def call(command, folder, *args):
    main = {"train": train.main, "sweep": sweep.main}[command]
    return main([command, *BASE, *COMMANDS[command][0], f"--out_dir={folder}", *args])


def start(command, folder, *args):
    """The command as a process of its own."""
    args = [*BASE, *COMMANDS[command][0], f"--out_dir={folder}", *args]
    return subprocess.Popen([sys.executable, "-m", f"experiments.{command}", *args], cwd=ROOT)


def result(folder):
    """The rows of each trial and, of a run, the arrays of its last checkpoint."""
    if (folder / "trials").exists():
        trials = {path.name: json.loads(path.read_text()) for path in (folder / "trials").iterdir()}
        return {name: without_clocks(one["rows"]) for name, one in trials.items()}, {}
    (path,) = (folder / checkpoints.CHECKPOINTS / str(newest(folder))).rglob("arrays.npz")
    return {"": without_clocks(rows_of(folder))}, dict(np.load(path))


def newest(folder):
    """The round of the newest checkpoint, -1 without any."""
    names = [path.name for path in Path(folder, checkpoints.CHECKPOINTS).glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


def assert_same(folder, whole, tolerance=0.0):
    def near(row):
        close = {
            n: pytest.approx(v, tolerance, tolerance) for n, v in row.items() if type(v) is float
        }
        return row | close

    (ours, arrays), (theirs, others) = result(folder), result(whole)
    assert ours == {name: [near(row) for row in rows] for name, rows in theirs.items()}
    assert arrays.keys() == others.keys()
    for name in others:
        np.testing.assert_allclose(arrays[name], others[name], rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """command -> a folder of its run or sweep of six rounds."""
    base = tmp_path_factory.mktemp("uninterrupted")
    assert [call(command, base / command, *SIX) for command in COMMANDS] == [0, 0]
    return {command: base / command for command in COMMANDS}


def signalled(number, calls):
    """`on_signals`, in which the process gets the signal before a stop was asked for so often."""

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

    return on_signals


@pytest.mark.parametrize(
    ("command", "number", "calls"),
    [  # asked before each round and after each second one: round 4 is not begun
        ("train", signal.SIGTERM, 4),
        ("train", signal.SIGINT, 4),
        ("sweep", signal.SIGINT, 9 + 4),  # of the third trial; two are trained together before
        pytest.param("sweep --devices=1", signal.SIGTERM, 9 + 4, marks=pytest.mark.slow),
    ],
)
def test_a_command_that_is_stopped_and_resumed_gives_the_uninterrupted_result(
    uninterrupted, tmp_path, monkeypatch, capfd, command, number, calls
):
    folder, rare = tmp_path / "stopped", "--checkpoint_every=100"
    command, *more = command.split()  # on fewer devices when it is resumed
    monkeypatch.setattr(train_loop, "PIECE", 1)  # rounds
    with monkeypatch.context() as patch:
        for module in (run, runner):
            patch.setattr(module, "on_signals", signalled(number, calls))
        assert call(command, folder, *SIX, rare) == 5
    said = capfd.readouterr()
    assert f"{number.name}: stops after this piece of rounds; once more ends at once" in said.err
    assert "stopped   " in said.out and not (folder / "lock").exists()
    place = folder if command == "train" else folder / "underway" / "seed=2"
    assert newest(place) == 3 and [row["round"] for row in rows_of(place)] == [0, 2]
    before = {path: path.read_bytes() for path in folder.glob("trials/*")}
    assert call(command, folder, *SIX, rare, *COMMANDS[command][1], *more) == 0
    assert_same(folder, uninterrupted[command])
    assert {path: path.read_bytes() for path in before} == before
    if command == "sweep":
        assert "3 trials, 2 of them done before, 1 unfinished" in capfd.readouterr().out
        assert len(before) == 2 and not place.parent.exists()


def test_a_second_signal_ends_at_once():
    code = (
        "import os, signal, time\n"
        "from experiments.training.signals import on_signals\n"
        "with on_signals():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == "\n"
        assert "SIGTERM: stops after this piece" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_full_disk_ends_a_run_in_a_line_and_it_is_resumed_later(tmp_path, capfd):
    """A limit on the size of files stands for a full disk: checkpoints fit, but not all rows."""
    whole, folder = tmp_path / "whole", tmp_path / "full"
    args = ["--rounds=80", "--eval_every=1", "--checkpoint_every=10"]
    assert call("train", whole, *args) == 0
    largest = max(p.stat().st_size for p in (whole / "checkpoints").rglob("*") if p.is_file())
    rows = (whole / "metrics.jsonl").stat().st_size
    room, before = (largest + rows) // 2, resource.getrlimit(resource.RLIMIT_FSIZE)
    assert largest < room < rows
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        assert call("train", folder, *args) == 4
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capfd.readouterr().err.splitlines()[-1].startswith("train: ")
    kept = without_clocks(rows_of(folder))
    assert kept == without_clocks(rows_of(whole))[: len(kept)] and 2 < len(kept) < 81
    assert call("train", folder, *args, "--resume") == 0
    assert_same(folder, whole)


def test_two_processes_cannot_write_one_run(straight, capfd):
    lock = folder_lock.lock(straight[0])
    codes = [six(straight[0], how) for how in ("--resume", "--overwrite")]
    lock.release()
    owner = f"expected one process at a time, found in use by process {os.getpid()} on "
    assert codes == [2, 2] and capfd.readouterr().err.count(f"{straight[0]}: {owner}") == 2
    assert rows_of(straight[0]) == straight[1]


def killed(process, holds, moment=math.inf):
    """Kills the process once `holds()`, or at that moment; whether it had not ended by then."""
    while process.poll() is None and not holds() and time.monotonic() < moment:
        time.sleep(0.002)
    process.kill()
    return process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_moment_ends_as_the_unbroken_one(tmp_path, capfd, kills):
    """Killed while it starts, computes and saves; every start resumes from the last checkpoint."""
    whole, folder, draw, done = tmp_path / "whole", tmp_path / "run", random.Random(kills), []
    args = [f"--rounds={60 * kills}", "--eval_every=3"]
    for k in range(kills):
        how = "--resume" if (folder / run_config.CONFIG).exists() else "--overwrite"
        process = start("train", folder, *args, "--checkpoint_every=1", how)
        target = newest(folder) + draw.randint(1, 20)
        moment = time.monotonic() + (draw.uniform(0.5, 4) if k % 4 == 3 else 300)  # it starts
        assert killed(process, lambda: newest(folder) >= target, moment)  # noqa: B023
        done.append(newest(folder))
    assert done == sorted(done) and done[-1] > 0  # nothing that was saved is ever lost
    assert (folder / "lock").exists()
    assert call("train", folder, *args) == 2
    expected = f"train: {folder}: expected a new or an empty folder"
    assert_refused(capfd.readouterr().err, expected, "content")
    assert call("train", folder, *args, "--resume") == 0
    assert f"process {process.pid} on " in capfd.readouterr().err  # ended without releasing it
    assert call("train", whole, *args) == 0
    assert_same(folder, whole, 1e-4)


@pytest.mark.slow
def test_a_killed_sweep_is_resumed_with_its_unfinished_trials(tmp_path, capfd):
    whole, folder = tmp_path / "whole", tmp_path / "sweep"
    args = ["--rounds=60", "--eval_every=4", "--checkpoint_every=3"]
    place = folder / "underway" / "seed=2"
    assert killed(start("sweep", folder, *args), lambda: newest(place) >= 6)
    assert 6 <= newest(place) < 60
    assert call("sweep", folder, *args) == 0
    assert "3 trials, 2 of them done before, 1 unfinished" in capfd.readouterr().out
    assert call("sweep", whole, *args) == 0
    assert_same(folder, whole, 1e-4)
