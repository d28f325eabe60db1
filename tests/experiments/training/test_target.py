"""--target: a run and a trial end where the score is reached, and say what it took."""

import csv
import json

import pytest
from refusal import ended
from small_runs import BASE, SMALL, contents, line, rows_of, without_clocks

from experiments import sweep, table, train
from experiments.sweeps import results

LONG = ["--rounds=12", "--eval_every=2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, quickly_compiled):
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.figures.curves.draw_curves", lambda *args: None)
        assert train.main(line(*LONG, f"--out_dir={folder}")) == 0
    return rows_of(folder)


def least(rows, first):
    """The test accuracy of a row, and the first row that has as much."""
    value = rows[first]["test_accuracy"]
    return value, next(k for k, row in enumerate(rows) if row["test_accuracy"] >= value)


@pytest.mark.usefixtures("undrawn")
def test_a_run_ends_at_the_target_and_goes_on_to_a_higher_one(whole, tmp_path, capsys):
    value, stop = least(whole, 3)
    words = [*LONG, f"--target=accuracy>={value!r}", f"--out_dir={tmp_path / 'a'}"]
    out = ended(0, capsys, train.main, *line(*words)).out
    assert without_clocks(rows_of(tmp_path / "a")) == without_clocks(whole[: stop + 1])
    last = whole[stop]
    sent = f"{last['client_updates']} updates, {last['bytes_sent'] / 1e6:.4g} MB sent"
    assert f"target    accuracy>={value!r} after {last['round']} rounds, {sent}, " in out
    assert "stopped" not in out
    before = contents(tmp_path / "a" / "checkpoints")
    ended(0, capsys, train.main, *line(*words, "--resume"))
    assert contents(tmp_path / "a" / "checkpoints") == before
    words[-2] = "--target=loss<=0"
    out = ended(0, capsys, train.main, *line(*words, "--resume")).out
    assert without_clocks(rows_of(tmp_path / "a")) == without_clocks(whole)
    assert "target    loss<=0: not reached" in out


@pytest.mark.usefixtures("undrawn", "quickly_compiled")
def test_a_trial_ends_at_the_target_and_the_others_go_on(tmp_path, capsys):
    """Rates of which the first learns nothing."""
    target = "--target=accuracy>=0.3"
    words = [*SMALL, *LONG, "--devices=1", "--compilation_cache=off", target]
    vary = "--vary=server_lr=0.000001,0.1"
    ended(0, capsys, sweep.main, "sweep", *words, vary, f"--out_dir={tmp_path / 's'}")
    slow, fast = results.read_all(tmp_path / "s")
    assert slow.status == fast.status == "finished"
    assert slow.rows[-1]["round"] == 12 and max(r["test_accuracy"] for r in slow.rows) < 0.3
    assert fast.rows[-1]["round"] < 12
    shown = ended(0, capsys, table.main, "table", tmp_path / "s", "--format=csv").out
    (head, *lines) = csv.reader(shown.splitlines())
    found = [dict(zip(head, line, strict=True)) for line in lines]
    assert [one["updates to accuracy>=0.3"] for one in found] == [
        "0 of 1",
        f"{fast.rows[-1]['client_updates']:.4g}",
    ]
    own = ended(0, capsys, table.main, "table", tmp_path / "s", "--target=loss<=1e9").out
    assert "| rounds to loss<=1e9 |" in own and "accuracy>=" not in own
    assert [row["test_accuracy"] >= 0.3 for row in fast.rows] == [False] * (len(fast.rows) - 1) + [
        True
    ]


def test_a_table_refuses_a_target_that_is_no_score(refuses, tmp_path):
    config = {"method": "a", "server_lr": 1, "environment": {"devices": 1, "device": "cpu"}}
    row = {"round": 1, "seconds": 1, "samples": 1, "train_loss": 1, "train_accuracy": 1}
    row |= {"test_loss": 1, "test_accuracy": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    message = "target: expected a metric of the task, accuracy, loss, found 'recall'"
    refuses(message, table.main, "table", tmp_path, "--target=recall>=1")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("accuracy", "--target: expected NAME>=NUMBER or NAME<=NUMBER, found 'accuracy'"),
        ("accuracy>=1_0", "--target: expected NAME>=NUMBER or ..., found 'accuracy>=1_0'"),
        ("recall>=1", "--target: expected a metric of the task, accuracy, loss, found 'recall'"),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_work(refuses, tmp_path, target, message):
    folder = tmp_path / "none"
    refuses(message, train.main, "train", *BASE, f"--target={target}", f"--out_dir={folder}")
    assert not folder.exists()
