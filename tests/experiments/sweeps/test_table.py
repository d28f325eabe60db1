"""experiments/table.py: a table of runs and of sweeps."""

import csv
import json

import numpy as np
import pytest

from ccfl_jax.runs import metrics, run_config
from experiments import table
from experiments.config.sweep_flags import name_of
from experiments.sweeps import results, tables

DEVICE = "c_p{u} & 5% $ # ~"


def row_of(score, seconds=4.0, samples=1000):
    scores = {"train_accuracy": None, "test_accuracy": score, "diverged": score is None}
    return {"round": 20, "seconds": seconds, "samples": samples, **scores}


def make_run(folder, score=0.75, device="cpu"):
    folder.mkdir()
    environment = {"devices": 2, "device": device}
    config = {"server": "cc_fedams", "server_lr": 0.01, "environment": environment}
    (folder / run_config.CONFIG).write_text(json.dumps(config))
    metrics.append_rows(folder, [row_of(score)])
    return str(folder)


def make_sweep(folder, trials):
    """(server_lr, local_lr) -> the row of each seed, or None of one that failed."""
    for (rate, local), rows in trials.items():
        for seed, row in enumerate(rows):
            varied = {"server_lr": str(rate), "local_lr": str(local), "seed": str(seed)}
            config = {"server": "cc_fedsgd", "server_lr": rate}
            end = ("finished", None, config, [row]) if row else ("failed", "", config, [])
            results.write(folder, results.Record(name_of(varied), varied, *end))
    return str(folder)


def cells_of(text, kind):
    """The cells of a table, first of its head."""
    lines = text.splitlines()
    if kind == "csv":
        return list(csv.reader(lines))
    if kind == "markdown":
        assert set(lines.pop(1)) == set("| -")
        return [line[2:-2].split(" | ") for line in lines]
    begin, top, head, middle, *body, bottom, end = lines
    assert begin == f"\\begin{{tabular}}{{{'l' * len(head.split(' & '))}}}"
    assert [top, middle, bottom] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert end == r"\end{tabular}" and all(line.endswith(r" \\") for line in (head, *body))
    return [line.removesuffix(r" \\").split(" & ") for line in (head, *body)]


@pytest.mark.parametrize("kind", ["markdown", "csv", "latex"])
def test_values_of_runs_and_a_sweep_in_every_format(tmp_path, capsys, kind):
    """A score is a mean and its standard error, a speed that of all of the seeds' time; a column
    that a row lacks is empty there."""
    scores = [0.5, 0.8125]
    trials = {
        (0.1, 0.03): (row_of(0.5, seconds=2.0), row_of(0.8125, seconds=5.0, samples=1700)),
        (0.2, 0.03): (row_of(0.5), None),
        (0.2, 0.3): (row_of(0.25), row_of(None)),
    }
    runs = make_run(tmp_path / "a", device=DEVICE), make_run(tmp_path / "b", score=None)
    folders = *runs, make_sweep(tmp_path / "s", trials)
    assert table.main(["table", f"--format={kind}", *folders]) == 0
    score = f"{np.mean(scores):.4f} ± {np.std(scores, ddof=1) / np.sqrt(2):.4f}"
    speed = f"{(20 + 20) / (2 + 5):.2f}", f"{(1000 + 1700) / (2 + 5):.0f}"
    cells = [
        ["method", "server_lr", "local_lr", "rounds", "test score", "best test score", "rounds/s",
         "useful samples/s", "device", "seeds"],
        ["cc_fedams", "0.01", "", "20", "0.7500", "0.7500", "5.00", "250", f"2 x {DEVICE}", ""],
        ["cc_fedams", "0.01", "", "20", "diverged", "", "5.00", "250", "2 x cpu", ""],
        ["cc_fedsgd", "0.1", "0.03", "20", score, score, *speed, "", "2"],
        ["cc_fedsgd", "0.2", "0.03", "", "failed", "", "", "", "", ""],
        ["cc_fedsgd", "0.2", "0.3", "20", "diverged", "", "5.00", "250", "", "2"],
    ]  # fmt: skip
    if kind == "latex":
        cells = [[cell.replace("_", r"\_") for cell in line] for line in cells]
        cells[1][8] = r"2 x c\_p\{u\} \& 5\% \$ \# \textasciitilde{}"
    assert cells_of(capsys.readouterr().out, kind) == cells


def test_runs_are_told_apart_by_the_settings_that_differ(tmp_path, capsys):
    """Of alpha, seed and batch_size the last is the same; a sweep's settings have no seed."""
    own = {"server": "cc_fedams", "server_lr": 0.01, "batch_size": 20}
    for name, more in {"a": {"alpha": 0.1, "seed": 0}, "b": {"alpha": 1.0, "seed": 1}}.items():
        path = tmp_path / name / run_config.CONFIG
        make_run(tmp_path / name)
        path.write_text(json.dumps(json.loads(path.read_text()) | own | more))
    for seed in (0, 1):
        varied = {"alpha": "0.1", "seed": str(seed)}
        config = own | {"alpha": 0.1, "seed": seed}
        record = results.Record(name_of(varied), varied, "finished", None, config, [row_of(0.5)])
        results.write(tmp_path / "s", record)
    assert table.main(["table", "--format=csv", *(str(tmp_path / name) for name in "abs")]) == 0
    head, *rows = cells_of(capsys.readouterr().out, "csv")
    assert head[:5] == ["method", "server_lr", "alpha", "seed", "rounds"]
    assert [row[2:4] for row in rows] == [["0.1", "0"], ["1", "1"], ["0.1", ""]]


def test_what_a_format_reserves_is_escaped():
    assert tables.as_markdown([{"a": "b|c"}]) == "| a |\n| --- |\n| b\\|c |\n"
    assert r"\textbackslash{}\textasciicircum{}1" in tables.as_latex([{"a": r"\^1"}])


_SETTINGS = "{}: expected server, server_lr and environment with devices and device, found no ..."
_ROWS = "{}: expected rows with a rising round and numbers, found row 0 with"
_BEFORE = {"round": 0, "seconds": 4, "samples": 0, "train_a": 0, "test_a": 0}
_MISSING = "[Errno 2] No such file or directory: '{}'"


@pytest.mark.parametrize(("file", "content", "message"), [
    (run_config.CONFIG, "{", "{}: expected JSON, found ..."),
    (run_config.CONFIG, "[]", f"{_SETTINGS} (TypeError(...))"),
    (run_config.CONFIG, '{"server": "a"}', f"{_SETTINGS} (KeyError('environment'))"),
    (run_config.CONFIG, None, _MISSING),
    (metrics.METRICS, "", f"{_ROWS} round None"),
    (metrics.METRICS, '{"round": 1}\n', f"{_ROWS} seconds None"),
    (metrics.METRICS, json.dumps(_BEFORE) + "\n", "{}: expected rounds ... > 0 ..., found 0 and 4"),
    (metrics.METRICS, None, _MISSING),
])  # fmt: skip
def test_a_damaged_run_is_refused_by_its_file(tmp_path, refuses, file, content, message):
    folder, path = make_run(tmp_path / "a"), tmp_path / "a" / file
    path.unlink() if content is None else path.write_text(content)
    refuses(message.format(path), table.main, "table", folder)


def test_a_sweep_without_a_trial_is_refused(tmp_path, refuses):
    (tmp_path / results.TRIALS).mkdir()
    message = f"{tmp_path}: expected at least one finished trial, found none"
    refuses(message, table.main, "table", tmp_path)
