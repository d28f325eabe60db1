"""training/theorem_report.py: the theorem's conditions for a run's own schedule and clients."""

import numpy as np
import pytest
from small_runs import config_of

import ccfl_jax as ccfl
from experiments.config import run_flags
from experiments.training import report, run_setup, theorem_report

_THEOREM = ["--server=cc_fedadagrad", "--smoothness=2", "--gradient_bound=3"]
_ARGS = ["--dataset=digits", "--model=logistic", "--num_clients=4", "--buffer_size=2"]
SCHEDULE = ccfl.Schedule(
    client=np.array([[0, 1], [3, 2]], np.int32),
    staleness=np.array([[0, 0], [1, 0]], np.int32),
    work=np.array([[2, 3], [4, 1]], np.int32),
    present=np.ones((2, 2), bool),
)
SIZES = np.array([8, 20, 5, 0])


@pytest.mark.parametrize(("unit", "most"), [("--local_epochs=2", 9), ("--local_steps=2", 3)])
def test_steps_come_from_the_clients_that_are_visited(unit, most):
    """Epochs times ceil(n / 8): 2, 3 * 3 and 1; client 3 has no samples and so takes no step.
    In steps the work itself: 2, 3 and 1. The first condition is eta_l <= 1 / (8 K L)."""
    args = [*_ARGS, *_THEOREM, "--batch_size=8", "--server_lr=0.1", unit]
    found = theorem_report.lines(run_flags.parse(["train", *args]), SCHEDULE, SIZES)
    assert f"eta_l <= 1/(8 K L): 0.01 and {1 / (8 * most * 2):.4g}, " in found[0]
    assert sum("(paper)" in line for line in found) == 4
    assert sum("(consistent)" in line for line in found) == 5


def test_the_header_shows_them_where_they_are_asked_for(tmp_path):
    job = run_setup.prepare(config_of(*_THEOREM, f"--out_dir={tmp_path / 'a'}"))
    lines = report.header(job).splitlines()
    assert sum(line.startswith("theorem   ") for line in lines) == 9
