"""experiments/schedule.py: a schedule is made, written and shown; what it cannot use is refused."""

from pathlib import Path

import numpy as np
import pytest
from small_runs import SMALL

from experiments import schedule
from experiments.config import schedule_flags
from experiments.schedules import make

BASE = [*SMALL[:4], "--rounds=40", "--step=log_normal(0,1,10)"]
_NPZ, _RULE = "NAME.npz, other than NAME.log.npz", "--file=a.npz --world"
_RATE = "--rate: expected none with replace, a number with constant, poisson, found"
_DIGITS, _STEP = "--file=a.npz --dataset=digits --model=mlp", "--step=constant(-1)"
_TAGS = "--file=a.npz --dataset=stackoverflow --data_dir=x --model=tags --partition=natural"
_NEVER = f"{_DIGITS} --timeout=1e-3 --on_timeout=skip --num_clients=5 --rounds=2"


def run(*args):
    return schedule.main(["schedule", *map(str, args)])


@pytest.mark.parametrize(("words", "message"), [
    ("", "--file: expected NAME.npz, or --show=NAME.npz, found none"),
    ("--file=a.png", f"--file: expected {_NPZ}, found 'a.png'"),
    ("--file=a.log.npz", f"--file: expected {_NPZ}, found 'a.log.npz'"),
    ("--show=a.txt", f"--show: expected {_NPZ}, found 'a.txt'"),
    ("--show=a.npz --world=clock", "--show: expected with --num_clients, ... with --world"),
    ("--show=nowhere.npz", "schedule file nowhere.npz: No such file or directory"),
    ("--step=lognormal(1)", "--step: expected constant(value), ..., found 'lognormal(1)'; ..."),
    ("--availability=label", "--availability: expected always, ..., found 'label'; ..."),
    ("--work_correlation=2", "--work_correlation: expected a number from -1 to 1, found 2.0"),
    (f"{_RULE}=paper --availability=always", "--availability: expected with ... --world=paper"),
    (f"{_RULE}=rounds --step=constant(1)", "--step: expected with clock, ... --world=rounds"),
    (f"{_RULE}=clock --round_seconds=1", "--round_seconds: expected with rounds, ...=clock"),
    (f"{_RULE}=clock --max_delay=1", "--max_delay: expected with paper, ... --world=clock"),
    ("--file=a.npz --rate=1", f"{_RATE} 1.0 with --start=replace"),
    ("--file=a.npz --start=poisson", f"{_RATE} None with --start=poisson"),
    ("--file=a.npz --on_timeout=skip", "--on_timeout: expected with --timeout, found without"),
    ("--file=a.npz --capacity=b --step=pareto", "--step: expected without ..., found with it"),
    ("--file=a.npz --schedule_file=b", "--schedule_file: expected --show=PATH, ... to make"),
    ("--file=a.npz --resume", "--resume: expected --overwrite, ... with a schedule to make"),
    (f"{_TAGS} --availability=label(1)", "--availability: expected a model ..., found label"),
    (f"{_DIGITS} {_STEP}", f"{_STEP}: value: expected a finite number >= 0, found -1.0"),
    (f"{_DIGITS} --availability=csv(b)", "b: No such file or directory"),
    (f"{_DIGITS} --capacity=b", "b: No such file or directory"),
    (_NEVER, "clock: expected a next round ..., found none from second 0 to ..."),
])  # fmt: skip
def test_what_is_refused_leaves_nothing(refuses, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ccfl_jax.clock.event_clock._FRUITLESS", 1000)
    assert not refuses(message, schedule.main, "schedule", *words.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["digits", "synthetic", "fmnist_cnn"])
def test_presets_are_words_of_the_command(name):
    """Training's words too, as the last one's max_delay; a server rate is not needed."""
    line = [f"--preset={name}", "--file=a{seed}.npz", "--seed=7"]
    asked = schedule_flags.parse_schedule(["schedule", *line])
    assert asked.file == Path("a7.npz") and asked.options.world == "clock"
    assert not hasattr(asked.options, "max_delay")


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_command_writes_the_same_files_and_shows_what_it_wrote(tmp_path, capsys, refuses):
    line = [*BASE, "--seed=3", "--availability=label_diurnal"]
    for name in ("a", "b"):
        assert run(*line, f"--file={tmp_path}/{name}/s{{seed}}.npz") == 0
    out = capsys.readouterr().out.splitlines()
    made, again = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert [*made] == ["s3.log.npz", "s3.npz", "s3.png"] and made["s3.png"][:4] == b"\x89PNG"
    assert made == again
    file, _, picture = files = make.files(tmp_path / "a" / "s3.npz")
    assert [line for line in out if "/a/" in line] == [f"written   {path}" for path in files]

    assert run(f"--show={file}") == 0
    *shown, last = capsys.readouterr().out.splitlines()
    assert last == f"picture   {picture} exists; --overwrite draws it anew"
    different = {a[:9] for a, b in zip(shown, out, strict=False) if a != b}
    assert different == {"history  ", "theorem  "}  # megabytes, and steps, that need the data
    picture.unlink()
    assert run(f"--show={file}", "--num_clients=12") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"written   {picture}"
    assert picture.read_bytes() != made["s3.png"]  # sorted by another key
    message = "schedule: expected one of 11 clients, found one of 12"
    refuses(message, schedule.main, "schedule", f"--show={file}", "--num_clients=11")


def test_files_that_exist_are_kept_unless_they_may_be_overwritten(tmp_path, monkeypatch, refuses):
    monkeypatch.setattr(make.schedule_figure, "draw", lambda *args: args[2].write_bytes(b"drawn"))
    file, log, _ = files = make.files(tmp_path / "a.npz")
    for there in files:
        there.write_bytes(b"mine")
        message = f"{there}: expected a new name, or --overwrite, found a file"
        refuses(message, schedule.main, "schedule", *BASE, f"--file={file}")
        assert there.read_bytes() == b"mine"
        there.unlink()
    assert run(*BASE, f"--file={file}") == 0
    clock, tasks = dict(np.load(file)), log.read_bytes()
    assert run(*BASE[:-1], "--world=paper", f"--file={file}", "--overwrite") == 0
    assert [*contents(tmp_path)] == ["a.npz", "a.png"]  # no log of another schedule stays
    assert not np.array_equal(np.load(file)["client"], clock["client"])
    assert "time" in clock and "time" not in np.load(file)
    log.write_bytes(tasks)
    message = f"{log}: expected the tasks of its schedule, found those of another"
    refuses(message, schedule.main, "schedule", f"--show={file}")
