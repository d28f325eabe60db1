"""training/theorem_report.py: the theorem's conditions for a run's own schedule and clients."""

import numpy as np
import pytest

import ccfl_jax as ccfl
from experiments import train
from experiments.config import run_flags
from experiments.training import theorem_report

_ARGS = [
    "--dataset=digits",
    "--model=logistic",
    "--num_clients=4",
    "--buffer_size=2",
    "--batch_size=8",
    "--server=cc_fedadagrad",
    "--server_lr=0.1",
    "--smoothness=2",
    "--gradient_bound=3",
]
SCHEDULE = ccfl.Schedule(
    client=np.array([[0, 1], [3, 2]], np.int32),
    staleness=np.array([[0, 0], [1, 0]], np.int32),
    work=np.array([[2, 3], [4, 1]], np.int32),
    present=np.array([[True, True], [True, True]]),
)
SIZES = np.array([8, 20, 5, 0])


@pytest.mark.parametrize(
    ("unit", "most"),
    [("--local_epochs=2", 9), ("--local_steps=2", 3)],
)
def test_steps_come_from_the_clients_that_are_visited(unit, most):
    """Epochs times ceil(n / 8): 2, 3 * 3 and 1; client 3 has no samples and so takes no step.
    In steps the work itself: 2, 3 and 1. The first condition is eta_l <= 1 / (8 K L)."""
    config = run_flags.parse(["train", *_ARGS, unit])
    found = theorem_report.lines(config, SCHEDULE, SIZES)
    assert f"eta_l <= 1/(8 K L): 0.01 and {1 / (8 * most * 2):.4g}, " in found[0]
    assert sum("(paper)" in line for line in found) == 4
    assert sum("(consistent)" in line for line in found) == 5


def test_the_header_shows_them_where_they_are_asked_for(tmp_path, capsys):
    args = ["train", *_ARGS, "--rounds=1", "--devices=1", "--noprogress"]
    args += ["--compilation_cache=off", f"--out_dir={tmp_path / 'a'}"]
    assert train.main(args) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("theorem   ") for line in lines) == 9


@pytest.mark.parametrize(
    "args",
    [
        ["--smoothness=1"],
        ["--gradient_bound=1"],
        ["--smoothness=1", "--gradient_bound=1", "--server=cc_fedams"],
    ],
)
def test_they_are_those_of_one_method_and_of_both_constants(args):
    with pytest.raises(ValueError, match="--smoothness and --gradient_bound together"):
        run_flags.parse(["train", "--server=cc_fedadagrad", "--server_lr=1", *args])
