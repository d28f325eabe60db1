"""A sweep continues from its folder alone."""

import json

import pytest
from event_files import events, numbers_of
from small_runs import SMALL, without_clocks

from ccfl_jax.runs import callbacks
from experiments import compare, reproduce, sweep
from experiments.config.sweep_file import SWEEP_FILE
from experiments.config.sweep_flags import parse_sweep
from experiments.sweeps import results

pytestmark = pytest.mark.usefixtures("undrawn")
OWN = ["--rounds=4", "--eval_every=2", "--devices=1", "--compilation_cache=off", "--noprogress"]
VARY = "--vary=alpha=0.5,5 server_lr=0.1,0.3"


def rows(folder):
    return {one.name: without_clocks(one.rows) for one in results.read_all(folder)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps") / "whole"
    assert sweep.main(["sweep", *SMALL, *OWN, VARY, f"--out_dir={folder}"]) == 0
    return folder


@pytest.mark.parametrize("how", ["--resume", "--resume=auto"])
def test_a_sweep_that_was_stopped_goes_on_from_its_folder_alone(whole, tmp_path, capsys, how):
    """Stopped before the second trial; lanes and devices are as the command says now."""
    folder = tmp_path / "s"
    with pytest.MonkeyPatch.context() as patch:
        write, count = results.write, []

        def write_one(*arguments):
            if count:
                raise KeyboardInterrupt
            count.append(write(*arguments))

        patch.setattr(results, "write", write_one)
        with pytest.raises(KeyboardInterrupt):
            sweep.main(["sweep", *SMALL, *OWN, VARY, f"--out_dir={folder}"])
    assert len(rows(folder)) == 1 and (folder / SWEEP_FILE).exists()
    capsys.readouterr()
    assert sweep.main(["sweep", how, f"--out_dir={folder}", "--lanes=1", "--tensorboard"]) == 0
    assert "4 trials, 1 of them done before, 1 unfinished" in capsys.readouterr().out
    assert rows(folder) == rows(whole)
    assert_events(folder)
    saved = json.loads((folder / SWEEP_FILE).read_text())
    assert saved["written"]["lanes"] == 1 and saved["written"]["vary"] == VARY.partition("=")[2]
    assert saved["written"]["progress"] is False and saved["environment"]["date"]
    assert not {"out_dir", "resume"} & {*saved["written"], *saved["of_files"]}


def assert_events(folder):
    """Each trial, also one that was done before the flag was given, has event files of its rows."""
    every = results.read_all(folder)
    for one in every:
        own = folder / callbacks.EVENTS / one.name.replace(" ", ",")
        assert events(own) == numbers_of(one.rows)
    assert len([*(folder / callbacks.EVENTS).iterdir()]) == len(every) == 4


def test_nothing_is_left_to_do(whole, capsys):
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    assert sweep.main(["sweep", "--resume", f"--out_dir={whole}"]) == 0
    assert "trial  " not in capsys.readouterr().out
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_a_method_comes_before_a_preset_as_it_did(tmp_path):
    """The preset's server is that of no method; the rate of the command line is of all."""
    words = ["sweep", "--preset=digits", "--local_lr=0.3", "--vary=method=fedavgm,slowmo"]
    first = parse_sweep([*words, f"--out_dir={tmp_path}"])
    (tmp_path / SWEEP_FILE).write_text(json.dumps(first.flags))
    again = parse_sweep(["sweep", "--resume", f"--out_dir={tmp_path}"])
    assert again == first and len(first.trials) == 2
    assert {trial.config.server for trial in first.trials.values()} == {"fedavgm", "slowmo"}
    other = parse_sweep(["sweep", "--resume", f"--out_dir={tmp_path}", "--server_lr=3"])
    assert {trial.config.server_lr for trial in other.trials.values()} == {3.0}


def test_another_setting_is_refused(whole, refuses):
    message = f"{whole}/trials/...: expected the same settings, ..., found batch_size 20 -> 7"
    refuses(message, sweep.main, "sweep", "--resume", f"--out_dir={whole}", "--batch_size=7")


@pytest.mark.parametrize("how", ["--resume", "--resume=auto"])
def test_a_folder_of_no_sweep(tmp_path, refuses, how):
    found = f"{tmp_path}: expected the folder of a sweep, found no {SWEEP_FILE}"
    message = found if how == "--resume" else "--vary: expected a value, found none"
    refuses(message, sweep.main, "sweep", how, f"--out_dir={tmp_path}")
    assert not [*tmp_path.iterdir()]
    refuses("--out_dir: expected a value, found none", sweep.main, "sweep", how, VARY)


_PARTS = "{}: expected flags of a sweep in of_files, written, found"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "{}: expected JSON, found Expecting property name ..."),
        ("[]", f"{_PARTS} None"),
        ('{"written": {}}', f"{_PARTS} None"),
        ('{"of_files": {}, "written": {"out_dir": "x"}}', f"{_PARTS} {{{{'out_dir': 'x'}}}}"),
        ('{"of_files": {}, "written": {"flagfile": "x"}}', f"{_PARTS} ..."),
        ('{"of_files": {}, "written": {"alpha": -1}}', "{}: --alpha: expected ..., found -1.0"),
        ('{"of_files": {"alpha": [1]}, "written": {}}', "{}: --alpha: expected ..., found '[1]'"),
    ],
)
def test_a_damaged_file_is_refused_by_its_name(tmp_path, refuses, content, message):
    (tmp_path / SWEEP_FILE).write_text(content)
    message = message.format(tmp_path / SWEEP_FILE)
    refuses(message, sweep.main, "sweep", "--resume", f"--out_dir={tmp_path}")


@pytest.mark.parametrize("argv", [["compare"], ["reproduce", "fig1_alpha3"]])
def test_commands_that_tune_take_the_same_command_again(refuses, argv):
    main = {"compare": compare.main, "reproduce": reproduce.main}[argv[0]]
    message = "--resume: expected the same command again, ..., found with tuned trials"
    refuses(message, main, *argv, "--resume", "--out_dir=x")
