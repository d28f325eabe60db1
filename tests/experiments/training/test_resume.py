"""experiments/train.py: runs that go on later, end early, or must not go on."""

import json
import shutil

import jax
import numpy as np
import pytest
from small_runs import contents, copied, main, restored, rows_of, without_clocks

import ccfl_jax as ccfl
from ccfl_jax.runs import checkpoints, metrics, run_config


def test_a_run_that_was_killed_goes_on_bit_for_bit(straight, ready, tmp_path, capsys):
    # Stopped between the row of round 6 and its checkpoint: round 6 is run and written again. The
    # larger total, the other cadence and the lanes are free to change.
    folder = copied(straight[0], tmp_path / "a")
    shutil.rmtree(folder / checkpoints.CHECKPOINTS / "6")
    args = ["--rounds=7", "--eval_every=3", "--lanes=3", "--resume"]
    assert main(*args, f"--out_dir={folder}") == 0
    rows = rows_of(folder)
    assert [row["round"] for row in rows] == [0, 2, 4, 6, 7]
    assert without_clocks(rows[:4]) == without_clocks(straight[1])
    assert rows[3]["seconds"] > rows[2]["seconds"] == straight[1][2]["seconds"]
    assert [row["compile_seconds"] is None for row in rows] == [False, True, True, False, True]
    assert json.loads((folder / run_config.CONFIG).read_text())["rounds"] == 7
    assert ccfl.Schedule.load(folder / metrics.SCHEDULE).num_rounds == 7
    assert "after 7 rounds" in capsys.readouterr().out
    shutil.rmtree(folder / checkpoints.CHECKPOINTS / "7")
    resumed, whole = (restored(path, ready.progress.states) for path in (folder, straight[0]))
    assert int(resumed.round) == int(whole.round) == 6
    numbers = [jax.tree.leaves(state._replace(key=None)) for state in (resumed, whole)]
    for ours, theirs in zip(*numbers, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("first", "then"), [(4, 1), (1, 4)])
def test_a_run_goes_on_on_other_devices(straight, tmp_path, first, then):
    """Between an evaluation and the next, with stale models: the same to 1e-6, but for the order
    of sums."""
    folder = tmp_path / "moved"
    args = ["--eval_every=2", "--checkpoint_every=3", f"--out_dir={folder}"]
    assert main("--rounds=3", *args, f"--devices={first}") == 0
    assert main("--rounds=6", *args, f"--devices={then}", "--resume") == 0
    moved = {row["round"]: row for row in rows_of(folder)}
    assert list(moved) == [0, 2, 3, 4, 6]
    for row in straight[1]:
        assert moved[row["round"]]["test_loss"] == pytest.approx(row["test_loss"], abs=1e-6)


def test_going_on_from_a_whole_run_to_a_streamed_one(straight, tmp_path, capsys):
    folder = copied(straight[0], tmp_path / "a")
    shutil.rmtree(folder / checkpoints.CHECKPOINTS / "6")
    args = ["--rounds=6", "--eval_every=2", "--resume", f"--out_dir={folder}"]
    assert main(*args, "--data_memory=0.25") == 0
    assert without_clocks(rows_of(folder)) == without_clocks(straight[1])
    assert "pieces of 1 to 1 rounds" in capsys.readouterr().out  # of the two that were left


def test_resuming_a_finished_run_changes_no_file(straight, tmp_path, capsys):
    folder = copied(straight[0], tmp_path / "a")
    before = contents(folder)
    assert main("--rounds=6", "--eval_every=2", "--resume", f"--out_dir={folder}") == 0
    assert contents(folder) == before
    accuracy = straight[1][-1]["test_accuracy"]
    assert f"test accuracy {accuracy:.4g} after 6 rounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--alpha=0.3"], ["alpha 0.5 -> 0.3"]),
        (["--seed=1", "--num_clients=13"], ["num_clients 12 -> 13", "seed 0 -> 1"]),
        (["--server=cc_fedadam"], ["server 'cc_fedams' -> 'cc_fedadam'"]),
        (["--rounds=5"], ["--rounds: expected at least 6, found 5"]),
    ],
)
def test_resume_under_another_configuration(straight, tmp_path, capsys, args, parts):
    folder = copied(straight[0], tmp_path / "a")
    before = contents(folder)
    assert main("--rounds=9", "--resume", f"--out_dir={folder}", *args) == 2
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert all(part in message for part in parts), message
    assert contents(folder) == before


def test_resume_on_another_schedule(straight, tmp_path, capsys):
    folder = copied(straight[0], tmp_path / "a")
    schedule = ccfl.Schedule.load(folder / metrics.SCHEDULE)
    schedule.work[1, 1] += 1
    schedule.save(folder / metrics.SCHEDULE)
    assert main("--rounds=9", "--resume", f"--out_dir={folder}") == 2
    assert "schedule.npz: found another schedule in the 6 rounds done" in capsys.readouterr().err


def test_resume_under_settings_that_were_edited_in_the_record(straight, tmp_path, capsys):
    """The checkpoint knows what it was made with, whatever config.json says since."""
    folder = copied(straight[0], tmp_path / "a")
    config = folder / run_config.CONFIG
    config.write_text(config.read_text().replace('"local_lr": 0.01', '"local_lr": 0.02'))
    args = ["--rounds=9", "--local_lr=0.02", "--resume", f"--out_dir={folder}"]
    assert main(*args) == 2
    error = capsys.readouterr().err
    assert "a: found other settings than the checkpoint of round 6 was made" in error
    assert not (folder / "lock").exists()


def test_going_on_past_a_damaged_checkpoint(straight, tmp_path, capsys):
    folder = copied(straight[0], tmp_path / "a")
    (newest,) = (folder / checkpoints.CHECKPOINTS / "6").rglob("arrays.npz")
    newest.write_bytes(newest.read_bytes()[:20])
    assert main("--rounds=6", "--eval_every=2", "--resume", f"--out_dir={folder}") == 0
    error = capsys.readouterr().err
    assert f"warning   {folder}: the checkpoint of round 6 is not whole (" in error
    assert without_clocks(rows_of(folder)) == without_clocks(straight[1])


def test_going_on_before_the_first_checkpoint(straight, tmp_path, capsys):
    """Killed right after the folder was made, or after its first row: from the start."""
    folder = copied(straight[0], tmp_path / "a")
    shutil.rmtree(folder / checkpoints.CHECKPOINTS)
    assert main("--rounds=6", "--eval_every=2", "--resume", f"--out_dir={folder}") == 0
    assert f"warning   {folder}: no checkpoint yet, from the start" in capsys.readouterr().err
    assert without_clocks(rows_of(folder)) == without_clocks(straight[1])


def test_overwriting_a_run(straight, tmp_path, capsys):
    folder = copied(straight[0], tmp_path / "a")
    assert main("--rounds=1", "--overwrite", f"--out_dir={folder}") == 0
    assert [row["round"] for row in rows_of(folder)] == [0, 1]
    (folder / "notes.txt").write_text("mine")
    before = contents(folder)
    assert main("--rounds=2", "--overwrite", f"--out_dir={folder}") == 2
    assert (
        f"{folder}: expected to overwrite a folder of, found notes.txt" in capsys.readouterr().err
    )
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_resume_where_there_is_no_run(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    assert main("--resume", f"--out_dir={tmp_path / name}") == 2
    assert capsys.readouterr().err == (
        f"train: {tmp_path / name}: expected the folder of an earlier run\n, found no config.json"
    )
    assert not (tmp_path / "missing").exists()


def test_a_folder_in_use_is_refused(straight, capsys):
    before = contents(straight[0])
    assert main(f"--out_dir={straight[0]}") == 2
    assert f"{straight[0]}: found a folder with content" in capsys.readouterr().err
    assert contents(straight[0]) == before


def test_divergence_ends_the_run_and_is_said(tmp_path, capsys):
    # Weights of 1e30 in two layers: their product is no float32.
    folder = tmp_path / "a"
    args = ["--model=mlp", "--server_lr=1e30", "--rounds=8", "--eval_every=2"]
    assert main(*args, f"--out_dir={folder}") == 3
    assert "DIVERGED" in capsys.readouterr().out
    rows = rows_of(folder)
    assert [row["diverged"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert rows[-1]["round"] < 8
    assert rows[-1]["test_loss"] is None
    assert (folder / "curves.png").exists()
    # Going on would only repeat it.
    before = contents(folder)
    assert main(*args, f"--out_dir={folder}", "--resume") == 3
    assert contents(folder) == before


def test_too_many_rejected_uploads_end_a_run(tmp_path, capsys):
    """At a local rate of 1e30 no upload is finite: three a round, the limit passed by round 4."""
    folder = tmp_path / "a"
    args = ["--model=mlp", "--local_lr=1e30", "--rounds=8", "--eval_every=2", "--max_rejected=7"]
    assert main(*args, f"--out_dir={folder}") == 3
    rows = rows_of(folder)
    assert [row["round"] for row in rows] == [0, 2, 4]
    assert [row["rejected"] for row in rows] == [None, 6, 6]
    assert [row["diverged_at"] for row in rows] == [None, None, 4]
    schedule = ccfl.Schedule.load(folder / metrics.SCHEDULE)
    names, counts = np.unique(schedule.client[2:4], return_counts=True)
    assert rows[2]["rejected_clients"] == dict(zip(map(str, names), map(int, counts), strict=True))
    assert "DIVERGED" in capsys.readouterr().out
    # With a higher limit it goes on.
    args[-1] = "--max_rejected=99"
    assert main(*args, f"--out_dir={folder}", "--resume") == 0
    assert rows_of(folder)[-1]["round"] == 8
