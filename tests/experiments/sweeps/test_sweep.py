"""experiments/sweep.py and group.py: a grid by few programs, each trial as if it ran alone."""

import csv
import json
import shutil

import pytest
from small_runs import SMALL

import ccfl_jax as ccfl
from experiments import sweep
from experiments.config import run_flags
from experiments.config.sweep_flags import parse_sweep
from experiments.sweeps import results, trial_group
from experiments.training import devices, parts, run

_HUNDRED = ",".join(map(str, range(100)))
_BASE = [*SMALL, "--rounds=6", "--eval_every=2", "--devices=2", "--compilation_cache=off"]
_VARY = "--vary=server=cc_fedsgd,cc_fedams server_lr=0.1,1,1e20 seed=0,1"


def _args(folder, *args):
    return ["sweep", *_BASE, f"--out_dir={folder}", *args]


def _files(folder):
    return {path.name: path.read_bytes() for path in (folder / results.TRIALS).iterdir()}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Twelve trials of two methods, with how often a round was traced, and the exit code."""
    folder, traced = tmp_path_factory.mktemp("sweep") / "a", []
    plain = parts.round_at

    def counting(config, *rest):
        run = plain(config, *rest)

        def counted(*arguments):
            traced.append(config.server)
            return run(*arguments)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "round_at", counting)
        code = sweep.main(_args(folder, _VARY))
    return folder, traced, code


def test_every_trial_and_evaluation_is_in_the_results(swept):
    folder, _, code = swept
    with open(folder / results.RESULTS) as file:
        rows = list(csv.DictReader(file))
    trials = parse_sweep(_args(folder, _VARY)).trials
    assert len(trials) == 12 and {row["trial"] for row in rows} == set(trials)
    finished = [row for row in rows if "1e20" not in row["trial"]]
    assert [row["round"] for row in finished] == ["0", "2", "4", "6"] * 8
    assert code == 3  # trials at rate 1e20 diverge


def test_a_method_is_traced_for_one_program_and_no_more(swept):
    """The body of the loop is traced a few times on the way to a program: alike for both."""
    _, traced, _ = swept
    once = traced.count("cc_fedsgd")
    assert traced == ["cc_fedsgd"] * once + ["cc_fedams"] * once and once <= 4


@pytest.mark.parametrize("server", ["cc_fedsgd", "cc_fedams"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_trial_is_the_single_run(swept, tmp_path, server, seed):
    one = results.read(swept[0], parse_sweep(_args(swept[0], _VARY)).trials)
    one = one[f"server={server} server_lr=0.1 seed={seed}"]
    own = [f"--server={server}", "--server_lr=0.1", f"--seed={seed}", f"--out_dir={tmp_path / 'r'}"]
    _, rows = run.run(run_flags.parse(["train", *_BASE, "--devices=1", "--noprogress", *own]))
    assert len(rows) == len(one.rows)
    for ours, alone in zip(one.rows, rows, strict=True):
        assert list(ours) == list(alone)
        for name in ours.keys() - {"seconds", "compile_seconds"}:
            assert ours[name] == (
                alone[name] if alone[name] is None else pytest.approx(alone[name], rel=1e-6)
            )


def test_methods_of_one_seed_start_from_the_same(swept):
    """The same initial model and clients, so comparisons are paired; another seed differs."""
    done = results.read(swept[0], parse_sweep(_args(swept[0], _VARY)).trials).values()
    first = {(one.config["seed"], one.rows[0]["test_loss"]) for one in done}
    assert len(first) == 2
    samples = {(one.config["seed"], one.rows[1]["samples"]) for one in done}
    assert len(samples) == 2


def test_diverged_trials_are_marked_and_never_chosen(swept):
    folder = swept[0]
    done = results.read(folder, parse_sweep(_args(folder, _VARY)).trials)
    assert {name for name, one in done.items() if one.status == "diverged"} == {
        f"server={server} server_lr=1e20 seed={seed}"
        for server in ("cc_fedsgd", "cc_fedams")
        for seed in (0, 1)
    }
    chosen = json.loads((folder / results.SUMMARY).read_text())
    assert all("1e20" not in choice["chosen"] for choice in chosen.values())
    assert all(choice["diverged"] == 2 for choice in chosen.values())


def test_a_sweep_that_is_started_again_redoes_nothing(swept, monkeypatch):
    folder, _, _ = swept
    before, asked = _files(folder), []
    (folder / results.TRIALS / "server=cc_fedams,server_lr=1,seed=1.json").unlink()
    plain = trial_group.program

    def watched(group, configs):
        asked.extend(configs)
        return plain(group, configs)

    monkeypatch.setattr(trial_group, "program", watched)
    assert sweep.main(_args(folder, _VARY)) == 3
    assert [(c.server, c.server_lr, c.seed) for c in asked] == [("cc_fedams", 1.0, 1)]
    after = _files(folder)
    redone = "server=cc_fedams,server_lr=1,seed=1.json"
    assert {n: a for n, a in after.items() if n != redone} == {
        n: b for n, b in before.items() if n != redone
    }
    old, new = (json.loads(f[redone])["rows"][-1]["test_loss"] for f in (before, after))
    assert new == pytest.approx(old, rel=1e-6)


def test_another_setting_under_the_same_names_is_refused(swept, capsys):
    folder, before = swept[0], _files(swept[0])
    assert sweep.main(_args(folder, _VARY, "--rounds=8")) == 2
    error = capsys.readouterr().err
    assert "rounds 6 -> 8" in error and len(error.splitlines()) == 1
    assert _files(folder) == before


def test_a_failing_trial_is_recorded_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    plain = parts.clients

    def clients(config, data):
        if config.seed == 1:
            raise ValueError("seed 1 cannot be dealt out")
        return plain(config, data)

    args = _args(tmp_path / "f", "--server=cc_fedsgd", "--vary=server_lr=0.1 seed=0,1,2")
    with monkeypatch.context() as patch:
        patch.setattr(parts, "clients", clients)
        assert sweep.main(args) == 4
    done = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "f/trials").iterdir()}
    assert {name: one["status"] for name, one in done.items()} == {
        "server_lr=0.1,seed=0": "finished",
        "server_lr=0.1,seed=1": "failed",
        "server_lr=0.1,seed=2": "finished",
    }
    assert done["server_lr=0.1,seed=1"]["reason"] == "ValueError: seed 1 cannot be dealt out"
    assert "seed 1 cannot be dealt out" in capsys.readouterr().out
    assert sweep.main(args) == 0  # a failed one is tried again


def test_data_that_cannot_be_read_are_said_once_and_nothing_is_written(tmp_path, capsys):
    args = ["sweep", "--dataset=fashion_mnist", f"--data_dir={tmp_path}", "--devices=1"]
    args += ["--compilation_cache=off", "--vary=server_lr=0.1,1", f"--out_dir={tmp_path / 'o'}"]
    assert sweep.main(args) == 2
    error = capsys.readouterr().err
    assert "missing: train-images-idx3-ubyte" in error and len(error.splitlines()) == 1
    assert not (tmp_path / "o").exists()


def test_trials_whose_own_data_cannot_be_read_fail_alone(tmp_path, monkeypatch):
    """As with clients drawn by the seed: one draw is impossible, the other is not."""
    plain = parts.source

    def source(config):
        return (*plain(config)[:1], "nowhere") if config.seed else plain(config)

    def load(dataset, data_dir):
        if data_dir:
            raise FileNotFoundError(f"{data_dir}: nothing there")
        return *ccfl.load_dataset(dataset), 0

    monkeypatch.setattr(parts, "source", source)
    monkeypatch.setattr(parts, "load", load)
    args = _args(tmp_path / "o", "--server=cc_fedsgd", "--vary=server_lr=0.1 seed=0,1")
    assert sweep.main(args) == 4
    done = [json.loads(path.read_text()) for path in sorted((tmp_path / "o/trials").iterdir())]
    assert [one["status"] for one in done] == ["finished", "failed"]
    assert done[1]["reason"] == "FileNotFoundError: nowhere: nothing there"


def test_all_trials_of_a_group_may_end_early(tmp_path):
    """Nothing is trained after the last finite model: rows stop where each trial broke."""
    args = _args(tmp_path / "d", "--vary=server_lr=1e30,1e35", "--server=cc_fedsgd")
    assert sweep.main(args) == 3
    for path in (tmp_path / "d/trials").iterdir():
        rows = json.loads(path.read_text())["rows"]
        assert rows[-1]["diverged"] and not rows[0]["diverged"]
        assert [row["round"] for row in rows] == list(range(0, 2 * len(rows), 2))


def test_seconds_of_a_trial_are_its_share(swept):
    """Useful samples per second of a trial are then those of the machine, not of a part of it."""
    done = results.read(swept[0], parse_sweep(_args(swept[0], _VARY)).trials)
    pair = [done[f"server=cc_fedsgd server_lr=0.1 seed={seed}"] for seed in (0, 1)]
    assert pair[0].rows[-1]["seconds"] == pair[1].rows[-1]["seconds"] > 0


def test_memory_of_a_trial():
    """Logistic regression on 8x8 digits has 650 parameters: twice model, server and history of 3
    models with their versions, round and no key; and four models for each lane, here three."""
    config = run_flags.parse(["x", *_BASE, "--server=cc_fedams", "--server_lr=1"])
    ground = trial_group.ground(devices.mesh(1), parts.source(config), config.model, "float32")
    group = trial_group.group(config, config.max_delay + 1, parts.schedule, ground)
    floats = 650 * (1 + 3 + 3)  # parameters; mu, nu and nu_hat; history
    assert trial_group.at_once(group, None) == (
        2 * (4 * floats + 4 + 4 + 4 * 3) + 3 * 4 * 4 * 650,
        1,
        None,
    )


def test_overwriting_a_sweep(swept, tmp_path, capsys):
    folder = tmp_path / "o"
    shutil.copytree(swept[0], folder)
    args = _args(folder, "--server=cc_fedsgd", "--vary=server_lr=0.1,1", "--rounds=2")
    (folder / "notes.txt").write_text("mine")
    before = _files(folder)
    assert sweep.main([*args, "--overwrite"]) == 2
    assert "expected to overwrite, found notes.txt" in capsys.readouterr().err
    assert _files(folder) == before
    (folder / "notes.txt").unlink()
    assert sweep.main([*args, "--overwrite"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "results.csv",
        "summary.json",
        "trials",
    ]
    assert len([*(folder / "trials").iterdir()]) == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--vary=rounds=1,2"], "--vary: found 'rounds=1,2'"),
        (["--vary=server_lr"], "--vary: found 'server_lr'"),
        (["--vary=server_lr=1,1"], "--vary: found 'server_lr=1,1'"),
        (["--vary=server_lr=1,"], "--vary: found 'server_lr=1,'"),
        (["--vary=seed=1 seed=2"], "--vary: found 'seed=2'"),
        (
            [f"--vary=seed={_HUNDRED} local_lr={_HUNDRED},100"],
            "--vary: expected at most 10000, found 10100 combinations",
        ),
        (["--vary=server_lr=-1"], "--server_lr: found -1"),
        (["--vary=server_lr=fast"], "--server_lr: found 'fast'"),
        (["--vary=server=cc_fedavg,cc_fedsgd server_lr=0.1"], "--server_lr: found 0.1"),
        (["--vary=server=cc_fedsgd b1=0.5"], "--b1: found with --server=cc_fedsgd"),
        ([], "--vary: found none"),
        (["--vary=seed=0", "--resume"], "--resume: found with a sweep"),
        (["--vary=seed=0", "--data_memory=1"], "--data_memory: found with a sweep"),
        (["--vary=seed=0", "--smoothness=1"], "--smoothness: found with a sweep"),
        (["--vary=seed=0", "--trial_memory=0"], "--trial_memory: found 0"),
        (
            ["--vary=seed=0", "--batch=3"],
            "--batch: expected flags of --help, found on the command line; did you mean --batch_",
        ),
    ],
)
def test_a_wrong_sweep_is_refused_in_a_line(tmp_path, capsys, args, message):
    server = [] if "server" in "".join(args) else ["--server_lr=1"]
    assert sweep.main(_args(tmp_path / "x", *server, *args)) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_out_dir_is_needed(capsys):
    assert sweep.main(["sweep", *_BASE, "--vary=server_lr=1"]) == 2
    assert "--out_dir: found none" in capsys.readouterr().err


def test_help_names_what_a_sweep_has_besides(capsys):
    assert sweep.main(["sweep", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--vary" in out and max(map(len, out.splitlines())) <= 100
