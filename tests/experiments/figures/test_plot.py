"""experiments/plot.py: lines are means, bands are ranges, gaps stay gaps."""

import itertools
import json

import numpy as np
import pytest
from plots import line, plotted, rows, write_rows
from refusal import refused

from ccfl_jax.runs import metrics
from experiments import plot
from experiments.config.plot_flags import AXES
from experiments.config.sweep_flags import name_of
from experiments.figures import curves
from experiments.sweeps import results


def test_a_line_is_the_mean_over_seeds_and_the_band_their_range(figures, tmp_path):
    """Up to where the first of them ended."""
    seeds = [rows([0.1, 0.3, 0.5], seconds=1), rows([0.3, 0.9], seconds=3)]
    runs = {"a": seeds, "b": [rows([0, 1])]}
    curves.draw_methods(runs, [tmp_path / "x.png", tmp_path / "x.svg"], "title", "seconds")
    assert len([*tmp_path.iterdir()]) == 2
    ((figure, axes),) = figures
    assert [a.get_ylabel() for a in axes] == ["train recall_at_5", "test recall_at_5"]
    np.testing.assert_allclose(line(axes[1]), [[0, 0.2], [2, 0.6]])
    np.testing.assert_allclose(line(axes[1], 1), [[0, 0], [2, 1]])
    (band,) = axes[1].collections  # of a alone: b has one run
    corners = {tuple(np.round(corner, 6)) for corner in band.get_paths()[0].vertices}
    assert corners >= {(0, 0.1), (0, 0.3), (2, 0.3), (2, 0.9)}
    assert figure.get_suptitle() == "title"


def test_what_is_missing_is_a_gap(figures, tmp_path):
    train, test = [None, 0.2, 0.4], [0.1, None, 0.3]
    curves.draw_curves(rows(test, train), tmp_path / "x.png", "")
    drawn = [line(figures[0][1][0], k)[:, 1] for k in (0, 1)]
    np.testing.assert_array_equal(drawn, np.array([train, test], float))


def test_a_number_between_two_gaps_is_a_dot(figures, tmp_path):
    curves.draw_curves(rows([0.1, None, 0.3, None, 0.4, 0.5]), tmp_path / "x.png", "")
    (_, test) = figures[0][1][0].get_lines()
    assert test.get_markevery() == [0, 2] and test.get_marker() == "o"
    curves.draw_curves(rows([0.1, 0.2]), tmp_path / "x.png", "")
    assert figures[1][1][0].get_lines()[1].get_marker() == "None"


def look(one):
    return one.get_color(), one._dash_pattern, one.get_linewidth()


def test_of_equal_curves_all_are_seen(figures, tmp_path):
    """Each is thinner than those below it; above the first, which is whole, all have gaps."""
    runs = {str(k): [rows([0.1, 0.2])] for k in range(4)}
    curves.draw_methods(runs, [tmp_path / "x.png"], "", "round")
    lines = figures[0][1][0].get_lines()
    widths = [one.get_linewidth() for one in lines]
    assert widths == sorted(widths, reverse=True) and len({*widths}) == 4 and widths[-1] > 1.5
    assert [one.is_dashed() for one in lines] == [False, True, True, True]
    assert len({str(one._dash_pattern) for one in lines}) == 4
    shown = figures[0][0].legends[0].legend_handles
    assert [look(one) for one in shown] == [look(one) for one in lines]


def test_forty_lines_are_forty_looks(figures, tmp_path):
    looks = [curves._look(k, 40) for k in range(40)]
    assert len({(one["color"], one["ls"]) for one in looks}) == 40


def test_clients_are_sorted_by_their_score_and_two_runs_compared(figures, tmp_path):
    """Of four clients one has no samples for the first run: three thirds, from 1/6 on."""
    scores = {"a": np.array([0.9, np.nan, 0.3, 0.6]), "b": np.array([0.8, 0.2, 0.5, 0.4])}
    curves.draw_fairness(scores, [tmp_path / "x.png"], "", "recall")
    left, right = figures[0][1]
    thirds, quarters = [100 / 6, 50, 500 / 6], [12.5, 37.5, 62.5, 87.5]
    np.testing.assert_allclose(line(left), np.transpose([thirds, [0.3, 0.6, 0.9]]))
    np.testing.assert_allclose(line(left, 1), np.transpose([quarters, [0.2, 0.4, 0.5, 0.8]]))
    assert [right.get_xlabel(), right.get_ylabel()] == ["recall, a", "recall, b"]
    dots = np.ma.masked_invalid(right.collections[0].get_offsets())
    dots = dots[~dots.mask.any(axis=1)]
    np.testing.assert_allclose(dots, [[0.9, 0.8], [0.3, 0.5], [0.6, 0.4]])
    curves.draw_fairness(scores | {"c": scores["b"]}, [tmp_path / "x.png"], "", "error")
    np.testing.assert_allclose(line(figures[1][1][0])[:, 1], [0.9, 0.6, 0.3])  # the worst first
    assert len(figures[1][1]) == 1 and len(left.get_lines()) == 2
    for wrong, found in ((np.ones((2, 2)), "(2, 2) with 4"), (np.full(2, np.nan), "(2,) with 0")):
        message = f"scores of a: expected numbers [clients], found shape {found}"
        refused(message, curves.draw_fairness, {"a": wrong}, [tmp_path / "x.png"], "")


def test_sensitivity_is_evenly_spaced_with_the_baseline_as_a_line(figures, tmp_path):
    points = {"a": {0.1: [0.4, 0.6], 0.001: [0.2, 0.2]}, "b": {0.01: [0.9]}}
    curves.draw_sensitivity(points, ("base", [0.3, 0.5]), [tmp_path / "x.svg"], "", "eps", "y")
    (_, (axes,)) = figures[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.001", "0.01", "0.1"]
    found = {lines.get_label(): lines[0].get_xydata().tolist() for lines in axes.containers}
    assert found == {"a": [[0, 0.2], [2, 0.5]], "b": [[1, 0.9]]}
    bars = axes.containers[0][2][0].get_segments()
    np.testing.assert_allclose(bars[1], [[2, 0.4], [2, 0.6]])
    base = next(one for one in axes.get_lines() if one.get_label() == "base")
    np.testing.assert_allclose(base.get_ydata(), 0.4)


def test_run_folders_are_compared(figures, tmp_path, capsys):
    """Scores, and the test loss; their names, as they have no settings."""
    folders, out = [tmp_path / "a", tmp_path / "b"], tmp_path / "both.png"
    for folder, scores in zip(folders, ([0.1, 0.2], [0.3, 0.4]), strict=True):
        write_rows(folder, rows(scores))
    assert plotted(folders, "--x=samples", f"--out={out}") == 0
    assert capsys.readouterr().out == f"{out}\n" and out.exists()
    axes = figures[0][1][1]
    assert [one.get_label() for one in axes.get_lines()] == [*map(str, folders)]
    np.testing.assert_allclose(line(axes, 1), [[0, 0.3], [1000, 0.4]])
    panels = figures[0][1]
    assert [one.get_ylabel() for one in panels] == [
        "train recall_at_5", "test recall_at_5", "test loss"
    ]  # fmt: skip
    np.testing.assert_allclose(line(panels[2]), [[0, 0.5], [1000, 0.5]])
    assert figures[0][0].legends[0].get_title().get_text() == ""


def test_columns_of_ones_own_are_panels(figures, two, tmp_path, refuses):
    folders, out = two({}, {"seed": 1}), f"--out={tmp_path / 'x.png'}"
    assert plotted(folders, out, "--y=test_loss,client_updates") == 0
    assert [one.get_ylabel() for one in figures[0][1]] == ["test loss", "client updates"]
    np.testing.assert_allclose(line(figures[0][1][1]), [[0, 0], [10, 50]])
    message = f"{folders[0] / metrics.METRICS}: expected --y of round, ..., found loss"
    refuses(message, plot.main, "plot", *folders, out, "--y=loss")


def test_every_file_is_written_and_none_unasked(
    figures, two, tmp_path, monkeypatch, capsys, refuses
):
    folders, here = two({}, {"seed": 1}), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert plotted(folders, f"--out=~/a.pdf,{tmp_path}/b.PNG") == 0
    assert capsys.readouterr().out == f"{tmp_path}/a.pdf\n{tmp_path}/b.PNG\n"
    assert {"a.pdf", "b.PNG"} <= {path.name for path in tmp_path.iterdir()}
    message = "--out: expected a file for the figure, as curves.pdf, found none"
    refuses(message, plot.main, "plot", *folders)
    for name in ("a", "a.jpeg", "a.png,b", "a.png,"):
        message = "--out: expected files that end in .png, .pdf, .svg, with ..., found ..."
        refuses(message, plot.main, "plot", *folders, f"--out={name}")
    assert not [*here.iterdir()]


def write_sweep(folder, scores):
    """Trials of both methods at two rates with two seeds; `scores`: of seed 0 in the end."""
    for ((server, rate), score), seed in itertools.product(scores.items(), (0, 1)):
        varied = {"server": server, "server_lr": str(rate), "seed": str(seed)}
        end = (
            {"server": server, "server_lr": rate, "seed": seed, "rounds": 20},
            rows([0.0, score, score + 0.1 * seed]),
        )
        results.write(folder, results.Record(name_of(varied), varied, "finished", None, *end))
    return folder


def test_of_a_sweep_the_chosen_settings_are_drawn(figures, tmp_path):
    """The rate with the higher training score in the last fifth, a mean and a band of two seeds."""
    scores = {("a", 1): 0.2, ("a", 3): 0.5, ("b", 1): 0.4, ("b", 3): 0.3}
    folders = [write_sweep(tmp_path / name, scores) for name in ("s", "t")]
    assert plotted(folders, "--x=virtual_time", f"--out={tmp_path / 'x.png'}") == 0
    axes, chosen = figures[0][1][1], ["a, server_lr 3", "b, server_lr 1"]
    labels = [f"{label} ({tmp_path}/{name})" for name in "st" for label in chosen]
    assert [one.get_label() for one in axes.get_lines()] == labels
    legend = figures[0][0].legends[0]
    said = "line: mean over 2 seeds, band: from the smallest to the largest"
    assert legend.get_title().get_text() == said
    np.testing.assert_allclose(line(axes, 0), [[0, 0], [60, 0.5], [120, 0.55]])
    np.testing.assert_allclose(line(axes, 1), [[0, 0], [60, 0.4], [120, 0.45]])


def test_a_sweep_without_a_finished_trial_is_refused(tmp_path, refuses):
    path = tmp_path / results.TRIALS / "x.json"
    path.parent.mkdir()
    message = f"{tmp_path}: expected at least one method with a finished trial, found none"
    refuses(message, plot.main, "plot", tmp_path, "--out=x.png")
    path.write_text('{"name": 3}')
    message = f"{path}: expected a trial's name, status, config and rows, found {{'name': 3}}"
    refuses(message, plot.main, "plot", tmp_path, "--out=x.png")


def test_a_folder_whose_name_begins_a_formula_is_drawn(tmp_path):
    write_rows(tmp_path / "$_$", rows([0.1, 0.2]))
    for out in (tmp_path / "x.png", tmp_path / "x.svg"):
        assert plotted([tmp_path / "$_$"], f"--out={out}") == 0
        assert out.stat().st_size > 5000


_NUMBERS = "{}: expected rows with a rising round and numbers, found row 0 with"


@pytest.mark.parametrize(("content", "message"), [
    ("", "{}: expected at least one row, found none"),
    ("no json\n", "{}: expected JSON, found..."),
    ("3\n", "{}: expected a row with its round, found 3"),
    ('{"round": 0}\n', "{}: expected --x of round, found rows without samples"),
    ('{"round": 0, "test_a": "a", "train_a": 1, "samples": 0}\n', f"{_NUMBERS} test_a 'a'"),
    ('{"round": 0, "test_a": 1e999, "train_a": 1, "samples": 0}\n', f"{_NUMBERS} test_a inf"),
    ('{"round": 0, "test_a": 1, "train_a": 1, "samples": "a"}\n', f"{_NUMBERS} samples 'a'"),
])  # fmt: skip
def test_a_folder_without_rows_is_refused(tmp_path, refuses, content, message):
    path, out = tmp_path / metrics.METRICS, tmp_path / "x.png"
    path.write_text(content)
    refuses(message.format(path), plot.main, "plot", tmp_path, "--x=samples", f"--out={out}")
    assert not out.exists()


ACROSS = {"round": 10, "client_updates": 50, "samples": 1000, "bytes": 300 + 400}
ACROSS |= {"virtual_time": 60, "seconds": 2}  # of the second row


@pytest.mark.parametrize("null", [True, False], ids=["no_clock", "earlier_results"])
@pytest.mark.parametrize(("x", "column"), [("virtual_time",) * 2, ("bytes", "bytes_sent")])
def test_an_axis_that_the_rows_lack_is_refused(figures, tmp_path, refuses, x, column, null):
    its = [{n: v for n, v in row.items() if n != column} for row in rows([0.1, 0.2])]
    path = write_rows(tmp_path, [row | ({column: None} if null else {}) for row in its])
    out, there = f"--out={tmp_path / 'x.png'}", [axis for axis in AXES if axis != x]
    message = f"{path}: expected --x of {', '.join(there)}, found rows without {x}"
    refuses(message, plot.main, "plot", tmp_path, f"--x={x}", out)
    assert not figures
    for axis in there:
        assert plotted([tmp_path], f"--x={axis}", out) == 0
        for panel in figures[-1][1]:
            np.testing.assert_array_equal(line(panel)[:, 0], [0, ACROSS[axis]])
            assert panel.get_xlabel() == AXES[axis][0]


def served(folder, text, method="fedavg"):
    write_rows(folder, rows([0.1, 0.2]))
    config = {"method": method, "server": "cc_fedsgd"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "clients.csv").write_text(text)


def test_clients_of_runs_are_drawn_sorted_and_against_each_other(figures, tmp_path, refuses):
    """By default each run's last kind of model; a client without a score is left out."""
    head = "client,samples,test_samples,accuracy"
    served(
        tmp_path / "a", f"{head},own_accuracy\n0,9,2,0.1,0.9\n1,8,2,0.2,0.7\n2,1,0,,\n", "fedper"
    )
    served(tmp_path / "b", f"{head}\n0,9,2,0.5\n1,8,2,0.25\n2,1,0,\n")
    folders, out = [tmp_path / "a", tmp_path / "b"], f"--out={tmp_path / 'x.png'}"
    assert plotted(folders, "--x=clients", out) == 0
    ((_, axes),) = figures
    np.testing.assert_allclose(line(axes[0]), [[25, 0.7], [75, 0.9]])
    np.testing.assert_allclose(line(axes[0], 1), [[25, 0.25], [75, 0.5]])
    assert axes[0].get_ylabel() == "accuracy of a client"
    assert [axes[1].get_xlabel(), axes[1].get_ylabel()] == ["accuracy, fedper", "accuracy, fedavg"]
    assert plotted(folders, "--x=clients", "--y=accuracy", "--labels=one,two", out) == 0
    np.testing.assert_allclose(line(figures[1][1][0])[:, 1], [0.1, 0.2])
    command = ("plot", *map(str, folders), "--x=clients", out)
    at = tmp_path / "b" / "clients.csv"
    message = f"{at}: expected --y of accuracy, found own_accuracy"
    refuses(message, plot.main, *command, "--y=own_accuracy")
    message = "--y: expected one column with --x=clients, found a,b"
    refuses(message, plot.main, *command, "--y=a,b")
    for text, found in (
        (f"{head}\n0,9,2,x\n", "expected numbers, found x in row 0"),
        (f"{head}\n0,9,2,1\n0,9,2\n", "expected numbers, found a row of another length in row 1"),
        (f"{head}\n0,9,2,inf\n", "expected numbers, found inf in row 0"),
        ("a,b\n", "expected client,samples,test_samples, scores, and clients, found 'a,b' and..."),
        ("", "expected a table, found not enough values..."),
    ):  # fmt: skip
        at.write_text(text)
        refuses(f"{at}: {found}", plot.main, *command)
    at.unlink()
    message = f"{at}: expected that of a run with --client_test, found none"
    refuses(message, plot.main, *command)
