"""What is written on a command line or in a file: paths, values of a sweep, numbers."""

import jax
import pytest
from problems import softmax_task
from refusal import ended, matches, refused
from small_runs import SMALL, line

import ccfl_jax as ccfl
from experiments import bench, debian_corpus, schedule, sweep, train
from experiments.config import (
    bench_flags,
    flag,
    plot_flags,
    reproduce_flags,
    run_flags,
    schedule_flags,
    sweep_flags,
)
from experiments.config.expression import AVAILABILITIES, DISTRIBUTIONS, expression

TABLES = {
    "run": run_flags.RUN,
    "sweep": sweep_flags.SWEEP,
    "plot": plot_flags.PLOT,
    "schedule": schedule_flags.SCHEDULE,
    "bench": bench_flags.BENCH,
    "reproduce": reproduce_flags.REPRODUCE,
    "corpus": debian_corpus.CORPUS,
}
NO_PATHS = {"vary", "fetch", "coordinator"}  # with the same domain


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_nf_24_a_leading_tilde_is_the_home_folder_in_every_path(home):
    """Of every command; a shell leaves it in --out_dir=~/x."""
    texts, found = {"~/x": f"{home}/x", "~": f"{home}", "./~": "./~", "a~": "a~"}, set()
    for known in TABLES.values():
        for name, one in known.items():
            if one.domain in (flag.PATH, flag.UTF8_PATH) and name not in NO_PATHS:
                for text, path in texts.items():
                    assert flag.read(["", f"--{name}={text}"], known).values[name] == path
                found.add(name)
    assert found == {"data_dir", "schedule_file", "out_dir", "compilation_cache", "file", "show",
                     "capacity", "json"}  # fmt: skip


def test_nf_24_in_flag_files_and_in_front_of_them_too(home):
    home.mkdir()
    (home / "f.flags").write_text("--out_dir=~/y\n--server_lr=0.1\n--flagfile=~/g.flags\n")
    (home / "g.flags").write_text("--data_dir=~/z\n")
    config = run_flags.parse(["train", "--flagfile=~/f.flags"])
    assert (config.out_dir, config.data_dir) == (f"{home}/y", f"{home}/z")


def test_nf_24_no_folder_named_tilde_is_made(home, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("experiments.figures.schedule_figure.draw", lambda *args: None)
    made = [*SMALL[:4], "--rounds=3", "--world=paper", "--file=~/s.npz"]
    said = ended(0, capsys, schedule.main, "schedule", *made).out
    assert f"written   {home}/s.npz" in said
    ended(0, capsys, schedule.main, "schedule", "--show=~/s.npz", "--overwrite")
    told = ended(2, capsys, schedule.main, "schedule", *SMALL[:4], "--file=~/t.npz",
                 "--availability=csv(~/a.csv)")  # fmt: skip
    assert f"{home}/a.csv: No such file" in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize(("vary", "message"), [
    ("server_lr=0.01,1e-2", "found 'server_lr=0.01' and 'server_lr=1e-2'"),
    ("server_lr=0.01,1e-2 seed=1,2", "found 'server_lr=0.01 seed=1' and 'server_lr=1e-2 seed=1'"),
    ("seed=1,01", "found 'seed=1' and 'seed=01'"),
    ("seed=1,2,+1", "found 'seed=1' and 'seed=+1'"),
    ("local_lr=0,-0.0,0.5", "found 'local_lr=0' and 'local_lr=-0.0'"),
    ("b2=.9,0.90", "found 'b2=.9' and 'b2=0.90'"),
    ("rule=fedprox,fedprox(mu=1e-2)", "found 'rule=fedprox' and 'rule=fedprox(mu=1e-2)'"),
    ("upload=clip(1)+sign,clip(1.0)+sign(0)", "found 'upload=clip(1)+sign' and ...sign(0)'"),
    ("target=loss<=.5,loss<=0.50", "found 'target=loss<=.5' and 'target=loss<=0.50'"),
    ("server_lr=0.1,0.1", None),
])  # fmt: skip
def test_nf_26_values_of_a_sweep_are_compared_as_numbers(capsys, vary, message):
    argv = ["sweep", *SMALL, "--server_lr=0.1", "--out_dir=a", f"--vary={vary}"]
    message = f"trials with different settings, {message}" if message else "NAME=VALUE,...found ..."
    matches(f"sweep: --vary: expected {message}\n", ended(2, capsys, sweep.main, *argv).err)


def test_nf_26_different_values_are_different_trials():
    argv = ["sweep", *SMALL, "--server_lr=0.1", "--out_dir=a"]
    for vary, count in (
        ("server_lr=0.1,0.2 seed=1,2", 4),
        ("local_lr=0,1e-37", 2),
        ("rule=none,fedprox,fedprox(0.1),feddyn", 4),
    ):
        assert len(sweep_flags.parse_sweep([*argv, f"--vary={vary}"]).trials) == count


SMALL_NUMBERS = ["1e-400", "1e-46", "1.1e-38", "-1e-50", "0.0000001e-40"]
NO_NUMBERS = ["1_0", "0x1p3", "\u0663", "1,5", "1e", "1 0"]


@pytest.mark.parametrize("text", [*SMALL_NUMBERS, *NO_NUMBERS])
def test_point_7_numbers_that_would_be_others_are_refused_wherever_they_are_written(
    tmp_path, capsys, text
):
    """A flag, its file, a sweep's value, an expression's argument."""
    file = tmp_path / "f.flags"
    file.write_text(f"--local_lr={text}\n")
    for argv in (line(f"--local_lr={text}"), line(f"--flagfile={file}")):
        said = ended(2, capsys, train.main, *argv).err
        matches("train: --local_lr: expected ..., found ...\n", said)
        assert repr(text) in said
    if not {" ", ","} & {*text}:  # which separate values
        said = ended(2, capsys, sweep.main, "sweep", *SMALL, "--server_lr=1", "--out_dir=a",
                     f"--vary=local_lr=0.5,{text}").err  # fmt: skip
        matches("sweep: --local_lr: expected ..., found ...\n", said)
    for name, known in (("step", "constant"), ("availability", "label")):
        argv = ["schedule", *SMALL[:4], "--file=a.npz", f"--{name}={known}({text})"]
        matches(f"schedule: --{name}: expected ..., found ...\n",
                ended(2, capsys, schedule.main, *argv).err)  # fmt: skip
    argv = ["schedule", *SMALL[:4], "--file=a.npz", f"--work_correlation={text}"]
    matches("schedule: --work_correlation: expected ..., found ...\n",
            ended(2, capsys, schedule.main, *argv).err)  # fmt: skip
    argv = ["bench", f"--seconds={text}"]
    matches("bench: --seconds: expected ..., found ...\n", ended(2, capsys, bench.main, *argv).err)


@pytest.mark.parametrize("text", ["0", "-0.0", "0e-400", "0.000", ".5", "1e-37", "5E-1", "+0.5"])
def test_point_7_all_other_numbers_are_themselves(text):
    assert run_flags.parse(line(f"--local_lr={text}")).local_lr == float(text)
    assert expression(f"constant({text})", DISTRIBUTIONS) == ("constant", (float(text),))
    assert expression(f"label({text})", AVAILABILITIES) == ("label", (float(text),))


LATIN = "--server_lr=0.1\n# caf\u00e9\n"


@pytest.mark.parametrize("how", ["--flagfile=f.flags", "--flagfile f.flags", "--flagfile=g.flags"])
def test_a_flag_file_in_latin_1_is_refused_by_name(tmp_path, capsys, how):
    """Also where another file names it."""
    (tmp_path / "f.flags").write_bytes(LATIN.encode("latin-1"))
    (tmp_path / "g.flags").write_text("--flagfile=f.flags\n")
    named = how[-7:]
    matches(f"train: --flagfile: expected {named}, and files named in it, in UTF-8, found 'utf-8' "
            "codec can't decode byte 0xe9 ...\n",
            ended(2, capsys, train.main, *line(*how.split())).err)  # fmt: skip
    (tmp_path / "f.flags").write_text(LATIN)
    assert run_flags.parse(["train", *how.split()]).server_lr == 0.1


def test_a_run_folder_of_no_text_is_refused_before_anything_is_made(tmp_path, capsys):
    """Orbax could not write its name, after all the work."""
    told = ended(2, capsys, train.main, *line("--rounds=2", "--out_dir=a\udcfc")).err
    assert told == "train: --out_dir: expected a path in UTF-8, found 'a\\udcfc'\n"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("number", [1e-46, 1e-39, 1e39])
def test_point_7_numbers_that_float32_does_not_hold_are_refused_from_code_too(number):
    """As 0 or inf they would train nothing; in float64 they are numbers."""
    made = {
        "learning_rate": lambda: ccfl.cc_fedams(number),
        "local": lambda: ccfl.build_round(softmax_task(), ccfl.cc_fedavg(), number),
        "mu": lambda: ccfl.systems.fedprox(number),
    }
    for name, call in made.items():
        refused(f"{name}: expected 0, or a number of float32 (or jax_enable_x64), found {number}",
                call)  # fmt: skip
    with jax.enable_x64(True):
        assert [call() for call in made.values()]
