"""experiments/table.py: a table of run folders."""

import json

import pytest

from ccfl_jax import record
from experiments import table


def make_run(folder, diverged=False, rounds=20):
    folder.mkdir()
    config = {
        "server": "cc_fedams",
        "server_lr": 0.01,
        "environment": {"devices": 2, "device": "cpu"},
    }
    (folder / record.CONFIG).write_text(json.dumps(config))
    row = {
        "round": rounds,
        "seconds": 4.0,
        "samples": 1000,
        "test_accuracy": None if diverged else 0.75,
        "diverged": diverged,
    }
    record.append_row(folder, row)
    return str(folder)


def test_a_row_a_run(tmp_path, capsys):
    good, bad = make_run(tmp_path / "a"), make_run(tmp_path / "b", diverged=True)
    assert table.main([good, bad]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| cc_fedams | 0.01 | 20 | 0.750 | 5.00 | 250 | 2 x cpu |"
    assert "diverged" in lines[3] and len(lines) == 4


@pytest.mark.parametrize("rounds", [None, 0])
def test_a_folder_without_a_run_is_named(tmp_path, capsys, rounds):
    folder = tmp_path / "none"
    if rounds is not None:
        make_run(folder, rounds=rounds)
    assert table.main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert "none" in error and len(error.splitlines()) == 1
