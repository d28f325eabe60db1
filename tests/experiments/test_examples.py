"""experiments/examples: an outsider's path, as its script has it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
TEXT = (
    "to be or not to be that is the question whether tis nobler in the mind to suffer the slings "
    "and arrows of outrageous fortune or to take arms against a sea of troubles and by opposing "
)


def write_leaf(folder):
    """Four users, each with his part of a text: 80 characters, and the next one."""
    for part, first in (("train", 0), ("test", 30)):
        users = {}
        for k in range(4):
            starts = [
                (17 * k + first + 3 * row) % 90 for row in range(30 if part == "train" else 6)
            ]
            x = [(TEXT * 2)[s : s + 80] for s in starts]
            users[f"user {k}"] = {"x": x, "y": [(TEXT * 2)[s + 80] for s in starts]}
        whole = {
            "users": [*users],
            "num_samples": [len(own["y"]) for own in users.values()],
            "user_data": users,
        }
        (folder / part).mkdir(parents=True)
        (folder / part / "all.json").write_text(json.dumps(whole))


@pytest.mark.slow
def test_an_outsiders_path_from_leaf_files_to_scores_of_every_user(tmp_path):
    """Six settings and a run; the limit stops the sweep somewhere, and it goes on."""
    write_leaf(tmp_path / "leaf")
    script = ROOT / "experiments/examples/leaf_gru.sh"
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": paths, "CLIENTS": "6", "ROUNDS": "20", "SECONDS_AT_MOST": "20"}
    done = subprocess.run(
        ["sh", script, tmp_path / "leaf", tmp_path / "out"],
        cwd=tmp_path,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    table = [line for line in lines if line.startswith("| ") and "rounds/s" not in line]
    assert len([line for line in table if " 20 " in line]) == 6
    for name in ("curves.pdf", "curves.png", "sweep/results.csv", "best/params.npz"):
        assert (tmp_path / "out" / name).stat().st_size > 0
    (scores,) = [line.split(":")[1].split() for line in lines if line.startswith("worst, median")]
    worst, median, best = map(float, scores)
    assert 0 <= worst <= median <= best <= 1 and np.isfinite(median)
