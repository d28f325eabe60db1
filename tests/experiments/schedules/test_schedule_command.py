"""experiments/schedule.py: a schedule is made, written and shown; what it cannot use is refused."""

from pathlib import Path

import numpy as np
import pytest
from small_runs import assert_refused

from experiments import schedule
from experiments.config import schedule_flags
from experiments.schedules import make

ROOT = Path(__file__).parents[3]
BASE = [
    *("--dataset=digits", "--model=logistic", "--num_clients=12", "--buffer_size=3"),
    *("--rounds=40", "--step=log_normal(0,1,10)"),
]
_NPZ, _RATE = "NAME.npz, other than NAME.log.npz", "none with replace, a number with constant"
_LAW, _WHEN = "constant(value), uniform(low,high), ", "always, bernoulli(p,period), "
_DIGITS = "--file=a.npz --dataset=digits --model=mlp"
_NEVER = (
    f"{_DIGITS} --max_staleness=0 --timeout=1e-3 --on_timeout=skip --num_clients=5 --rounds=2 "
    "--step=constant(0.01) --work_correlation=1 --availability=cyclic(0.01,0.001) "
    "--concurrency=1 --start=constant --rate=1e-6"
)


def run(*args):
    return schedule.main(["schedule", *map(str, args)])


@pytest.mark.parametrize(
    ("words", "name", "expected", "found"),
    [
        ("", "file", "NAME.npz, or --show=NAME.npz", "none"),
        ("--file=a.png", "file", _NPZ, "'a.png'"),
        ("--file=a.log.npz", "file", _NPZ, "'a.log.npz'"),
        ("--rul=paper", "rul", "a flag that --help names", "an unknown one; did you mean --rule?"),
        ("--rule=papr", "rule", "paper, rounds, clock", "'papr'; did you mean paper?"),
        ("--step=lognormal(1)", "step", _LAW,
         "'lognormal(1)'; did you mean half_normal(sigma=1,least=0)?"),
        ("--task=constant(1,2)", "task", _LAW, "'constant(1,2)'; did you mean constant(value)?"),
        ("--availability=bernoulli(0.5)", "availability", _WHEN,
         "'bernoulli(0.5)'; did you mean bernoulli(p,period)?"),
        ("--availability=weekly", "availability", _WHEN, "'weekly'"),
        ("--concurrency=0", "concurrency", "an integer from 1 to 2147483647", "0"),
        ("--work_correlation=2", "work_correlation", "a number from -1 to 1", "2.0"),
        ("--file=a.npz --rule=paper --availability=always", "availability", "with rounds, clock",
         "with --rule=paper"),
        ("--file=a.npz --rule=paper --round_seconds=1", "round_seconds", "with rounds",
         "with --rule=paper"),
        ("--file=a.npz --rule=rounds --step=constant(1)", "step", "with clock",
         "with --rule=rounds"),
        ("--file=a.npz --round_seconds=1", "round_seconds", "with rounds", "with --rule=clock"),
        ("--file=a.npz --max_delay=1", "max_delay", "with paper, rounds (--max_staleness limits",
         "with --rule=clock"),
        ("--file=a.npz --rate=1", "rate", _RATE, "1.0 with --start=replace"),
        ("--file=a.npz --start=poisson", "rate", _RATE, "None with --start=poisson"),
        ("--file=a.npz --on_timeout=skip", "on_timeout", "with --timeout", "without"),
        ("--file=a.npz --capacity=b --download=constant(1)", "download", "without --capacity",
         "with it"),
        ("--file=a.npz --rule=rounds --capacity=b", "capacity", "with clock", "with --rule=rounds"),
        ("--file=a.npz --schedule_file=b", "schedule_file", "--show=PATH",
         "with a schedule to make"),
        ("--file=a.npz --resume", "resume", "--overwrite", "with a schedule to make"),
        ("--file=a.npz --dataset=stackoverflow --model=tags --partition=natural --data_dir=x "
         "--availability=label(1)", "availability", "a model without labels with --dataset=",
         "label"),
        ("--file=a.npz --batch_size=0", "batch_size", "an integer from 1 to 2147483647", "0"),
        ("--show=a.npz --rule=clock", "show", "with --num_clients, --overwrite alone",
         "with --rule"),
        ("--show=a.npz --file=b.npz", "show", "with --num_clients, --overwrite alone",
         "with --file"),
        ("--show=a.txt", "show", _NPZ, "'a.txt'"),
    ],
)  # fmt: skip
def test_flags_that_are_refused(capsys, words, name, expected, found):
    assert run(*words.split()) == 2
    said = capsys.readouterr()
    assert_refused(said.err, f"schedule: --{name}: expected {expected}", found)
    assert said.out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--show=nowhere.npz", "schedule file nowhere.npz: No such file or directory"),
        (f"{_DIGITS} --step=constant(-1)",
         "--step=constant(-1): value: expected a finite number >= 0, found -1.0"),
        (f"{_DIGITS} --availability=csv(b)", "b: No such file or directory"),
        (f"{_DIGITS} --capacity=b", "b: No such file or directory"),
        (_NEVER, "clock: expected a next round with this availability and these limits, found "
         "none from second 0 to 0.99"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_leaves_nothing(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ccfl_jax.clock.event_clock._FRUITLESS", 1000)
    assert run(*words.split()) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and not list(tmp_path.iterdir())
    assert said.err.startswith(f"schedule: {message}")


@pytest.mark.parametrize("name", ["digits", "synthetic", "fmnist_cnn"])
def test_presets_are_words_of_the_command(name):
    """Training's words too, as the last one's max_delay; a server rate is not needed."""
    line = [f"--preset={name}", "--file=a{seed}.npz", "--seed=7"]
    asked = schedule_flags.parse_schedule(["schedule", *line])
    assert asked.file == Path("a7.npz") and asked.options.rule == "clock"
    assert not hasattr(asked.options, "max_delay")


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_command_writes_the_same_files_and_shows_what_it_wrote(tmp_path, capsys):
    line = [*BASE, "--seed=3", "--availability=label_diurnal"]
    for name in ("a", "b"):
        assert run(*line, f"--file={tmp_path}/{name}/s{{seed}}.npz") == 0
    out = capsys.readouterr().out.splitlines()
    made, again = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert [*made] == ["s3.log.npz", "s3.npz", "s3.png"] and made["s3.png"][:4] == b"\x89PNG"
    assert made == again
    file = tmp_path / "a" / "s3.npz"
    written = [line for line in out if line.startswith("written")]
    assert written[:3] == [f"written   {path}" for path in make.files(file)]

    assert run(f"--show={file}") == 0  # its picture is there
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1].startswith(f"picture   {file.with_suffix('.png')} ")
    different = {a[:9] for a, b in zip(shown[:-1], out, strict=False) if a != b}
    assert different == {"history  ", "theorem  "}  # megabytes, and steps, that need the data
    file.with_suffix(".png").unlink()
    assert run(f"--show={file}", "--num_clients=12") == 0
    assert file.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    assert contents(tmp_path / "a") != made  # sorted by another key
    assert capsys.readouterr().out.splitlines()[-1] == f"written   {file.with_suffix('.png')}"
    assert run(f"--show={file}", "--num_clients=11") == 2
    assert_refused(capsys.readouterr().err, "schedule: schedule: expected one of 11", "one of 12")


def test_files_that_are_there_are_kept_unless_they_may_go(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(make.schedule_figure, "draw", lambda *args: args[2].write_bytes(b"drawn"))
    file = tmp_path / "a.npz"
    for there in make.files(file):
        there.write_bytes(b"mine")
        assert run(*BASE, f"--file={file}") == 2
        expected = f"schedule: {there}: expected a new name, or --overwrite"
        assert_refused(capsys.readouterr().err, expected, "a file")
        assert there.read_bytes() == b"mine"
        there.unlink()
    assert run(*BASE, f"--file={file}") == 0
    clock = dict(np.load(file))
    assert run(*BASE[:-1], "--rule=paper", f"--file={file}", "--overwrite") == 0
    assert [*contents(tmp_path)] == ["a.npz", "a.png"]  # no log of another schedule stays
    assert not np.array_equal(np.load(file)["client"], clock["client"]) and "time" in clock
    assert "time      no clock" in capsys.readouterr().out
