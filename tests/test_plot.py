"""experiments/plot.py: lines are means, bands are ranges, gaps stay gaps."""

import json

import numpy as np
import pytest

from ccfl_jax import record
from experiments import plot


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn."""
    drawn, plain = [], plot._figure

    def kept(*arguments):
        drawn.append(plain(*arguments))
        return drawn[-1]

    monkeypatch.setattr(plot, "_figure", kept)
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
            "seconds": seconds * k,
        }
        for k in range(len(test))
    ]


def line(axes, number=0):
    return axes.get_lines()[number].get_xydata()


def test_a_line_is_the_mean_over_seeds_and_the_band_their_range(figures, tmp_path):
    runs = {"a": [rows([0.1, 0.3]), rows([0.3, 0.9])], "b": [rows([0.0, 1.0])]}
    paths = [tmp_path / "x.png", tmp_path / "x.svg"]
    plot.draw_methods(runs, paths, "title", "round")
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


@pytest.mark.parametrize(
    ("x", "across"), [("client_updates", 50), ("samples", 1000), ("seconds", 2.0)]
)
def test_the_horizontal_axis_may_be_another_column(figures, tmp_path, x, across):
    """Seconds differ between runs: 1 and 3 a row, their mean is 2."""
    runs = {"a": [rows([0.1, 0.3]), rows([0.3, 0.9], seconds=3.0)]}
    plot.draw_methods(runs, [tmp_path / "x.png"], "", x)
    assert line(figures[0][1][0])[1, 0] == across


def test_what_is_missing_is_a_gap(figures, tmp_path):
    plot.draw_curves(rows([0.1, None, 0.3], [None, 0.2, 0.4]), tmp_path / "x.png", "")
    score = figures[0][1][0]
    np.testing.assert_array_equal(line(score, 0)[:, 1], [np.nan, 0.2, 0.4])
    np.testing.assert_array_equal(line(score, 1)[:, 1], [0.1, np.nan, 0.3])


def test_a_run_that_ended_early_shortens_its_method(figures, tmp_path):
    runs = {"a": [rows([0.1, 0.3, 0.5]), rows([0.3, 0.5])]}
    plot.draw_methods(runs, [tmp_path / "x.png"], "", "round")
    np.testing.assert_allclose(line(figures[0][1][1]), [[0, 0.2], [10, 0.4]])


def test_sensitivity_is_evenly_spaced_with_the_baseline_as_a_line(figures, tmp_path):
    points = {"a": {0.1: [0.4, 0.6], 0.001: [0.2, 0.2]}, "b": {0.01: [0.9]}}
    plot.draw_sensitivity(points, ("base", [0.3, 0.5]), [tmp_path / "x.svg"], "", "eps", "y")
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
        text = "".join(json.dumps(row) + "\n" for row in rows(scores))
        (tmp_path / name / record.METRICS).write_text(text)
    out = tmp_path / "both.png"
    args = ["plot", str(tmp_path / "a"), str(tmp_path / "b"), "--x=samples", f"--out={out}"]
    assert plot.main(args) == 0
    assert capsys.readouterr().out == f"{out}\n" and out.stat().st_size > 5000
    axes = figures[0][1][1]
    assert [one.get_label() for one in axes.get_lines()] == args[1:3]
    np.testing.assert_allclose(line(axes, 1), [[0, 0.3], [1000, 0.4]])


def test_a_folder_whose_name_begins_a_formula_is_drawn(tmp_path, capsys):
    (tmp_path / "$_$").mkdir()
    text = "".join(json.dumps(row) + "\n" for row in rows([0.1, 0.2]))
    (tmp_path / "$_$" / record.METRICS).write_text(text)
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
        (tmp_path / record.METRICS).write_text(content)
    out = tmp_path / "x.png"
    assert plot.main(["plot", str(tmp_path), "--x=samples", f"--out={out}"]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path) in error and len(error.splitlines()) == 1 and not out.exists()
