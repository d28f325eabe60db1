"""Faults that people reported for other tools (see the README): runs, sweeps and clocks."""

import io
import shutil
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import points_task
from refusal import refused
from small_runs import contents, line, main

import ccfl_jax as ccfl
from ccfl_jax import clock, speed
from ccfl_jax.runs import checkpoints, train_loop
from experiments import sweep
from experiments.config import run_flags, sweep_flags
from experiments.sweeps import results

pytestmark = pytest.mark.usefixtures("quickly_compiled", "undrawn")
KEY = jax.random.key(0)


def kept_after(folder, *scores, keep=1):
    """Saves a checkpoint of each score, from round 1 on; the rounds that are still there."""
    state = ccfl.init_state(points_task(), ccfl.cc_fedavg(), KEY)
    for start, part in scores:
        own = checkpoints.open_checkpoints(folder, keep)
        for number, score in enumerate(part, start=start):
            checkpoints.save(own, state._replace(round=jnp.int32(number)), None, {}, score)
        checkpoints.close(own)
    own = checkpoints.open_checkpoints(folder, keep)
    found = sorted(own.all_steps())
    checkpoints.close(own)
    return found


def test_of_01_the_best_checkpoint_survives_a_resume(tmp_path):
    """Scores .1 .9 .3 .2, then in a new process .4: the best is round 2, the newest round 5."""
    assert kept_after(tmp_path, (1, (0.1, 0.9, 0.3, 0.2)), (5, (0.4,))) == [2, 5]


def _sweep(folder, *args):
    """The command line of a sweep on the digits."""
    return ["sweep", *(w for w in line(*args)[1:] if "server_lr" not in w), f"--out_dir={folder}"]


def _recorded(command, score):
    """Writes records of all its trials, finished after their rounds with this training score."""
    given = sweep_flags.parse_sweep(command)
    for trial in given.trials.values():
        last = {"round": trial.config.rounds, "train_accuracy": score, "test_accuracy": 0.5}
        results.write(given.out_dir, results.made(trial, [{**last, "diverged": False}]))


def test_of_04_a_finished_trial_without_a_training_score_is_called_that(tmp_path, capsys):
    """As of a recall without any tag."""
    command = [*_sweep(tmp_path, "--rounds=1"), "--vary=server_lr=0.1"]
    _recorded(command, None)
    assert sweep.main(command) == 0
    assert "no finished trial has a score to choose it by" in capsys.readouterr().out


def _idx(folder):
    """Tiny Fashion-MNIST files."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part, rows in (("train", 60), ("t10k", 20)):
        y = (np.arange(rows) % 10).astype(np.uint8)
        x = rng.integers(0, 256, (rows, 28, 28)).astype(np.uint8)
        for name, a in (("images-idx3", x), ("labels-idx1", y)):
            head = bytes([0, 0, 8, a.ndim]) + struct.pack(">" + "I" * a.ndim, *a.shape)
            (folder / f"{part}-{name}-ubyte").write_bytes(head + a.tobytes())
    return folder


@pytest.mark.parametrize("moved", ["same", "slash", "other"])
def test_of_07_a_run_goes_on_where_its_data_have_moved(moved, tmp_path, monkeypatch):
    """The same bytes under another path are the same data."""
    monkeypatch.chdir(tmp_path)
    _idx(tmp_path / "data")
    flags = ["--dataset=fashion_mnist", "--num_clients=5", "--partition=iid", "--out_dir=run"]
    assert main(*flags, "--rounds=1", "--data_dir=data") == 0
    if moved == "other":
        shutil.move("data", "elsewhere")
    where = {"same": "data", "slash": "data/", "other": "elsewhere"}[moved]
    assert main(*flags, "--rounds=2", f"--data_dir={where}", "--resume") == 0


@pytest.mark.parametrize(
    "text", ['--out_dir="runs/a"', "--out_dir=runs/a  # mine", "--out_dir=runs/a --seed=3"]
)
def test_of_08_a_line_of_a_flag_file_is_one_flag_and_its_value(text, tmp_path):
    """Quotes, a comment, a second flag in a line: none becomes a part of a path."""
    file = tmp_path / "a.flags"
    file.write_text(f"# a comment\n--seed=1\n{text}\n")
    message = f"--flagfile: expected a flag a line, ..., found {text!r}"
    refused(message, run_flags.parse, line(f"--flagfile={file}"))


def test_of_12_a_folder_has_the_trials_of_one_sweep(tmp_path, capsys):
    """Table and figure would choose among the trials of both. The grid may grow."""
    _recorded([*_sweep(tmp_path, "--rounds=1"), "--vary=server_lr=0.1"], 0.9)
    other = [*_sweep(tmp_path, "--rounds=2", "--local_epochs=2"), "--vary=server_lr=0.3"]
    before = contents(tmp_path)
    assert sweep.main(other) == 2
    message = "server_lr=0.1.json: expected the same settings"
    assert message in capsys.readouterr().err and contents(tmp_path) == before
    more = [*_sweep(tmp_path, "--rounds=1"), "--vary=server_lr=0.1,0.3"]
    _recorded(more, 0.9)
    assert sweep.main(more) == 0


def test_of_18_the_newest_checkpoint_is_kept_where_scores_fall(tmp_path):
    """Scores 5, 4, 3, 2: the best is the first, and the newest two are there to go on from."""
    assert kept_after(tmp_path, (1, (5.0, 4.0, 3.0, 2.0)), keep=2) == [1, 3, 4]


def test_of_18_a_first_score_that_is_none_hinders_no_later_one(tmp_path):
    """None (not finite), .2, .5, .1: the best is round 3."""
    assert kept_after(tmp_path, (1, (None, 0.2, 0.5, 0.1))) == [3, 4]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_of_19_a_clock_of_equal_seconds_is_a_synchronous_run(seconds):
    """48 of 50 at a time, all as fast, even in no time at all: no wait, no staleness."""
    devices = speed.Devices(*(np.full(50, s) for s in (seconds, 0.0, 0.0)), None, None)
    server = clock.Server(buffer_size=48, concurrency=48)
    always = ccfl.availability.always(50)
    work = clock.Work(local_work=1, randomness=1)
    schedule, _ = ccfl.clock_schedule(0, 5, devices, always, server, work)
    assert schedule.present.all() and schedule.staleness.max() == 0
    np.testing.assert_allclose(schedule.time, seconds * np.arange(1, 6))


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_of_20_the_bar_of_a_resumed_run_counts_its_own_rounds(monkeypatch):
    """900 of 1000 done before, 10 in a second: 10 a second and 9 s to go, not 910 a second."""
    monkeypatch.setattr("sys.stderr", _Terminal())
    bar = train_loop.progress_bar(1000, 900)
    bar.update(10)
    now = {"elapsed": 1.0, "rate": None, "bar_format": "{n}/{total} <{remaining} {rate_noinv_fmt}"}
    assert bar.format_meter(**bar.format_dict | now) == "910/1000 <00:09 10.00 rounds/s"
    bar.close()
