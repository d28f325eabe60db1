"""A sweep over any flag that changes a result: its programs, its choices, its tables."""

import csv
import json
import math
import statistics

import pytest
from problems import counting
from small_runs import SMALL

from experiments import sweep
from experiments.config import run_flags
from experiments.config.sweep_flags import parse_sweep
from experiments.sweeps import results, selection
from experiments.sweeps.results import Record
from experiments.training import parts, run

BASE = [*SMALL, "--server=cc_fedsgd", "--rounds=4", "--eval_every=2", "--compilation_cache=off"]
pytestmark = pytest.mark.usefixtures("undrawn")


def swept(folder, *args):
    """The records of a sweep by name."""
    assert sweep.main(["sweep", *BASE, "--devices=2", f"--out_dir={folder}", *args]) == 0
    return {one.name: one for one in results.read_all(folder)}


@pytest.fixture
def programs(monkeypatch):
    """The programs that are built, each as a list of its traces."""
    built, plain = [], parts.round_at

    def round_at(*arguments):
        function, traces = counting(plain(*arguments))
        built.append(traces)
        return function

    monkeypatch.setattr(parts, "round_at", round_at)
    return built


def is_the_single_run(one, folder, *args):
    words = [f"--{name}={value}" for name, value in one.varied.items() if value != "none"]
    own = ["train", *BASE, "--devices=1", "--noprogress", *args, *words]
    _, rows = run.run(run_flags.parse([*own, f"--out_dir={folder / 'alone'}", "--overwrite"]))
    for ours, theirs in zip(one.rows, rows, strict=True):
        for name in theirs.keys() - {"seconds", "compile_seconds"}:
            assert ours[name] == theirs[name] or ours[name] == pytest.approx(theirs[name], rel=1e-5)


def test_trials_that_differ_in_arrays_alone_are_one_program(tmp_path, programs):
    """Which client has which samples, and how much each does, of three seeds."""
    vary = "--vary=alpha=0.1,1 local_epochs=1,2 randomness=1,2 init_seed=0,1"
    found = swept(tmp_path / "s", "--server_lr=0.5", vary)
    assert len(programs) == 1 and len(found) == 16
    for name in ("alpha=0.1 local_epochs=2 randomness=1", "alpha=1 local_epochs=1 randomness=2"):
        is_the_single_run(found[f"{name} init_seed=1"], tmp_path, "--server_lr=0.5")


def test_other_shapes_and_parts_are_programs_of_their_own(tmp_path, programs):
    vary = "--vary=model=logistic,mlp max_delay=0,2 attack=none,sign_flip(0.3)"
    found = swept(tmp_path / "s", "--server_lr=0.5", vary)
    assert len(programs) == 8 == len(found)
    for name in ("model=mlp max_delay=2 attack=none", "model=logistic max_delay=0 attack=sign"):
        (one,) = (one for own, one in found.items() if own.startswith(name))
        is_the_single_run(one, tmp_path, "--server_lr=0.5")
    saved = json.loads((tmp_path / "s" / "provenance.json").read_text())
    names = {f"{n}[model={m},max_delay={d},seed=0]" for n in ("clients", "schedule")
             for m in ("logistic", "mlp") for d in (0, 2)}  # fmt: skip
    assert {name for name in saved if "seed=" in name} == names


def test_what_varies_has_a_column_and_a_setting_its_mean_and_error(tmp_path):
    """Of four rounds the last fifth is the last row."""
    args = "--vary=batch_size=10,20 seed=0,1,2", "--server_lr=0.5", "--validation=0.1"
    found = swept(tmp_path / "s", *args)
    with open(tmp_path / "s" / results.RESULTS, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]][:4] == ["trial", "status", "batch_size", "seed"]
    assert {(row["batch_size"], row["seed"]) for row in rows} == {
        (size, seed) for size in ("10", "20") for seed in "012"
    }
    summary = json.loads((tmp_path / "s" / results.SUMMARY).read_text())
    for size in (10, 20):
        for part in ("train", "validation", "test"):
            last = [found[f"batch_size={size} seed={seed}"].rows[-1] for seed in range(3)]
            scores = [row[f"{part}_accuracy"] for row in last]
            own = summary["settings"][f"batch_size={size}"][part]
            assert own["of_seeds"] == scores
            assert own["mean"] == pytest.approx(sum(scores) / 3)
            error = statistics.stdev(scores) / math.sqrt(3)
            assert own["standard_error"] == pytest.approx(error)
    assert [*summary["choices"]] == ["cc_fedsgd"]  # a batch size is chosen, as a rate


def test_a_mean_and_its_error():
    """Of 1 and 3: mean 2, s = sqrt(2), error 1."""
    assert selection.mean_and_error([1.0, 3.0]) == (2.0, pytest.approx(1.0), [1.0, 3.0])
    assert str(selection.mean_and_error([1.0, 3.0])) == "2.0000 ± 1.0000"
    assert str(selection.mean_and_error([0.5])) == "0.5000"
    assert selection.mean_and_error([1.0, None])[:2] == (None, None)
    assert str(selection.mean_and_error([1.0, None])) == "1 of 2 finished"


def scored(score, seed=0, **varied):
    """A trial of cc_fedsgd with this score in the last of ten rounds."""
    varied = {name: str(value) for name, value in varied.items()} | {"seed": str(seed)}
    row = {"round": 10, "train_accuracy": score, "test_accuracy": score}
    config = {"server": "cc_fedsgd", "rounds": 10, "seed": seed}
    name = " ".join(f"{name}={value}" for name, value in varied.items())
    return Record(name, varied, "finished", None, config, [row])


def test_the_best_setting_is_one_of_each_problem():
    """The large alpha is easier, and the best rate of the small one is another."""
    scores = {(0.1, 1): 0.3, (0.1, 10): 0.5, (5, 1): 0.9, (5, 10): 0.7}
    trials = [
        scored(score + seed / 100, seed, alpha=alpha, server_lr=rate)
        for (alpha, rate), score in scores.items()
        for seed in (0, 1)
    ]
    choices = selection.choices(trials)
    assert {name: one.chosen for name, one in choices.items()} == {
        "cc_fedsgd alpha=0.1": "alpha=0.1 server_lr=10",
        "cc_fedsgd alpha=5": "alpha=5 server_lr=1",
    }
    tried = [one.varied for one in trials] + [{"alpha": "5", "server_lr": "0.1"}]
    assert selection.on_edge(choices["cc_fedsgd alpha=0.1"].varied, tried) == ["server_lr"]
    assert selection.on_edge(choices["cc_fedsgd alpha=5"].varied, tried) == []


def test_what_none_leaves_unset():
    """The flag of the command line, too; `normalise` has a none of its own."""
    words = ["sweep", *BASE, "--out_dir=x", "--server_lr=1", "--attack=ipm(0.2)", "--rule=fedpa"]
    found = parse_sweep([*words, "--vary=attack=none,sign_flip(0.2,3) normalise=none,steps"])
    values = {(t.config.attack, t.config.normalise, t.config.rule) for t in found.trials.values()}
    every = [(attack, how) for attack in (None, "sign_flip(0.2,3)") for how in ("none", "steps")]
    assert values == {(attack, how, "fedpa") for attack, how in every}


def test_a_folder_is_not_shared_by_sweeps_of_other_settings(tmp_path, refuses):
    """It is where they vary others; not where flags that do not vary differ."""
    folder = tmp_path / "s"
    swept(folder, "--server_lr=0.5", "--vary=partition=iid,dirichlet")
    swept(folder, "--server_lr=0.5", "--vary=alpha=0.5,5")
    for more, found in (
        (["--server_lr=1"], "server_lr 0.5 -> 1.0"),
        (["--server_lr=0.5", "--batch_size=7"], "batch_size 20 -> 7"),
    ):
        message = f"{folder / results.TRIALS}/...: expected the same settings, ..., found {found}"
        words = [*BASE, "--devices=2", *more, "--vary=seed=3", f"--out_dir={folder}"]
        refuses(message, sweep.main, "sweep", *words)
