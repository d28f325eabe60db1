"""Runs that are resumed from their folder, that end early, or that must not be resumed."""

import json
import shutil
from functools import partial

import jax
import numpy as np
import pytest
from small_runs import contents, copied, line, restored, rows_of, six, without_clocks

import ccfl_jax as ccfl
from ccfl_jax.runs import checkpoints, metrics, run_config
from experiments import train

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def folder(straight, tmp_path):
    return copied(straight[0], tmp_path / "a")


def lose(folder, name="6"):
    """As after a kill between the row of the last round and its checkpoint."""
    shutil.rmtree(folder / checkpoints.CHECKPOINTS / name)


def cut_last(folder):
    (newest,) = (folder / checkpoints.CHECKPOINTS / "6").rglob("arrays.npz")
    newest.write_bytes(newest.read_bytes()[:20])


def test_a_run_that_was_killed_goes_on_bit_for_bit(straight, folder, ready, capsys):
    """Round 6 is run and written again. The larger total and the interval may change."""
    lose(folder)
    assert six(folder, "--rounds=7", "--eval_every=3", "--resume") == 0
    rows = rows_of(folder)
    assert [row["round"] for row in rows] == [0, 2, 4, 6, 7]
    assert without_clocks(rows[:4]) == without_clocks(straight[1])
    assert rows[3]["seconds"] > rows[2]["seconds"] == straight[1][2]["seconds"]
    assert [row["compile_seconds"] is None for row in rows] == [False, True, True, False, True]
    assert json.loads((folder / run_config.CONFIG).read_text())["rounds"] == 7
    assert ccfl.Schedule.load(folder / metrics.SCHEDULE).num_rounds == 7
    assert "after 7 rounds" in capsys.readouterr().out
    lose(folder, "7")
    both = [restored(path, ready.progress.states) for path in (folder, straight[0])]
    assert [int(state.round) for state in both] == [6, 6]
    jax.tree.map(np.testing.assert_array_equal, *(state._replace(key=None) for state in both))


OTHERS = ["--method=scaffold", "--local_lr=0.1", "--local_steps=2", "--partition=iid"]


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize("own", [[], OTHERS], ids=["plain", "others"])
def test_a_run_goes_on_from_its_folder_alone(tmp_path, capsys, own):
    """Of flags that are not given the run's own values count, not the defaults."""
    start = [*line(*own)[1:], "--eval_every=2"]
    if own:
        start.remove("--local_epochs=1"), start.remove("--server_lr=0.1")
    whole, folder = tmp_path / "whole", tmp_path / "a"
    assert train.main(["train", *start, "--rounds=6", f"--out_dir={whole}"]) == 0
    assert train.main(["train", *start, "--rounds=4", f"--out_dir={folder}"]) == 0
    now = ["--compilation_cache=off", "--noprogress", f"--out_dir={folder}"]
    assert train.main(["train", "--resume", "--rounds=6", *now]) == 0
    assert without_clocks(rows_of(folder)) == without_clocks(rows_of(whole))
    settings = [json.loads((one / run_config.CONFIG).read_text()) for one in (folder, whole)]
    differing = {name for name in settings[0] if settings[0][name] != settings[1][name]}
    assert differing <= {"out_dir", "resume", "environment"}


def test_settings_that_are_none_of_a_run_are_refused_by_their_file(refuses, folder):
    edited = folder / run_config.CONFIG
    edited.write_text(edited.read_text().replace('"batch_size": 20', '"batch_size": "x"'))
    message = f"{edited}: --batch_size: expected an integer ..., found 'x'..."
    refuses(message, train.main, "train", "--resume", f"--out_dir={folder}")


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_a_run_is_resumed_on_other_devices(straight, tmp_path, first, then):
    """Between an evaluation and the next, with stale models: the same to 1e-6, but for the order
    of sums."""
    folder, often = tmp_path / "moved", "--checkpoint_every=3"
    assert six(folder, "--rounds=3", often, f"--devices={first}") == 0
    assert six(folder, often, f"--devices={then}", "--resume") == 0
    moved = {row["round"]: row for row in rows_of(folder)}
    assert list(moved) == [0, 2, 3, 4, 6]
    for row in straight[1]:
        assert moved[row["round"]]["test_loss"] == pytest.approx(row["test_loss"], abs=1e-6)


@pytest.mark.parametrize(
    ("harm", "args", "says"),
    [
        (lose, ["--data_memory=0.25", "--lanes=3"], "pieces of 1 to 1 rounds"),  # two are left
        (cut_last, [], "warning   {}: the checkpoint of round 6 is not whole ("),
        (partial(lose, name=""), [], "warning   {}: no checkpoint yet, from the start"),
    ],
)
def test_a_run_is_resumed_from_what_is_left(straight, folder, capsys, harm, args, says):
    harm(folder)
    assert six(folder, "--resume", *args) == 0
    assert says.format(folder) in "".join(capsys.readouterr())
    assert without_clocks(rows_of(folder)) == without_clocks(straight[1])


def test_resuming_a_finished_run_changes_no_file(straight, folder, capsys):
    before, accuracy = contents(folder), straight[1][-1]["test_accuracy"]
    assert six(folder, "--resume") == 0
    assert contents(folder) == before
    assert f"test accuracy {accuracy:.4g} after 6 rounds" in capsys.readouterr().out


def plan_another(folder):
    schedule = ccfl.Schedule.load(folder / metrics.SCHEDULE)
    schedule.work[1, 1] += 1
    schedule.save(folder / metrics.SCHEDULE)


def edit_settings(folder):
    """The checkpoint knows what it was made with, whatever config.json says since."""
    config = folder / run_config.CONFIG
    config.write_text(config.read_text().replace('"local_lr": 0.01', '"local_lr": 0.02'))


@pytest.fixture
def refused(folder, refuses):
    """`refused(message, *args)`: the command line is refused, and no file of the run changes."""

    def check(message, *args):
        before, args = contents(folder), ["--eval_every=2", f"--out_dir={folder}", *args]
        refuses(message.format(folder), train.main, *line(*args))
        assert contents(folder) == before

    return check


_SAME = "{}: expected the same settings, except ..., found "


@pytest.mark.parametrize(
    ("edit", "args", "message"),
    [
        (None, ["--alpha=0.3"], _SAME + "alpha 0.5 -> 0.3"),
        (None, ["--seed=1", "--num_clients=13"], _SAME + "num_clients 12 -> 13, seed 0 -> 1"),
        (None, ["--init_seed=0"], _SAME + "init_seed None -> 0"),
        (None, ["--server=cc_fedadam"], _SAME + "server 'cc_fedams' -> 'cc_fedadam'"),
        (None, ["--rounds=5"], "--rounds: expected at least 6, the rounds done..., found 5"),
        (plan_another, [], "{}/schedule.npz: expected the 6 rounds done..., found others"),
        (edit_settings, ["--local_lr=0.02"], "{}: expected the settings of the ..., found others"),
    ],
)
def test_resume_under_another_configuration(folder, refused, edit, args, message):
    if edit:
        edit(folder)
    refused(message, "--rounds=9", "--resume", *args)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_resume_where_there_is_no_run(tmp_path, refuses, name):
    (tmp_path / "empty").mkdir()
    message = f"{tmp_path / name}: expected the folder of an earlier run, found no config.json"
    refuses(message, train.main, *line(f"--out_dir={tmp_path / name}", "--resume"))
    assert not (tmp_path / "missing").exists()


def test_a_run_is_overwritten_only_on_request_and_alone(folder, refused):
    refused("{}: expected a new or an empty folder..., found content")
    assert six(folder, "--rounds=2", "--overwrite") == 0
    assert [row["round"] for row in rows_of(folder)] == [0, 2]
    (folder / "notes.txt").write_text("mine")
    refused("{}: expected only config.json, ..., found notes.txt", "--overwrite")


def test_divergence_ends_the_run_and_is_said(tmp_path, capsys):
    """Weights of 1e38 for 64 pixels: their sum is no float32."""
    folder, args = tmp_path / "a", ["--server_lr=3e38", "--rounds=8"]
    assert six(folder, *args) == 3
    assert "DIVERGED" in capsys.readouterr().out
    *before, last = rows_of(folder)
    assert last["diverged"] and not any(row["diverged"] for row in before)
    assert last["round"] < 8 and last["test_loss"] is None
    before = contents(folder)  # resuming would only repeat it
    assert six(folder, *args, "--resume") == 3
    assert contents(folder) == before


def test_too_many_rejected_uploads_end_a_run(tmp_path, capsys):
    """At a local rate of 3e38 no upload is finite: three a round, the limit passed by round 4."""
    folder, args = tmp_path / "a", ["--local_lr=3e38", "--rounds=8"]
    assert six(folder, *args, "--max_rejected=7") == 3
    told = [line for line in capsys.readouterr().err.splitlines() if "rejected" in line]
    first = f"warning   {folder}: expected finite uploads, found 6 rejected before round 2, of "
    assert len(told) == 1 and told[0].startswith(first), told
    rows = rows_of(folder)
    told = [(row["round"], row["rejected"], row["diverged_at"]) for row in rows]
    assert told == [(0, None, None), (2, 6, None), (4, 6, 4)]
    schedule = ccfl.Schedule.load(folder / metrics.SCHEDULE)
    names, counts = np.unique(schedule.client[2:4], return_counts=True)
    assert rows[2]["rejected_clients"] == dict(zip(map(str, names), map(int, counts), strict=True))
    assert six(folder, *args, "--max_rejected=99", "--resume") == 0
    assert "rejected" not in capsys.readouterr().err
    assert rows_of(folder)[-1]["round"] == 8
