"""--tensorboard: event files that hold a run's rows; of trials see `test_sweep_resume.py`."""

import shutil
import sys

import pytest
from event_files import events, numbers_of
from small_runs import BASE, rows_of, six

from ccfl_jax.runs import callbacks, checkpoints
from experiments import sweep, train

pytest.importorskip("tensorboardX")
pytestmark = pytest.mark.usefixtures("undrawn")


def test_a_run_that_is_resumed_has_every_round_once(tmp_path):
    """It was killed after the row of round 6 and before its checkpoint: that round is run again.
    The flag is that of its first start; the file has grown, and that of another program stays."""
    folder = tmp_path / "a"
    assert six(folder, "--tensorboard") == 0
    found = events(folder / callbacks.EVENTS)
    assert found == numbers_of(rows_of(folder)) and len({step for _, step, _ in found}) == 4
    (file,) = (folder / callbacks.EVENTS).iterdir()
    before = file.read_bytes()
    shutil.rmtree(folder / checkpoints.CHECKPOINTS / "6")
    (folder / callbacks.EVENTS / "events.out.tfevents.1.other").touch()
    now = ["--compilation_cache=off", "--noprogress", f"--out_dir={folder}"]
    assert train.main(["train", "--resume", "--rounds=8", *now]) == 0
    assert [row["round"] for row in rows_of(folder)] == [0, 2, 4, 6, 8]
    assert events(folder / callbacks.EVENTS) == numbers_of(rows_of(folder))
    half = len(before) // 2
    assert file.read_bytes()[:half] == before[:half]
    assert len([*file.parent.iterdir()]) == 2


def test_a_run_that_is_over_gets_them_and_an_overwritten_one_loses_them(tmp_path, straight):
    folder = tmp_path / "a"
    shutil.copytree(straight[0], folder)
    assert six(folder, "--resume", "--tensorboard") == 0
    assert events(folder / callbacks.EVENTS) == numbers_of(straight[1])
    assert six(folder, "--overwrite") == 0
    assert not (folder / callbacks.EVENTS).exists()


@pytest.mark.parametrize("words", [["train"], ["sweep", "--vary=seed=0,1"]])
def test_without_the_package_nothing_is_done(tmp_path, refuses, monkeypatch, words):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    main = {"train": train, "sweep": sweep}[words[0]].main
    said = "expected tensorboardX (pip install 'ccfl_jax[tensorboard]'), found none"
    refuses(
        f"--tensorboard: {said}...",
        main,
        *words,
        *BASE,
        "--tensorboard",
        f"--out_dir={tmp_path / 'a'}",
    )
    assert not [*tmp_path.iterdir()]
