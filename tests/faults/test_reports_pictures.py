"""What a command draws cannot end it, nor change its record or its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.cbook import is_math_text
from refusal import ended
from small_runs import ROOT, line

from ccfl_jax.runs import metrics
from experiments import plot, reproduce, schedule, train
from experiments.figures import canvas, curves
from experiments.paper import reproduction

pytestmark = pytest.mark.usefixtures("quickly_compiled")

NO_PICTURE = "warning   {}: expected a picture, found ImportError: no backend\n"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def canvas_without(**options):
    raise ImportError("no\nbackend")


def test_nf_15_a_picture_that_fails_is_no_failed_run(tmp_path, capsys):
    """The next resume draws it."""
    folder, args = tmp_path / "a", ["--rounds=2", f"--out_dir={tmp_path / 'a'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canvas, "figure", canvas_without)
        for how in ([], ["--resume"]):
            said = ended(0, capsys, train.main, *line(*args, *how))
            assert said.err == NO_PICTURE.format(folder / "curves.png")
            assert "result    test accuracy" in said.out and "curves" not in said.out
    before = names(folder)
    said = ended(0, capsys, train.main, *line(*args, "--resume"))
    assert "curves    " in said.out and {*names(folder)} == {*before, "curves.png"}


def test_nf_15_a_schedule_and_a_reproduction_are_written_without_their_picture(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(canvas, "figure", canvas_without)
    made = ["--dataset=digits", "--model=logistic", "--rounds=4", f"--file={tmp_path}/s.npz"]
    said = ended(0, capsys, schedule.main, "schedule", *made)
    assert said.err == NO_PICTURE.format(tmp_path / "s.png")
    assert names(tmp_path) == ["s.log.npz", "s.npz"] and "s.png" not in said.out
    monkeypatch.setattr(reproduction.runner, "run", lambda *_, **__: [])
    monkeypatch.setattr(reproduction, "_draw", lambda *args: canvas_without())
    (tmp_path / "r").mkdir()
    said = ended(0, capsys, reproduce.main, "reproduce", "fig3_beta", f"--out_dir={tmp_path / 'r'}")
    assert said.err == NO_PICTURE.format(tmp_path / "r")
    assert names(tmp_path / "r") == ["results.csv", "summary.json"]


BACKENDS = ["module://matplotlib_inline.backend_inline", "nothing", "TkAgg", ""]


def in_process(code, backend):
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "MPLBACKEND": backend}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True,
                          timeout=300, cwd=ROOT)  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("backend", [
    BACKENDS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in BACKENDS[1:]),
])  # fmt: skip
def test_nf_15_a_backend_of_another_environment_is_not_asked_for(tmp_path, backend):
    """Nor forgotten, for what the user draws."""
    code = (
        "import os\n"
        "from experiments.figures import canvas\n"
        "before = os.environ['MPLBACKEND']\n"
        f"canvas.figure().savefig({str(tmp_path / 'a.png')!r})\n"
        "assert os.environ['MPLBACKEND'] == before\n"
    )
    assert in_process(code, backend) == (0, "")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS[:1])
def test_nf_15_every_command_that_draws_under_such_a_backend(tmp_path, backend):
    code = (
        "from small_runs import main, SMALL\n"
        "from experiments import plot, schedule\n"
        f"folder = {str(tmp_path)!r}\n"
        "assert main('--rounds=2', f'--out_dir={folder}/a') == 0\n"
        "assert main('--rounds=2', f'--out_dir={folder}/a', '--resume') == 0\n"
        "assert plot.main(['plot', f'{folder}/a', f'--out={folder}/p.png']) == 0\n"
        "assert schedule.main(['schedule', *SMALL[:4], f'--file={folder}/s.npz']) == 0\n"
    )
    assert in_process(code, backend) == (0, "")
    assert {"p.png", "s.png"} <= {*names(tmp_path)} and (tmp_path / "a" / "curves.png").exists()


def write_run(folder, scores):
    folder.mkdir()
    rows = [{"round": k, "train_accuracy": s, "test_accuracy": s} for k, s in enumerate(scores)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / metrics.METRICS).write_text(text)


@pytest.mark.parametrize("main", [plot.main])
def test_nf_17_every_line_has_its_name_in_the_legend(tmp_path, monkeypatch, main):
    """A name that begins with _ too; what is between two $ is no formula."""
    figures, plain = [], canvas.figure
    monkeypatch.setattr(canvas, "figure", lambda **o: figures.append(plain(**o)) or figures[-1])
    monkeypatch.setattr(curves, "write_whole", lambda path, write: None)
    monkeypatch.chdir(tmp_path)
    folders = ["_base", "other", "$a_1$", "__", "_$x$"]
    for number, name in enumerate(folders):
        write_run(Path(name), [0.1 * number, 0.5])
    assert main(["plot", *folders, "--out=x.png"]) == 0
    panel = figures[0].axes[-1]
    shown = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert [text.strip().replace(r"\$", "$") for text in shown] == folders
    assert not any(is_math_text(text) for text in shown)
    np.testing.assert_allclose(
        [one.get_ydata()[0] for one in panel.get_lines()], [0, 0.1, 0.2, 0.3, 0.4]
    )


def test_nf_17_names_in_other_figures(tmp_path, monkeypatch):
    """Of the sensitivity to a number, its line, and titles."""
    figures, plain = [], canvas.figure
    monkeypatch.setattr(canvas, "figure", lambda **o: figures.append(plain(**o)) or figures[-1])
    points = {"_a": {0.5: [0.1], 0.9: [0.2]}, "$b$": {0.5: [0.3], 0.9: [0.4]}}
    curves.draw_sensitivity(points, ("_line", [0.3]), [tmp_path / "x.png"], "_$title$", "x", "y")
    shown = [text.get_text().strip() for text in figures[0].legends[0].get_texts()]
    assert sorted(shown) == [r"\$b\$", "_a", "_line"]
    assert not is_math_text(figures[0].get_suptitle())
