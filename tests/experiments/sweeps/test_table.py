"""experiments/table.py: a table of run folders."""

import json

import pytest

from ccfl_jax.runs import metrics, run_config
from experiments import table


def make_run(folder, diverged=False, rounds=20):
    folder.mkdir()
    config = {
        "server": "cc_fedams",
        "server_lr": 0.01,
        "environment": {"devices": 2, "device": "cpu"},
    }
    (folder / run_config.CONFIG).write_text(json.dumps(config))
    row = {
        "round": rounds,
        "seconds": 4.0,
        "samples": 1000,
        "train_accuracy": None,
        "test_accuracy": None if diverged else 0.75,
        "diverged": diverged,
    }
    metrics.append_rows(folder, [row])
    return str(folder)


def test_a_row_a_run(tmp_path, capsys):
    good, bad = make_run(tmp_path / "a"), make_run(tmp_path / "b", diverged=True)
    assert table.main(["table", good, bad]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| cc_fedams | 0.01 | 20 | 0.750 | 5.00 | 250 | 2 x cpu |"
    assert "diverged" in lines[3] and len(lines) == 4


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (run_config.CONFIG, "{", "config.json: not readable as JSON"),
        (run_config.CONFIG, "[]", "config.json: found no settings of a run (TypeError"),
        (
            run_config.CONFIG,
            '{"server": "a"}',
            "found no settings of a run (KeyError('environment')",
        ),
        (run_config.CONFIG, None, "config.json"),
        (metrics.METRICS, "", "metrics.jsonl: found in row 0 no 'round' as it should be"),
        (metrics.METRICS, '{"round": 1}\n', "metrics.jsonl: found in row 0 no 'seconds' as it"),
        (metrics.METRICS, None, "metrics.jsonl"),
    ],
)
def test_a_damaged_run_is_refused_by_its_file(tmp_path, capsys, file, content, message):
    folder = make_run(tmp_path / "a")
    (tmp_path / "a" / file).unlink()
    if content is not None:
        (tmp_path / "a" / file).write_text(content)
    assert table.main(["table", folder]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("rounds", [None, 0])
def test_a_folder_without_a_run_is_named(tmp_path, capsys, rounds):
    folder = tmp_path / "none"
    if rounds is not None:
        make_run(folder, rounds=rounds)
    assert table.main(["table", str(folder)]) == 2
    error = capsys.readouterr().err
    assert "none" in error and len(error.splitlines()) == 1
