"""A comparison: the same arrivals, the same budget, chosen by held-out samples."""

import csv
import json

import numpy as np
import pytest
from refusal import ended
from small_runs import SMALL

import ccfl_jax as ccfl
from experiments import compare
from experiments.arena import plan, scores
from experiments.config import compare_flags
from experiments.config.methods import METHODS, SERVERS
from experiments.sweeps import results, selection
from experiments.sweeps.results import Record

WORDS = [
    *SMALL, "--rounds=10", "--eval_every=2", "--methods=fedprox,cc_fedams",
    "--worlds=paper,devices", "--budget=3", "--seeds=2", "--tune_rounds=6",
    "--target=accuracy>=0.2",
]  # fmt: skip


@pytest.fixture(scope="module")
def compared(tmp_path_factory, quickly_compiled):
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.figures.curves.draw_methods", lambda *args: None)
        assert compare.main(["compare", *WORDS, f"--out_dir={folder}"]) == 0
    return folder


def records(folder, stage):
    return results.read_all(folder / stage)


@pytest.mark.parametrize("world", ["paper", "devices"])
def test_the_setting_with_the_best_held_out_score_is_trained_with_every_seed(compared, world):
    tried, final = (records(compared / world, stage) for stage in ("tuning", "final"))
    assert len(tried) == 2 * 3 and len(final) == 2 * 2
    for method in ("fedprox", "cc_fedams"):
        own = [one for one in tried if one.config["method"] == method]
        held = {one.setting: selection.tail_mean(one, "validation") for one in own}
        chosen = [one for one in final if one.config["method"] == method]
        assert len({one.setting for one in chosen}) == 1 < len({*held.values()})
        assert held[chosen[0].setting] == max(held.values())
        assert [one.config["seed"] for one in chosen] == [0, 1]
        assert {one.config["rounds"] for one in own} == {6}
    assert {one.config["validation"] for one in [*tried, *final]} == {0.1}


def test_all_methods_of_a_world_have_one_schedule_a_seed(compared):
    for world in ("paper", "devices"):
        found = json.loads((compared / world / "final/provenance.json").read_text())
        for seed in (0, 1):
            schedule = ccfl.Schedule.load(compared / f"worlds/{world}-{seed}.npz")
            assert found[f"schedule[seed={seed}]"] == schedule.digest()
            assert (schedule.time is None) == (world == "paper")


def test_the_table_has_means_and_standard_errors_of_the_seeds(compared):
    with open(compared / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["world"] for row in rows] == ["paper", "paper", "devices", "devices"]
    for world in ("paper", "devices"):
        final = records(compared / world, "final")
        for row in (row for row in rows if row["world"] == world):
            own = [one for one in final if one.config["method"] == row["method"]]
            # The last fifth of ten rounds: the row of round 10.
            test = [one.rows[-1]["test_accuracy"] for one in own]
            error = abs(test[0] - test[1]) / 2  # of two values
            assert row["test"] == f"{np.mean(test):.4f} ± {error:.4f}"
            first = [next((r for r in one.rows if r["test_accuracy"] >= 0.2), None) for one in own]
            if None in first:
                assert row["rounds to accuracy>=0.2"] == f"{2 - first.count(None)} of 2"
                continue
            assert float(row["rounds to accuracy>=0.2"]) == np.mean([r["round"] for r in first])
            sent = np.mean([r["bytes_sent"] for r in first]) / 1e6
            assert float(row["MB sent to accuracy>=0.2"]) == pytest.approx(sent, rel=1e-3)
            seconds = np.mean([r["seconds"] for r in first])
            assert float(row["seconds to accuracy>=0.2"]) == pytest.approx(seconds, rel=1e-3)
            assert (row["hours to accuracy>=0.2"] == "") == (world == "paper")
    assert (compared / "table.md").read_text().startswith("| world | method | local_lr |")


def test_the_same_command_trains_nothing_again(compared, capsys):
    kept = {path: path.stat().st_mtime_ns for path in compared.rglob("trials/*.json")}
    table = (compared / "table.csv").read_text()
    out = ended(0, capsys, compare.main, "compare", *WORDS, f"--out_dir={compared}").out
    assert "trial     " not in out and "schedule  " not in out
    assert {path: path.stat().st_mtime_ns for path in compared.rglob("trials/*.json")} == kept
    assert (compared / "table.csv").read_text() == table


def test_nf_03_other_schedules_than_those_there_are_refused_until_they_are_accepted(
    compared, refuses, capsys
):
    """The delays are in the schedules alone, which the trials have by name."""
    words = "compare", *WORDS, f"--out_dir={compared}", "--max_delay=1"
    place, found = compared / "worlds/paper-0.npz", "found schedule[seed=0] ... -> ..."
    before = place.read_bytes()
    refuses(f"{place}: expected results of one provenance ..., {found}", compare.main, *words)
    ended(0, capsys, compare.main, *words, "--accept_changed=schedule")
    assert place.read_bytes() == before


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_same_budget(method):
    ranges = compare_flags.ranges("")
    found = plan.settings(method, 7, ranges, set())
    assert len(found) == 7
    rates = {*found[0]}
    assert ("eps" in rates) == ("eps" in SERVERS[METHODS[method]["server"]])
    assert rates <= {"local_lr", "server_lr", "eps"}
    for one in found:
        low, high = ranges["local_lr"]
        assert low * 0.99 <= float(one["local_lr"]) <= high * 1.01
    same = plan.settings("fedavg", 7, ranges, set())
    assert [one["local_lr"] for one in found] == [one["local_lr"] for one in same]


def test_given_rates_are_not_tuned():
    ranges = compare_flags.ranges("")
    found = plan.settings("cc_fedams", 4, ranges, {"local_lr", "eps"})
    assert [*found[0]] == ["server_lr"] and len(found) == 4
    assert plan.settings("cc_fedavg", 4, ranges, {"local_lr"}) == [{}]


def test_given_ranges_take_the_place_of_the_usual_ones():
    """The same points of a range: log10 of a rate moves with the logs of the range's ends."""
    usual = compare_flags.ranges("")
    own = compare_flags.ranges("local_lr(0.3,30)+adaptive(0.1,10)")
    assert own == usual | {"local_lr": (0.3, 30.0), "adaptive": (0.1, 10.0)}
    for before, after in zip(
        *(plan.settings("cc_fedams", 5, ranges, set()) for ranges in (usual, own)), strict=True
    ):
        assert before["eps"] == after["eps"]
        for name, key in (("local_lr", "local_lr"), ("server_lr", "adaptive")):
            (a, b), (c, d) = np.log10(usual[key]), np.log10(own[key])
            u = (np.log10(float(before[name])) - a) / (b - a)
            assert float(after[name]) == pytest.approx(10 ** (c + u * (d - c)), rel=0.2)


def test_a_target_that_some_seed_misses_is_counted():
    def record(seed, accuracy):
        head = {"virtual_time": None, "bytes_sent": 2_000_000, "client_updates": 30, "seconds": 4}
        rows = [
            {"round": t, "test_accuracy": a, "validation_accuracy": a, **head}
            for t, a in enumerate(accuracy)
        ]
        config = {"method": "fedavg", "server": "cc_fedsgd", "rounds": 2, "seed": seed}
        return Record("", {"method": "fedavg"}, "finished", None, config, rows)

    final = [record(0, [0.1, 0.6, 0.4]), record(1, [0.1, 0.2, 0.3])]
    (row,) = scores.table(final, "accuracy>=0.5")
    assert row["rounds to accuracy>=0.5"] == row["MB sent to accuracy>=0.5"] == "1 of 2"
    (row,) = scores.table(final, "accuracy>=0.25")
    assert [row[f"{name} to accuracy>=0.25"] for name in ("rounds", "MB sent", "updates")] == [
        "1.5",
        "2",
        "30",
    ]
    assert row["test"] == "0.3500 ± 0.0500"  # 0.4 and 0.3
    lost = final[1]._replace(status="diverged")
    assert scores.table([final[0], lost], None)[0]["test"] == "1 of 2 finished"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--out_dir: expected a value, found none"),
        (["--out_dir=o", "--method=fedavg"], "--method: expected in --methods, ..., found alone"),
        (["--out_dir=o", "--seed=3"], "--seed: expected in --methods, --worlds, --seeds, ..."),
        (["--out_dir=o", "--methods=fedavg,fedavg"], "--methods: expected of cc_fedavg, ..."),
        (["--out_dir=o", "--ranges=eps(1,1)"], "--ranges: expected ..., found 'eps(1,1)'"),
        (["--out_dir=o", "--target=0.8"], "--target: expected NAME>=NUMBER or ..., found '0.8'"),
        (
            ["--out_dir=o", "--target=acc>=1", *SMALL],
            "--target: expected a metric of the task, ...",
        ),
        (["--out_dir=o", "--worlds=moon"], "--worlds: expected of paper, ..., found 'moon'..."),
        (["--out_dir=o", "--local_lr=-1"], "--local_lr: expected a number ..., found -1.0"),
    ],
)
def test_a_wrong_comparison_is_refused_in_a_line(refuses, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    refuses(message, compare.main, "compare", *words)
    assert not [*tmp_path.iterdir()]
