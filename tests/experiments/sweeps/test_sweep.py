"""experiments/sweep.py: a grid by few programs, each trial as if it ran alone."""

import csv
import json
import shutil

import numpy as np
import pytest
from problems import counting
from small_runs import SMALL

import ccfl_jax as ccfl
from experiments import sweep
from experiments.config import run_flags
from experiments.config.sweep_flags import parse_sweep
from experiments.figures import curves
from experiments.sweeps import results, trial_group
from experiments.training import devices, parts, run, run_schedule

_BASE = [*SMALL, "--rounds=6", "--eval_every=4", "--devices=2", "--compilation_cache=off"]
_VARY = "--vary=server=cc_fedsgd,cc_fedams server_lr=0.1,1,1e20 seed=0,1"


def _args(folder, *args):
    return ["sweep", *_BASE, f"--out_dir={folder}", *args]


def _files(folder):
    return {path.name: path.read_bytes() for path in (folder / results.TRIALS).iterdir()}


def _clocked(config, plain=run_schedule.schedule):
    """The paper's schedule with a clock, empty slots and slots without work; another one a seed."""
    (made, history), rng = plain(config), np.random.default_rng(config.seed_of("schedule"))
    present, work = (rng.random((2, 50, 3)) < 0.7)[:, : config.rounds]
    time = np.cumsum(rng.exponential(60.0, 50))[: config.rounds]
    return made.replace(present=present, work=made.work * work, time=time), history


@pytest.fixture(autouse=True)
def clocked(monkeypatch):
    monkeypatch.setattr(run_schedule, "schedule", _clocked)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Twelve trials of two methods: the folder, how often rounds were traced, and the records."""
    folder, traced, plain = tmp_path_factory.mktemp("sweep") / "a", [], parts.round_at

    def round_at(*arguments):
        counted, traces = counting(plain(*arguments))
        traced.append(traces)
        return counted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_schedule, "schedule", _clocked)
        patch.setattr(parts, "round_at", round_at)
        assert sweep.main(_args(folder, _VARY)) == 3  # trials at rate 1e20 diverge
    return folder, traced, results.read(folder, parse_sweep(_args(folder, _VARY)).trials)


def test_every_trial_and_evaluation_is_in_the_results(swept):
    folder, _, done = swept
    rows = [*csv.DictReader((folder / results.RESULTS).read_text().splitlines())]
    assert len(done) == 12 and {row["trial"] for row in rows} == set(done)
    finished = [row for row in rows if "1e20" not in row["trial"]]
    assert [row["round"] for row in finished] == ["0", "4", "6"] * 8


def test_a_method_is_traced_for_one_program_and_no_more(swept):
    """The body of the loop is traced a few times on the way to a program: alike for both."""
    first, second = map(len, swept[1])
    assert 0 < first == second <= 4


@pytest.mark.parametrize("seed", [0, 1])
def test_a_trial_is_the_single_run(swept, tmp_path, monkeypatch, seed):
    """Interrupted after an evaluation; a model is 64 * 10 + 10 numbers of four bytes."""
    monkeypatch.setattr(curves, "draw_curves", lambda *args: None)
    own = ["--server=cc_fedams", "--server_lr=0.1", f"--seed={seed}", f"--out_dir={tmp_path / 'r'}"]
    line = ["train", *_BASE, "--devices=1", "--noprogress", *own]
    run.run(run_flags.parse([*line, "--rounds=4"]))
    config = run_flags.parse([*line, "--resume"])
    _, rows = run.run(config)
    made, ends = _clocked(config)[0], [0, 4, 6]
    uploads = np.array([np.sum((made.present & (made.work > 0))[:end]) for end in ends])
    for ours in (rows, swept[2][f"server=cc_fedams server_lr=0.1 seed={seed}"].rows):
        for name in ("bytes_sent", "bytes_received"):
            assert [row[name] for row in ours] == (2600 * uploads).tolist()
        assert [row["virtual_time"] for row in ours] == [0.0, *made.time[[3, 5]]]
        for one, alone in zip(ours, rows, strict=True):
            assert list(one) == list(alone)
            for name in one.keys() - {"seconds", "compile_seconds"}:
                assert one[name] == alone[name] or one[name] == pytest.approx(alone[name], rel=1e-6)


def test_methods_of_one_seed_start_from_the_same(swept):
    """The same initial model and clients, so comparisons are paired; another seed differs."""
    for number, column in ((0, "test_loss"), (1, "samples")):
        found = {(one.config["seed"], one.rows[number][column]) for one in swept[2].values()}
        assert len(found) == 2 == len({value for _, value in found})


def test_diverged_trials_are_marked_and_never_chosen(swept):
    folder, _, done = swept
    assert all((one.status == "diverged") == ("1e20" in name) for name, one in done.items())
    chosen = json.loads((folder / results.SUMMARY).read_text())["choices"].values()
    assert [("1e20" in one["chosen"], one["diverged"]) for one in chosen] == [(False, 2)] * 2


def test_seconds_of_a_trial_are_its_share(swept):
    """Useful samples per second of a trial are then those of the machine, not of a part of it."""
    pair = [swept[2][f"server=cc_fedsgd server_lr=0.1 seed={seed}"] for seed in (0, 1)]
    assert pair[0].rows[-1]["seconds"] == pair[1].rows[-1]["seconds"] > 0


def test_a_sweep_that_is_started_again_redoes_nothing(swept, capsys):
    folder, before, name = swept[0], _files(swept[0]), "server=cc_fedsgd server_lr=1 seed=1"
    redone = f"{name.replace(' ', ',')}.json"
    (folder / results.TRIALS / redone).unlink()
    assert sweep.main(_args(folder, _VARY)) == 3
    (line,) = [a for a in capsys.readouterr().out.splitlines() if a.startswith("trial ")]
    assert name in line
    after = _files(folder)
    old, new = (json.loads(files.pop(redone))["rows"][-1] for files in (before, after))
    assert after == before and new["test_loss"] == pytest.approx(old["test_loss"], rel=1e-6)


def test_another_setting_under_the_same_names_is_refused(swept, refuses):
    folder, before = swept[0], _files(swept[0])
    path = folder / "trials/server=cc_fedsgd,server_lr=0.1,seed=0.json"
    message = f"{path}: expected the same settings, except ..., found rounds 6 -> 8"
    refuses(message, sweep.main, *_args(folder, _VARY, "--rounds=8"))
    assert _files(folder) == before


def test_overwriting_a_sweep(swept, tmp_path, refuses):
    folder = tmp_path / "o"
    shutil.copytree(swept[0], folder)
    args = _args(folder, "--server=cc_fedsgd", "--vary=server_lr=0.1,1", "--rounds=2")
    (folder / "notes.txt").write_text("mine")
    before = _files(folder)
    message = f"{folder}: expected only {', '.join(results.FILES)} in a ..., found notes.txt"
    refuses(message, sweep.main, *args, "--overwrite")
    assert _files(folder) == before
    (folder / "notes.txt").unlink()
    assert sweep.main([*args, "--overwrite"]) == 0
    names = {"provenance.json", "results.csv", "summary.json", "sweep.json", "trials"}
    assert {path.name for path in folder.iterdir()} == names
    assert len(_files(folder)) == 2


def _clients(config, data, plain=parts.clients):
    if config.seed_of("data") == 0:
        raise ValueError("seed 0 cannot be dealt out")
    return plain(config, data)


def _source(config, plain=parts.source):
    return (*plain(config)[:1], "nowhere" if config.seed == 0 else None)


def _load(dataset, data_dir):
    if data_dir:
        raise FileNotFoundError(f"{data_dir}: nothing there")
    train, test = ccfl.load_dataset(dataset)
    return train, None, test, 0, 10


@pytest.mark.parametrize(("broken", "reason"), [
    ({"clients": _clients}, "ValueError: seed 0 cannot be dealt out"),
    # As with clients drawn by the seed: one draw is impossible, the other is not.
    ({"source": _source, "load": _load}, "FileNotFoundError: nowhere: nothing there"),
])  # fmt: skip
def test_a_failing_trial_is_recorded_and_the_others_go_on(tmp_path, capsys, broken, reason):
    args = _args(tmp_path, "--server=cc_fedsgd", "--vary=server_lr=0.1 seed=0,1")
    with pytest.MonkeyPatch.context() as patch:
        for name, function in broken.items():
            patch.setattr(parts, name, function)
        assert sweep.main(args) == 4
    files = [json.loads(content) for content in _files(tmp_path).values()]
    found = {one["varied"]["seed"]: (one["status"], one["reason"]) for one in files}
    assert found == {"0": ("failed", reason), "1": ("finished", None)}
    assert reason in capsys.readouterr().out
    assert sweep.main(args) == 0  # a failed one is tried again


def test_all_trials_of_a_group_may_end_early(tmp_path):
    """Nothing is trained after the last finite model: rows stop where each trial broke."""
    args = _args(tmp_path, "--vary=server_lr=1e30,1e35", "--server=cc_fedsgd", "--eval_every=2")
    assert sweep.main(args) == 3
    for content in _files(tmp_path).values():
        rows = json.loads(content)["rows"]
        assert rows[-1]["diverged"] and not rows[0]["diverged"]
        assert [row["round"] for row in rows] == list(range(0, 2 * len(rows), 2))


def test_memory_of_a_trial():
    """Logistic regression on 8x8 digits has 650 parameters: twice model, server and history of 3
    models with their versions, round and no key; and four models for each lane, here three."""
    config = run_flags.parse(["x", *_BASE, "--server=cc_fedams", "--server_lr=1"])
    data = trial_group.task_data(devices.mesh(1), parts.source(config), config.model, "float32")
    group = trial_group.group(config, config.max_delay + 1, run_schedule.schedule, data)
    floats = 650 * (1 + 3 + 3)  # parameters; mu, nu and nu_hat; history
    nbytes = 2 * (4 * floats + 4 + 4 + 4 * 3) + 3 * 4 * 4 * 650
    assert trial_group.at_once(group, None) == (nbytes, 1, None)


_AXES = "--vary: expected NAME=VALUE,VALUE,... once for a name, with different values"
_TOO_MANY = "--vary=seed={0} local_lr={0},100".format(",".join(map(str, range(100))))
_VALUE, _SEED = "expected a value, found none", "--vary=seed=0"


@pytest.mark.parametrize(("args", "message"), [
    (["--vary=lanes=1,2"], "--vary: expected a flag that changes a result, found 'lanes=1,2'..."),
    (["--vary=alfa=1,2"], "--vary: expected a flag ..., found 'alfa=1,2'; did you mean alpha?"),
    (["--vary=server_lr"], f"{_AXES}, found 'server_lr'"),
    (["--vary=server_lr=1,1"], f"{_AXES}, found 'server_lr=1,1'"),
    (["--vary=server_lr=1,"], f"{_AXES}, found 'server_lr=1,'"),
    (["--vary=seed=1 seed=2"], f"{_AXES}, found 'seed=2'"),
    ([_TOO_MANY], "--vary: expected at most 10000 combinations, found 10100"),
    (["--vary=server_lr=-1"], "--server_lr: expected a number from 0 to 3.4e38, found -1.0"),
    (["--vary=server=cc_fedavg server_lr=2"], "--server_lr: expected 1, ...=cc_fedavg, of ..."),
    (["--vary=server=cc_fedsgd b1=0"],
     "--b1: expected with cc_fedavgm, ...=cc_fedsgd, of the trial server=cc_fedsgd b1=0"),
    (["--vary=partition=dirichlet,iid alpha=1"],
     "--alpha: expected with dirichlet, ...=iid, of the trial partition=iid alpha=1"),
    (["--vary=attack=none,alie(2)"], "--attack: share: ..., of the trial attack=alie(2)"),
    (["--vary=alpha=none"], "--alpha: expected a number > 0, at most 3.4e38, found 'none'"),
    ([f"--vary=alpha=1.{'0' * 240}"],
     "--vary: expected names of at most 240 characters, found 'alpha=1.0...'"),
    (["--seed=0"], f"--vary: {_VALUE}"),
    ([_SEED, "--smoothness=1"], "--smoothness: expected with a single run, ... with a sweep"),
    ([_SEED, "--data_memory=1"], "--data_memory: expected data that fit ... with a sweep"),
    ([_SEED, "--trial_memory=0"], "--trial_memory: expected a number > 0, ..., found 0.0"),
    (["--vary=server_lr=0.1,1", "--dataset=fashion_mnist", "--data_dir=/nowhere"],
     "Fashion-MNIST: expected train-... in /nowhere, found no train-images-idx3-ubyte, ..."),
    ([_SEED, "--batch=3"], "--batch: expected a flag ...; did you mean --batch_size?"),

])  # fmt: skip
def test_a_wrong_sweep_is_refused_in_a_line(tmp_path, refuses, args, message):
    server = [] if "server" in args[0] else ["--server_lr=1"]
    refuses(message, sweep.main, *_args(tmp_path / "x", *server, *args))
    assert not (tmp_path / "x").exists()


def test_out_dir_is_needed(refuses):
    refuses(f"--out_dir: {_VALUE}", sweep.main, "sweep", *_BASE, "--vary=server_lr=1")
