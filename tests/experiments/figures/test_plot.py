"""experiments/plot.py: lines are means, bands are ranges, gaps stay gaps."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from ccfl_jax.runs import metrics, run_config
from experiments import plot, table
from experiments.config.plot_flags import AXES
from experiments.config.sweep_flags import name_of
from experiments.figures import curves
from experiments.sweeps import results

RESULTS = Path(__file__).parents[3] / "experiments" / "results"


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn."""
    drawn, plain = [], curves._figure

    def kept(*arguments):
        drawn.append(plain(*arguments))
        return drawn[-1]

    monkeypatch.setattr(curves, "_figure", kept)
    return drawn


def rows(test, train=None, seconds=1.0):
    train = test if train is None else train
    return [
        {
            "round": 10 * k,
            "train_loss": 0.5,
            "train_recall_at_5": train[k],
            "test_loss": 0.5,
            "test_recall_at_5": test[k],
            "client_updates": 50 * k,
            "samples": 1000 * k,
            "bytes_sent": 300 * k,
            "bytes_received": 400 * k,
            "virtual_time": 60.0 * k,
            "seconds": seconds * k,
        }
        for k in range(len(test))
    ]


def write_rows(folder, its):
    (folder / metrics.METRICS).write_text("".join(json.dumps(row) + "\n" for row in its))


def line(axes, number=0):
    return axes.get_lines()[number].get_xydata()


def test_a_line_is_the_mean_over_seeds_and_the_band_their_range(figures, tmp_path):
    runs = {"a": [rows([0.1, 0.3]), rows([0.3, 0.9])], "b": [rows([0.0, 1.0])]}
    paths = [tmp_path / "x.png", tmp_path / "x.svg"]
    curves.draw_methods(runs, paths, "title", "round")
    ((figure, axes),) = figures
    assert [a.get_ylabel() for a in axes] == ["train recall_at_5", "test recall_at_5"]
    np.testing.assert_allclose(line(axes[1]), [[0, 0.2], [10, 0.6]])
    np.testing.assert_allclose(line(axes[1], 1), [[0, 0], [10, 1]])
    (band,) = axes[1].collections  # of a alone: b has one run
    corners = band.get_paths()[0].vertices
    assert {tuple(np.round(corner, 6)) for corner in corners} >= {
        (0, 0.1), (0, 0.3), (10, 0.3), (10, 0.9),
    }  # fmt: skip
    assert figure.get_suptitle() == "title"
    assert all(path.stat().st_size > 5000 for path in paths)


ACROSS = {  # of the second row, and the label
    "round": (10, "round"),
    "client_updates": (50, "client updates"),
    "samples": (1000, "samples processed"),
    "bytes": (300 + 400, "bytes sent and received"),
    "virtual_time": (60.0, "virtual time (s)"),
    "seconds": (2.0, "training time (s)"),  # 1 and 3 in the two runs
}


@pytest.mark.parametrize("x", AXES)
def test_each_horizontal_axis(figures, tmp_path, x):
    runs = {"a": [rows([0.1, 0.3]), rows([0.3, 0.9], seconds=3.0)]}
    curves.draw_methods(runs, [tmp_path / "x.png"], "", x)
    across, label = ACROSS[x]
    for panel in figures[0][1]:
        np.testing.assert_allclose(line(panel)[:, 0], [0, across])
        assert panel.get_xlabel() == label


def test_what_is_missing_is_a_gap(figures, tmp_path):
    curves.draw_curves(rows([0.1, None, 0.3], [None, 0.2, 0.4]), tmp_path / "x.png", "")
    score = figures[0][1][0]
    np.testing.assert_array_equal(line(score, 0)[:, 1], [np.nan, 0.2, 0.4])
    np.testing.assert_array_equal(line(score, 1)[:, 1], [0.1, np.nan, 0.3])


def test_a_run_that_ended_early_shortens_its_method(figures, tmp_path):
    runs = {"a": [rows([0.1, 0.3, 0.5]), rows([0.3, 0.5])]}
    curves.draw_methods(runs, [tmp_path / "x.png"], "", "round")
    np.testing.assert_allclose(line(figures[0][1][1]), [[0, 0.2], [10, 0.4]])


def test_sensitivity_is_evenly_spaced_with_the_baseline_as_a_line(figures, tmp_path):
    points = {"a": {0.1: [0.4, 0.6], 0.001: [0.2, 0.2]}, "b": {0.01: [0.9]}}
    curves.draw_sensitivity(points, ("base", [0.3, 0.5]), [tmp_path / "x.svg"], "", "eps", "y")
    (_, (axes,)) = figures[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.001", "0.01", "0.1"]
    found = {lines.get_label(): lines[0].get_xydata() for lines in axes.containers}
    np.testing.assert_allclose(found["a"], [[0, 0.2], [2, 0.5]])
    np.testing.assert_allclose(found["b"], [[1, 0.9]])
    bars = axes.containers[0][2][0].get_segments()
    np.testing.assert_allclose(bars[1], [[2, 0.4], [2, 0.6]])
    base = next(one for one in axes.get_lines() if one.get_label() == "base")
    np.testing.assert_allclose(base.get_ydata(), 0.4)


def test_run_folders_are_compared(figures, tmp_path, capsys):
    for name, scores in (("a", [0.1, 0.2]), ("b", [0.3, 0.4])):
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name, rows(scores))
    out = tmp_path / "both.png"
    args = ["plot", str(tmp_path / "a"), str(tmp_path / "b"), "--x=samples", f"--out={out}"]
    assert plot.main(args) == 0
    assert capsys.readouterr().out == f"{out}\n" and out.stat().st_size > 5000
    axes = figures[0][1][1]
    assert [one.get_label() for one in axes.get_lines()] == args[1:3]
    np.testing.assert_allclose(line(axes, 1), [[0, 0.3], [1000, 0.4]])


def write_sweep(folder, scores):
    """Trials of both methods at two rates with two seeds; `scores`: of seed 0 in the end."""
    (folder / results.TRIALS).mkdir(parents=True)
    for (server, rate), score in scores.items():
        for seed in (0, 1):
            varied = {"server": server, "server_lr": str(rate), "seed": str(seed)}
            its = rows([0.0, score, score + 0.1 * seed])
            config = {"server": server, "rounds": 20}
            one = results.Record(name_of(varied), varied, "finished", None, config, its)
            results.write(folder, one)


def test_of_a_sweep_the_chosen_settings_are_drawn(figures, tmp_path, capsys):
    """The rate with the higher training score in the last fifth, a mean and a band of two seeds."""
    scores = {("a", 1): 0.2, ("a", 3): 0.5, ("b", 1): 0.4, ("b", 3): 0.3}
    write_sweep(tmp_path / "s", scores)
    args = ["plot", str(tmp_path / "s"), "--x=virtual_time", f"--out={tmp_path / 'x.png'}"]
    assert plot.main(args) == 0
    axes = figures[0][1][1]
    assert [one.get_label() for one in axes.get_lines()] == ["a server_lr=3", "b server_lr=1"]
    np.testing.assert_allclose(line(axes, 0), [[0, 0], [60, 0.5], [120, 0.55]])
    np.testing.assert_allclose(line(axes, 1), [[0, 0], [60, 0.4], [120, 0.45]])
    write_sweep(tmp_path / "t", scores)
    args[2:2] = [str(tmp_path / "t")]
    assert plot.main(args) == 0
    labels = [one.get_label() for one in figures[1][1][1].get_lines()]
    assert labels[2:] == [f"{tmp_path}/t: a server_lr=3", f"{tmp_path}/t: b server_lr=1"]


def test_a_sweep_without_a_finished_trial_is_refused(tmp_path, capsys):
    (tmp_path / results.TRIALS).mkdir()
    assert plot.main(["plot", str(tmp_path)]) == 2
    assert f"{tmp_path}: found no method with a finished trial" in capsys.readouterr().err
    (tmp_path / results.TRIALS / "x.json").write_text('{"name": 3}')
    assert plot.main(["plot", str(tmp_path)]) == 2
    assert "x.json: expected one with its, found no record of a trial" in capsys.readouterr().err


def test_a_folder_whose_name_begins_a_formula_is_drawn(tmp_path, capsys):
    (tmp_path / "$_$").mkdir()
    write_rows(tmp_path / "$_$", rows([0.1, 0.2]))
    assert plot.main(["plot", str(tmp_path / "$_$"), f"--out={tmp_path / 'x.png'}"]) == 0


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "no json\n",
        "3\n",
        '{"round": 0}\n',
        '{"round": 0, "test_accuracy": "a", "train_accuracy": 1, "samples": 0}\n',
        '{"round": 0, "test_accuracy": 1e999, "train_accuracy": 1, "samples": 0}\n',
        '{"round": 0, "test_accuracy": 1, "train_accuracy": 1, "samples": null}\n',
    ],
)
def test_a_folder_without_rows_is_refused(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / metrics.METRICS).write_text(content)
    out = tmp_path / "x.png"
    assert plot.main(["plot", str(tmp_path), "--x=samples", f"--out={out}"]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path) in error and len(error.splitlines()) == 1 and not out.exists()


@pytest.mark.parametrize(
    ("x", "columns"), [("virtual_time", ["virtual_time"]), ("bytes", ["bytes_sent"])]
)
def test_an_axis_that_the_rows_lack_is_refused_by_their_file(tmp_path, capsys, x, columns):
    """None in all rows, as without a clock, or no such columns, as in earlier results."""
    for name, without in (("null", dict.fromkeys(columns)), ("old", {})):
        (tmp_path / name).mkdir()
        its = [{n: v for n, v in row.items() if n not in columns} for row in rows([0.1, 0.2])]
        write_rows(tmp_path / name, [row | without for row in its])
        path, out = tmp_path / name / metrics.METRICS, tmp_path / "x.png"
        assert plot.main(["plot", str(path.parent), f"--x={x}", f"--out={out}"]) == 2
        legal = ", ".join(axis for axis in AXES if axis != x)
        error = capsys.readouterr().err
        assert error == f"plot: {path}: expected --x of {legal}\n, found rows without {x}"
        assert not out.exists()
        assert plot.main(["plot", str(path.parent), f"--out={out}"]) == 0
        out.unlink()
        capsys.readouterr()


def committed(name):
    """The rows of the first trial of a study that was made before there were the new columns."""
    texts = ("trial", "status", "stage", "diverged")
    with open(RESULTS / name / "results.csv") as file:
        every = list(csv.DictReader(file))
    first = [row for row in every if row["trial"] == every[0]["trial"]]
    return [
        {n: json.loads(v) if v else None for n, v in row.items() if n not in texts} for row in first
    ]


@pytest.mark.parametrize("name", ["fig2_fmnist", "table3_stackoverflow"])
def test_committed_results_are_drawn_and_read(tmp_path, figures, capsys, name):
    its = committed(name)
    write_rows(tmp_path, its)
    environment = {"devices": 2, "device": "cpu"}
    config = {"server": "cc_fedavg", "server_lr": 1.0, "environment": environment}
    (tmp_path / run_config.CONFIG).write_text(json.dumps(config))
    for x in ("round", "client_updates", "samples", "seconds"):
        args = ["plot", str(tmp_path), f"--x={x}", f"--out={tmp_path / 'x.png'}"]
        assert plot.main(args) == 0
        np.testing.assert_array_equal(line(figures[-1][1][1])[:, 0], [row[x] for row in its])
    assert plot.main(["plot", str(tmp_path), "--x=bytes", f"--out={tmp_path / 'x.png'}"]) == 2
    assert table.main(["table", str(tmp_path)]) == 0
    assert f"| cc_fedavg | 1 | {its[-1]['round']} | " in capsys.readouterr().out
