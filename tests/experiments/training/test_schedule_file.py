"""--schedule_file: a saved schedule is replayed, planned, gone on with, or refused."""

import json

import jax
import numpy as np
import pytest
from small_runs import config_of, main, without_clocks

import ccfl_jax as ccfl
from ccfl_jax.runs import metrics
from experiments import sweep, train
from experiments.config import run_flags
from experiments.training import run_setup

_BASE = [
    "--dataset=digits",
    "--model=logistic",
    "--num_clients=12",
    "--buffer_size=3",
    "--local_steps=2",
    "--server_lr=0.1",
    "--devices=1",
    "--compilation_cache=off",
]


def run(folder, *args):
    return train.main(["train", *_BASE, "--noprogress", f"--out_dir={folder}", *args])


def rows(folder):
    return without_clocks(metrics.read_rows(folder))


def late(seed=0, rounds=12):
    """On a clock, of three slots: a fifth start from any earlier model, the others from x_t."""
    rng = np.random.default_rng([seed, 1])
    drawn = ccfl.random_schedule(seed, rounds, 12, 3, 2, 2)
    any_age = rng.integers(0, np.arange(1, rounds + 1)[:, None], (rounds, 3))
    staleness = np.where(rng.random((rounds, 3)) < 0.2, any_age, 0)
    return drawn._replace(
        staleness=staleness.astype(np.int32),
        time=np.cumsum(rng.random(rounds)),
        work_unit="steps",
    )


def test_a_replay_is_the_run_bit_for_bit(tmp_path):
    """The run keeps a ring, its replay as few models as the plan needs; seeds differ elsewhere."""
    assert run(tmp_path / "first", "--rounds=8", "--eval_every=3", "--max_delay=2") == 0
    file = f"--schedule_file={tmp_path}/first/schedule.npz"
    assert run(tmp_path / "again", "--rounds=8", "--eval_every=3", file) == 0
    assert rows(tmp_path / "again") == rows(tmp_path / "first")


def test_the_header_and_the_rows_say_what_the_file_asks_for(tmp_path, capsys):
    schedule = late()
    schedule.save(tmp_path / "late.npz")
    slots, oldest = schedule.history_slots(), schedule.staleness.max()
    assert slots < oldest
    file = f"--schedule_file={tmp_path}/late.npz"
    assert run(tmp_path / "run", "--rounds=12", "--eval_every=5", file) == 0
    out = capsys.readouterr().out
    assert f"staleness up to {oldest};" in out
    megabytes = slots * 650 * 4 / 1e6
    assert f"650 parameters; history of {slots} models, {megabytes:.2f} MB" in out
    times = [row["virtual_time"] for row in rows(tmp_path / "run")]
    assert times == [0.0, *schedule.time[[4, 9, 11]].tolist()]


def test_a_planned_run_goes_on_to_the_end_of_its_file(tmp_path):
    late().save(tmp_path / "late.npz")
    file = f"--schedule_file={tmp_path}/late.npz"
    assert run(tmp_path / "whole", "--rounds=12", "--eval_every=2", file) == 0
    assert run(tmp_path / "parts", "--rounds=6", "--eval_every=2", file) == 0
    assert run(tmp_path / "parts", "--rounds=12", "--eval_every=2", file, "--resume") == 0
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_a_file_with_another_plan_is_refused_before_anything_is_lost(tmp_path, capsys):
    """The same twelve rounds, but a thirteenth that wants a model that was not kept."""
    short, path = late(), tmp_path / "late.npz"
    short.save(path)
    args = ["--eval_every=2", f"--schedule_file={path}"]
    assert run(tmp_path / "run", "--rounds=6", *args) == 0
    before = rows(tmp_path / "run")
    last = ccfl.random_schedule(0, 1, 12, 3, 0, 2)
    longer = [
        np.concatenate([a, b])
        for a, b in zip(jax.tree.leaves(short)[:4], jax.tree.leaves(last), strict=True)
    ]
    wanted = np.arange(12)[:, None] - short.staleness  # x_v of each slot
    gone = next(v for v in range(1, 6) if (wanted[6:] != v).all())
    longer[1][12] = 12 - gone
    time = np.append(short.time, short.time[-1] + 1)
    ccfl.Schedule(*longer, time).save(path)
    assert run(tmp_path / "run", "--rounds=13", *args, "--resume") == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "found" in error and "legal" in error
    assert rows(tmp_path / "run") == before


def test_a_sweep_takes_the_schedule_of_each_seed(tmp_path):
    """Two seeds whose plans are of different length, in one program; both methods see the same."""
    for seed in (0, 1):
        late(seed).save(tmp_path / f"late-{seed}.npz")
    assert late(0).history_slots() != late(1).history_slots()
    file = f"--schedule_file={tmp_path}/late-{{seed}}.npz"
    args = [*_BASE, "--rounds=12", "--eval_every=6", file, f"--out_dir={tmp_path}/sweep"]
    assert sweep.main(["sweep", *args, "--vary=server=cc_fedsgd,cc_fedams seed=0,1"]) == 0
    trials = {
        path.stem: json.loads(path.read_text())["rows"]
        for path in (tmp_path / "sweep/trials").glob("*.json")
    }
    assert len(trials) == 4
    for seed in (0, 1):
        clocks = {
            tuple(row["virtual_time"] for row in found)
            for name, found in trials.items() if f"seed={seed}" in name
        }  # fmt: skip
        assert clocks == {(0.0, *late(seed).time[[5, 11]].tolist())}
    alone = tmp_path / "alone"
    assert run(alone, "--rounds=12", "--eval_every=6", file, "--server=cc_fedams", "--seed=1") == 0
    own = next(found for name, found in trials.items() if "cc_fedams" in name and "seed=1" in name)
    for ours, theirs in zip(rows(alone), own, strict=True):
        for name, value in ours.items():
            near = isinstance(value, float)
            assert theirs[name] == (pytest.approx(value, rel=1e-4, abs=1e-6) if near else value)


@pytest.mark.parametrize(
    ("change", "args", "message"),
    [
        ({"num_clients": 13}, [], "--num_clients: expected 13, as in, found 12"),
        (
            {"work_unit": "epochs"},
            [],
            "--local_steps: expected --local_epochs instead, as in, found 2",
        ),
        ({}, ["--max_delay=1"], "--max_delay: expected at least, found 1"),
        ({}, ["--randomness=1"], "--local_steps * randomness: expected at least, found 2"),
        ({}, ["--buffer_size=2"], "--buffer_size: expected 3, as in, found 2"),
        ({}, ["--rounds=13"], "--rounds: expected 1 to 12, as in, found 13"),
    ],
)
def test_a_schedule_made_for_something_else_is_refused(tmp_path, capsys, change, args, message):
    late()._replace(**change).save(tmp_path / "late.npz")
    file = f"--schedule_file={tmp_path}/late.npz"
    assert run(tmp_path / "run", "--rounds=12", file, *args) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_run_keeps_what_its_schedule_was_made_for(tmp_path):
    asked = [*_BASE, "--rounds=2", f"--out_dir={tmp_path}/run"]
    prepared = run_setup.prepare(run_flags.parse(["train", *asked]))
    run_setup.close(prepared)
    saved = ccfl.Schedule.load(tmp_path / "run" / metrics.SCHEDULE)
    assert (saved.num_clients, saved.work_unit) == (12, "steps")


def test_a_file_replays_a_run(straight, tmp_path):
    file = straight[0] / metrics.SCHEDULE
    args = ["--rounds=4", "--seed=5", f"--schedule_file={file}", f"--out_dir={tmp_path / 'a'}"]
    replayed = run_setup.prepare(config_of(*args)).schedule
    for name in ("client", "staleness", "work", "present"):
        theirs = getattr(ccfl.Schedule.load(file), name)
        np.testing.assert_array_equal(getattr(replayed, name), theirs[:4])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--rounds=7"], "--rounds: expected 1 to 6, as in, found 7"),
        (["--buffer_size=4"], "--buffer_size: expected 3, as in, found 4"),
        (["--max_delay=1"], "--max_delay: expected at least 2, as in, found 1"),
        (["--randomness=1"], "--local_epochs * randomness: expected at least 2, as in, found 1"),
        (["--num_clients=4"], "--num_clients: expected 12, as in, found 4"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path, capsys, args, message):
    schedule = ccfl.random_schedule(0, 6, 12, 3, 2, 1)
    schedule.client[0, 0], schedule.staleness[5, 0], schedule.work[0, 0] = 11, 2, 2
    schedule.save(tmp_path / "s.npz")
    assert main("--rounds=6", f"--schedule_file={tmp_path / 's.npz'}", *args) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"", "not a readable npz"), (b"PK\x03\x04", "not a readable npz")],
)
def test_a_file_that_is_none(tmp_path, capsys, content, message):
    file = tmp_path / "s.npz"
    if content is not None:
        file.write_bytes(content)
    assert main(f"--schedule_file={file}") == 2
    error = capsys.readouterr().err
    assert message in error and "s.npz" in error and len(error.splitlines()) == 1
