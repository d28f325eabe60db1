"""experiments/sweeps/lines.py: a line is named by what tells it from the others."""

import pytest
from plots import plotted

from ccfl_jax.runs import run_config
from experiments import plot


def labels_of(figures):
    return [text.get_text() for text in figures[-1][0].legends[0].get_texts()]


FEDPROX = {"method": "fedprox", "server": "cc_fedsgd", "server_lr": 1.0, "rule": "fedprox"}
FEDPROX |= {"normalise": "none", "weights": "samples"}


@pytest.mark.parametrize(("one", "other", "expected"), [
    ({}, {"seed": 1}, ["seed 0", "seed 1"]),
    ({"alpha": 0.1}, {"alpha": 10.0, "server_lr": 1e-3},
     ["alpha 0.1, server_lr 0.1", "alpha 10, server_lr 0.001"]),
    ({}, {"rule": "fedprox(0.1)"}, ["cc_fedams", "rule fedprox(0.1)"]),
    ({}, {"server": "cc_fedadam", "eps": 0.1}, ["cc_fedams", "cc_fedadam"]),
    ({"eps": 1.0, "normalise": "steps"}, FEDPROX, ["cc_fedams", "fedprox"]),
    (FEDPROX, FEDPROX | {"rule": "fedprox(1)"}, ["fedprox", "rule fedprox(1)"]),
    ({}, {}, ["cc_fedams ({0})", "cc_fedams ({1})"]),
    ({}, {"rounds": 40, "devices": 2}, ["cc_fedams ({0})", "cc_fedams ({1})"]),
])  # fmt: skip
def test_labels_are_the_settings_that_differ(figures, two, tmp_path, one, other, expected):
    """Not what a method sets itself, and not what changes no result."""
    folders = two(one, other)
    assert plotted(folders, f"--out={tmp_path / 'x.png'}") == 0
    assert labels_of(figures) == [label.format(*folders) for label in expected]


def test_labels_of_ones_own(figures, two, tmp_path, refuses):
    folders, out = two({}, {"seed": 1}), f"--out={tmp_path / 'x.png'}"
    assert plotted(folders, out, "--labels=ours,b $x$") == 0
    assert labels_of(figures) == ["ours", r"b \$x\$"]
    for found in ("ours", "a,b,c", "a,a"):
        message = f"--labels: expected 2 different ones, for seed 0; seed 1, found {found}"
        refuses(message, plot.main, "plot", *folders, out, f"--labels={found}")


def test_settings_that_are_none_are_refused(two, tmp_path, refuses):
    (folder,) = two({})
    path = folder / run_config.CONFIG
    for text, message in (("[3]", "the settings of a run, found [3]"), ("{", "JSON, found ...")):
        path.write_text(text)
        out = f"--out={tmp_path / 'x.png'}"
        refuses(f"{path}: expected {message}", plot.main, "plot", folder, out)
