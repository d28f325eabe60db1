"""The same command again, as a scheduler runs it: it starts a run or goes on with it."""

import shutil

import pytest
from refusal import ended, matches
from small_runs import contents, copied, line, rows_of, without_clocks

from ccfl_jax.io import folder_lock
from ccfl_jax.runs import checkpoints
from experiments import plot, schedule, sweep, table, train

pytestmark = pytest.mark.usefixtures("quickly_compiled", "undrawn")

SIX = ["--rounds=6", "--eval_every=2"]


def auto(folder, *args):
    return train.main, *line(*SIX, "--resume=auto", f"--out_dir={folder}", *args)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert train.main(line(*SIX, f"--out_dir={folder}")) == 0
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return copied(whole, tmp_path / "a")


def same_rows(folder, other):
    assert without_clocks(rows_of(folder)) == without_clocks(rows_of(other))


def test_nf_20_one_command_starts_a_run_and_goes_on_with_it(whole, tmp_path, capsys):
    """Three rounds in the first job; all in the second; nothing is left for the third."""
    folder = tmp_path / "new" / "a"
    ended(0, capsys, *auto(folder, "--rounds=4"))
    ended(0, capsys, *auto(folder))
    same_rows(folder, whole)
    before = contents(folder)
    assert "result    test accuracy" in ended(0, capsys, *auto(folder)).out
    assert contents(folder) == before


def test_nf_20_it_goes_on_after_a_kill(whole, folder, capsys):
    """Between the row of round 6 and its checkpoint."""
    shutil.rmtree(folder / checkpoints.CHECKPOINTS / "6")
    ended(0, capsys, *auto(folder))
    same_rows(folder, whole)


FIRST = ["provenance.json", "schedule.npz", "task.json"]


@pytest.mark.parametrize("left", [[], FIRST[:1], [*FIRST, "lock"], [*FIRST, "config.json.tmp"]])
def test_nf_20_a_start_that_was_killed_is_made_again(whole, tmp_path, capsys, left):
    """Before config.json, which makes the folder a run."""
    (tmp_path / "a").mkdir()
    for name in left:
        (tmp_path / "a" / name).write_bytes(b"half")
    said = ended(0, capsys, *auto(tmp_path / "a"))
    assert ("ended without releasing it" in said.err) == ("lock" in left)
    same_rows(tmp_path / "a", whole)
    assert {path.name for path in (tmp_path / "a").glob("*.tmp")} == set()


@pytest.mark.parametrize("lost", ["config.json", None])
def test_nf_20_no_work_is_ever_removed(folder, capsys, lost):
    """A run without its settings, or the user's own files, are no half start."""
    if lost is None:
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    else:
        (folder / lost).unlink()
    before = contents(folder)
    found = "checkpoints" if lost else "notes.txt"
    own = ", ".join(["config.json", *FIRST])
    matches(f"train: {folder}: expected only {own} in a folder to overwrite, found {found}\n",
            ended(2, capsys, *auto(folder)).err)  # fmt: skip
    assert contents(folder) == before


def test_nf_20_another_run_or_one_that_is_at_work_is_refused(folder, capsys):
    before = contents(folder)
    said = ended(2, capsys, *auto(folder, "--seed=1"))
    matches(f"train: {folder}: expected the same settings, ..., found seed 0 -> 1\n", said.err)
    lock = folder_lock.lock(folder)
    matches(f"train: {folder}: expected one process at a time, ...\n",
            ended(2, capsys, *auto(folder)).err)  # fmt: skip
    lock.release()
    assert contents(folder) == before


@pytest.mark.parametrize(("flags", "message"), [
    ("--resume=auto --overwrite", "--overwrite: expected without --resume, found with it"),
    ("--resume=Auto", "--resume: expected given, or with `no` before ..., or auto, found 'Auto'"),
])  # fmt: skip
def test_nf_20_what_makes_no_sense_is_refused(folder, capsys, flags, message):
    argv = line(*SIX, f"--out_dir={folder}", *flags.split())
    matches(f"train: {message}\n", ended(2, capsys, train.main, *argv).err)
    matches("train: --resume: expected with the --out_dir ..., found without\n",
            ended(2, capsys, train.main, *line("--resume=auto")).err)  # fmt: skip
    argv = [*line(*SIX)[1:], f"--out_dir={folder}", "--resume", "--vary=seed=0"]
    matches(f"sweep: {folder}: expected the folder of a sweep, found no sweep.json\n",
            ended(2, capsys, sweep.main, "sweep", *argv).err)  # fmt: skip


NAMES = ["br[1]*a?", "sp ace", "eq=1,ü", "100%d{x}", "{seed}", "~tilde", "-dash", "a'b\"c$d#e"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if k > 3 else []) for k, n in enumerate(NAMES)]
)
def test_nf_38_a_folder_may_have_any_name(whole, tmp_path, capsys, name):
    """A run in it is resumed, and compared to one of the same rows elsewhere."""
    folder = copied(whole, tmp_path / name / "run")
    shutil.rmtree(folder / checkpoints.CHECKPOINTS / "6")
    argv = line(*SIX, f"--out_dir={folder}")
    ended(0, capsys, train.main, *argv, "--resume")
    same_rows(folder, whole)
    rows = [
        ended(0, capsys, table.main, "table", one).out.splitlines()[2] for one in (folder, whole)
    ]
    assert rows[0].split("|")[:5] == rows[1].split("|")[:5]
    out = tmp_path / name / f"{name}.svg"
    assert ended(0, capsys, plot.main, "plot", folder, whole, f"--out={out}").out == f"{out}\n"
    assert "</svg>" in out.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_nf_38_so_may_those_of_sweeps_and_schedules(tmp_path, capsys, name):
    """The schedule of the trials is read from there."""
    place = tmp_path / name
    small = [one for one in line(*SIX) if "max_delay" not in one][1:]
    made = [one for one in small if one not in ("--devices=1", "--noprogress")]
    ended(0, capsys, schedule.main, "schedule", "--world=paper", *made, f"--file={place}/s.npz")
    file = place / "s.npz" if name != "{seed}" else tmp_path / "0" / "s.npz"  # what stands for it
    assert file.exists()
    argv = [*small, f"--schedule_file={place}/s.npz", "--vary=seed=0", f"--out_dir={place}/b"]
    ended(0, capsys, sweep.main, "sweep", *argv)
    assert "1 of them done before" in ended(0, capsys, sweep.main, "sweep", *argv).out
    ended(0, capsys, table.main, "table", place / "b")
