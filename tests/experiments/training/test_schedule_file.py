"""--schedule_file: a saved schedule is replayed, planned, resumed, or refused."""

import json

import numpy as np
import pytest
from small_runs import SMALL, main, near, rows_of, six, without_clocks

import ccfl_jax as ccfl
from ccfl_jax.runs import metrics
from experiments import sweep, train
from experiments.config import run_flags
from experiments.training import report, run_setup

pytestmark = pytest.mark.usefixtures("undrawn")
_BASE = SMALL[:4]  # a file has its own delays, here with work in steps
_BASE += ["--local_steps=2", "--server_lr=0.1", "--devices=1", "--compilation_cache=off"]
ROUNDS = 12


def line(folder, *args):
    return ["train", *_BASE, "--noprogress", f"--out_dir={folder}", *args]


def run(folder, *args):
    return train.main(line(folder, *args))


def rows(folder):
    return without_clocks(rows_of(folder))


def late(seed=0, rounds=ROUNDS):
    """On a clock, of three slots: a fifth start from any earlier model, the others from x_t."""
    rng = np.random.default_rng([seed, 1])
    drawn = ccfl.random_schedule(seed, rounds, 12, 3, 2, 2)
    any_age = rng.integers(0, np.arange(1, rounds + 1)[:, None], (rounds, 3))
    staleness = np.where(rng.random((rounds, 3)) < 0.2, any_age, 0)
    time = np.cumsum(rng.random(rounds))
    return drawn.replace(staleness=staleness.astype(np.int32), time=time, work_unit="steps")


def wanting_a_lost_model(schedule):
    """The same first six rounds, and a last one that starts from a model which was not kept."""
    staleness = schedule.staleness.copy()
    wanted = np.arange(6, ROUNDS)[:, None] - staleness[6:]  # x_v of each slot
    lost = next(v for v in range(1, 6) if (wanted != v).all())
    staleness[-1, 0] = ROUNDS - 1 - lost
    return schedule.replace(staleness=staleness)


def test_a_replay_is_the_run_bit_for_bit(straight, tmp_path):
    """The run keeps a ring, its replay as few models as the plan needs."""
    saved = ccfl.Schedule.load(straight[0] / metrics.SCHEDULE)
    assert (saved.num_clients, saved.work_unit) == (12, "epochs")  # that it was made for
    assert six(tmp_path / "again", f"--schedule_file={straight[0] / metrics.SCHEDULE}") == 0
    assert rows(tmp_path / "again") == without_clocks(straight[1])


@pytest.fixture
def of_seeds(tmp_path):
    for seed in (0, 1):
        late(seed).save(tmp_path / f"late-{seed}.npz")
    return f"--schedule_file={tmp_path}/late-{{seed}}.npz"


def test_a_replay_has_the_rounds_of_its_seeds_file(tmp_path, of_seeds):
    args = line(tmp_path / "a", "--rounds=4", "--seed=1", of_seeds)
    replayed = run_setup.prepare(run_flags.parse(args)).problem.schedule
    for name in ("client", "staleness", "work", "present"):
        np.testing.assert_array_equal(getattr(replayed, name), getattr(late(1), name)[:4])


@pytest.mark.parametrize(("work", "present", "said"), [
    ([2, 2, 2], [True, True, True], "2 steps"),
    ([3, 1, 2], [True, True, True], "1 to 3 steps"),
    ([2, 4, 0], [False, True, True], "4 steps"),
    ([2, 4, 0], [False, False, True], "0 steps"),
])  # fmt: skip
def test_the_header_says_the_work_of_the_file(tmp_path, work, present, said):
    """Of slots that train; the flags say 1 to 4 steps."""
    path = tmp_path / "late.npz"
    rows = {"work": np.int32(work), "present": np.array(present)}
    late().replace(**{n: np.tile(row, (ROUNDS, 1)) for n, row in rows.items()}).save(path)
    args = line(tmp_path / "a", "--rounds=12", f"--schedule_file={path}")
    header = report.header(run_setup.prepare(run_flags.parse(args)))
    assert f"\nlocal     {said} of SGD, rate" in header


def test_a_planned_run_is_resumed_with_its_file_only(tmp_path, capsys, refuses):
    schedule, path = late(), tmp_path / "late.npz"
    schedule.save(path)
    slots, oldest = schedule.history_slots(), schedule.staleness.max()
    assert slots < oldest
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    args = ["--eval_every=2", f"--schedule_file={path}"]
    assert run(whole, "--rounds=12", *args) == 0
    out, megabytes = capsys.readouterr().out, slots * 650 * 4 / 1e6
    assert f"staleness up to {oldest};" in out
    assert f"650 parameters; history of {slots} models, {megabytes:.2f} MB" in out
    times = [row["virtual_time"] for row in rows(whole)]
    assert times == [0.0, *schedule.time[1::2].tolist()]

    assert run(parts, "--rounds=6", *args) == 0
    before = rows(parts)
    wanting_a_lost_model(schedule).save(path)
    message = "read: expected the history slot of x_..., found ..."
    refuses(message, train.main, *line(parts, "--rounds=12", *args, "--resume"))
    assert rows(parts) == before
    schedule.save(path)
    assert run(parts, "--rounds=12", *args, "--resume") == 0
    assert rows(parts) == rows(whole)


@pytest.mark.slow
def test_a_sweep_takes_the_schedule_of_each_seed(tmp_path, of_seeds):
    """Two seeds whose plans are of different length, in one program."""
    assert late(0).history_slots() != late(1).history_slots()
    args = ["--rounds=12", "--eval_every=6", of_seeds]
    folder, alone = tmp_path / "sweep", tmp_path / "alone"
    assert sweep.main(["sweep", *_BASE, *args, f"--out_dir={folder}", "--vary=seed=0,1"]) == 0
    trials = [json.loads((folder / f"trials/seed={seed}.json").read_text()) for seed in (0, 1)]
    for seed, trial in enumerate(trials):
        times = [row["virtual_time"] for row in trial["rows"]]
        assert times == [0.0, *late(seed).time[[5, 11]].tolist()]
    assert run(alone, *args, "--seed=1") == 0
    assert rows(alone) == near(without_clocks(trials[1]["rows"]), 1e-4)


_OLDEST = late().staleness.max()


@pytest.mark.parametrize(
    ("change", "flag", "message"),
    [
        ({"num_clients": 13}, "--seed=0", "--num_clients: expected 13, as in ..., found 12"),
        ({"num_clients": None}, "--num_clients=4", "--num_clients: expected at least 12...found 4"),
        ({"work_unit": "epochs"}, "--seed=0", "--local_steps: expected --local_epochs, ...steps=2"),
        ({}, "--max_delay=1", f"--max_delay: expected at least {_OLDEST}, ..., found 1"),
        ({}, "--randomness=1", "--local_steps * randomness: expected at least 4, ..., found 2"),
        ({}, "--buffer_size=2", "--buffer_size: expected 3, as in ..., found 2"),
        ({}, "--rounds=13", "--rounds: expected 1 to 12, as in ..., found 13"),
    ],
)
def test_a_schedule_made_for_something_else_is_refused(tmp_path, refuses, change, flag, message):
    late().replace(**change).save(tmp_path / "late.npz")
    file = f"--schedule_file={tmp_path}/late.npz"
    refuses(message, train.main, *line(tmp_path / "run", "--rounds=12", file, flag))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04"])
def test_a_file_that_is_none(tmp_path, capsys, content):
    file = tmp_path / "s.npz"
    if content is not None:
        file.write_bytes(content)
    assert main(f"--schedule_file={file}") == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert ("No such file" if content is None else "expected an npz file, found ") in error
    assert "s.npz" in error
