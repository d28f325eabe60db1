"""experiments/results.py and claims.py: what is chosen, and whether a claim held."""

import csv
import json
import math

import numpy as np
import pytest

from experiments.config import run_flags
from experiments.config.sweep_flags import Trial
from experiments.paper import claims, presets
from experiments.sweeps import results, runner, selection
from experiments.sweeps.results import Record
from experiments.training import parts, run

ROW = {
    "round": 0,
    "train_accuracy": None,
    "test_loss": None,
    "test_accuracy": 0.1,
    "seconds": 0.0,
    "diverged": False,
}


def made(name, scores, status="finished", rounds=10, server=None, seed=0, **config):
    """A record with an evaluation every two rounds, whose scores are `scores`, training ones +1."""
    rows = [
        {
            "round": 2 * k,
            "train_loss": None,
            "train_accuracy": None if score is None or k == 0 else score + 1,
            "test_loss": 0.0,
            "test_accuracy": score,
        }
        for k, score in enumerate(scores)
    ]
    varied = dict(word.split("=") for word in name.split())
    config = {"server": server or varied["server"], "seed": seed, "rounds": rounds, **config}
    return Record(name, varied, status, None, config, rows)


def test_the_last_fifth_of_the_rounds():
    """Of 10 rounds those after 8: round 10 alone; of 20, those after 16: 18 and 20."""
    assert selection.tail_mean(made("server=a", range(6)), "test") == 5
    long = made("server=a", range(11), rounds=20)
    assert selection.tail_mean(long, "test") == 9.5
    assert selection.tail_mean(long, "train") == 10.5


def test_the_fifth_before_a_share_of_the_rounds():
    """0.6 of 20 rounds: after 8, up to 12."""
    assert selection.tail_mean(made("server=a", range(11), rounds=20), "test", 0.6) == 5.5


@pytest.mark.parametrize("status", ["diverged", "failed"])
def test_what_did_not_finish_has_no_mean(status):
    assert selection.tail_mean(made("server=a", range(6), status), "test") is None
    assert selection.tail_mean(made("server=a", [0, 1, 2, 3, 4, None]), "test") is None


def test_a_setting_is_chosen_by_training_over_its_seeds():
    """Means 3.5, 4 and none: one seed of the third diverged, whatever the other reached."""
    trials = [
        made("server=a server_lr=1 seed=0", [0] * 5 + [5]),
        made("server=a server_lr=1 seed=1", [0] * 5 + [2], seed=1),
        made("server=a server_lr=2 seed=0", [0] * 5 + [4]),
        made("server=a server_lr=2 seed=1", [0] * 5 + [4], seed=1),
        made("server=a server_lr=3 seed=0", [0] * 5 + [9]),
        made("server=a server_lr=3 seed=1", [0] * 5 + [9], "diverged", seed=1),
    ]
    assert selection.best(trials) == "server=a server_lr=2"
    choice = selection.choices(trials)["a"]
    assert (choice.train, choice.test, choice.diverged) == (5, 4, 1)
    assert selection.best(trials[4:]) is None


def test_choosing_by_test_is_stated_where_it_differs():
    trials = [made(f"server=a server_lr={k}", [0] * 5 + [k]) for k in (1, 2)]
    trials[0].rows[-1]["train_accuracy"] = 7
    choice = selection.choices(trials)["a"]
    assert (choice.chosen, choice.by_test) == ("server=a server_lr=1", "server=a server_lr=2")
    assert "by test data server=a server_lr=2" in selection.line(choice)


def test_of_equals_the_first():
    trials = [made(f"server=a server_lr={k}", [0] * 5 + [1]) for k in (3, 1, 2)]
    assert selection.best(trials) == "server=a server_lr=3"


def preset(claims, vary=None):
    return presets.Preset("x", "X", [], {}, [], vary or {}, claims)


ABOVE = {"better": ["a", "b"], "than": "base", "points": 10}


def finals(**scores):
    """server=scores of its seeds, the last evaluation's test scores."""
    return [
        made(f"server={server} seed={seed}", [0.0] * 5 + [score], server=server, seed=seed)
        for server, own in scores.items()
        for seed, score in enumerate(own)
    ]


def test_margins_are_paired_by_seed():
    """a - base: 20 and 10 points, mean 15, sample deviation sqrt(50); b - base: 11 and 13."""
    found = finals(base=[0.5, 0.6], a=[0.7, 0.7], b=[0.61, 0.73])
    (ruling,) = claims.judge(preset([ABOVE]), found)
    (a, spread), (b, _) = ruling["margins"]["a"], ruling["margins"]["b"]
    assert (a, b) == (pytest.approx(15), pytest.approx(12))
    assert spread == pytest.approx(math.sqrt(50))
    assert ruling["holds"]
    assert "+15.0 (spread 7.1)" in claims.line(ruling)


@pytest.mark.parametrize(
    ("scores", "holds"),
    [
        ({"base": [0.5], "a": [0.7], "b": [0.61]}, True),
        ({"base": [0.5], "a": [0.7], "b": [0.59]}, False),  # 9 points are not over 10
        ({"base": [0.5], "a": [None], "b": [0.9]}, False),
        ({"base": [None], "a": [0.9], "b": [0.9]}, False),
        ({"a": [0.9], "b": [0.9]}, None),  # nothing to compare with
        ({"base": [0.1]}, None),
    ],
)
def test_a_claim_holds_where_every_margin_does(scores, holds):
    (ruling,) = claims.judge(preset([ABOVE]), finals(**scores))
    assert ruling["holds"] is holds
    said = {True: ": holds", False: "does NOT hold", None: "not judged"}[holds]
    assert claims.line(ruling).endswith(said)


def test_one_seed_has_no_spread():
    (ruling,) = claims.judge(preset([ABOVE]), finals(base=[0.5], a=[0.7], b=[0.7]))
    assert ruling["margins"]["a"][1] is None


def test_a_claim_about_training_and_an_earlier_round():
    """Training scores are the test scores + 1 in all: at 60 % of ten rounds the rows of round 6."""
    trials = [
        made("server=base", [0, 0, 0, 0.1, 0.5, 0.9]),
        made("server=a", [0, 0, 0, 0.4, 0.5, 0.6]),
    ]
    claim = {"better": ["a"], "than": "base", "points": 10}
    early, late, training = claims.judge(
        preset([claim | {"at": 0.6}, claim, claim | {"at": 0.6, "part": "train"}]), trials
    )
    assert early["margins"]["a"][0] == pytest.approx(30) and early["holds"]
    assert late["margins"]["a"][0] == pytest.approx(-30) and not late["holds"]
    assert training["margins"]["a"][0] == pytest.approx(30)
    assert "at 60% of the rounds" in early["claim"]


def test_a_sensitivity_claim_counts_the_values_in_its_range():
    values = {0.0: 0.3, 0.5: 0.4, 0.9: 0.8, 0.95: 0.75}
    trials = [made("server=base seed=0", [0] * 5 + [0.5], b1=None)]
    trials += [
        made(f"server=a b1={value} seed=0", [0] * 5 + [score], b1=value)
        for value, score in values.items()
    ]
    claim = {"better": ["a"], "than": "base", "points": 0}
    every, above = claims.judge(
        preset([claim, claim | {"from": 0.7}], {"b1": list(values)}), trials
    )
    assert not every["holds"] and len(every["margins"]) == 4
    assert above["holds"] and set(above["margins"]) == {"a b1=0.9", "a b1=0.95"}
    points, line = selection.by_value(trials, "b1")
    assert points == {"a": {value: [score] for value, score in values.items()}}
    assert line == ("base", [0.5])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not readable as JSON"),
        ("{", "not readable as JSON"),
        ("\udcff", "not readable as JSON"),
        ("[" * 100_000, "not readable as JSON"),
        ('{"rows": [NaN]}', "not readable as JSON"),
        ("[]", "found no record of a trial"),
        ("{}", "found no record of a trial"),
        ('{"config": 3}', "found no record of a trial"),
    ],
)
def test_a_damaged_record_is_refused_with_its_name(tmp_path, content, message):
    trial = Trial({"server_lr": "1"}, run_flags.parse(["x", "--server_lr=1"]))
    results.write(tmp_path, results.failed(trial, ValueError("no")))
    (path,) = (tmp_path / results.TRIALS).iterdir()
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=f"server_lr=1.json: {message}"):
        results.read(tmp_path, {"server_lr=1": trial})


@pytest.mark.parametrize(
    "change",
    [{"name": "server_lr=2"}, {"status": "won"}, {"status": []}, {"config": []}, {"rows": {}}],
)
def test_a_record_of_another_form_is_refused(tmp_path, change):
    trial = Trial({"server_lr": "1"}, run_flags.parse(["x", "--server_lr=1"]))
    one = results.made(trial, [ROW])
    results.write(tmp_path, one)
    (path,) = (tmp_path / results.TRIALS).iterdir()
    path.write_text(json.dumps({**one._asdict(), **change}))
    with pytest.raises(
        ValueError, match=r"found (no record of a trial|a record of 'server_lr=2'), "
    ):
        results.read(tmp_path, {"server_lr=1": trial})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "found in row 0 no 'round'"),
        ([3], "found in row 0 no 'round'"),
        ([{**ROW, "round": 0.0}], "found in row 0 no 'round'"),
        ([{**ROW, "round": -1}], "found in row 0 no 'round'"),
        ([ROW, ROW], "found in row 1 no 'round'"),
        ([{**ROW, "round": 10**400}], "found in row 0 no 'round'"),
        ([{**ROW, "test_accuracy": "0.1"}], "found in row 0 no 'test_accuracy'"),
        ([{**ROW, "test_accuracy": True}], "found in row 0 no 'test_accuracy'"),
        ([{**ROW, "train_accuracy": 1e300}], "found in row 0 no 'train_accuracy'"),
        (
            [ROW, {"round": 1, "seconds": 1.0, "test_accuracy": 0.1}],
            "found in row 1 no 'train_accuracy'",
        ),
        ([{"round": 0, "seconds": 0, "test_loss": 0.1}], "found in row 0 no 'train_score'"),
        ([{**ROW, "seconds": None}], "found in row 0 no 'seconds'"),
    ],
)
def test_what_cannot_be_rows_is_refused_by_its_place(rows, message):
    results.check_rows([ROW, {**ROW, "round": 5, "train_accuracy": 1}], "file", ("seconds",))
    with pytest.raises(ValueError) as error:
        results.check_rows(rows, "file", ("seconds",))
    assert str(error.value).startswith(f"file: {message} as it should be, legal: rows with")


@pytest.mark.parametrize("name", ["../x", "a/b", "/x", "server=a seed=../../1"])
def test_a_trial_whose_name_is_a_path_is_refused(tmp_path, name):
    trial = Trial({"server_lr": "1"}, run_flags.parse(["x", "--server_lr=1"]))
    one = results.failed(trial, ValueError("no"))._replace(name=name)
    with pytest.raises(ValueError, match="expected a name for a file in trials, found a path"):
        results.write(tmp_path, one)
    with pytest.raises(ValueError, match="found a path"):
        results.read(tmp_path, {name: trial})
    assert not list(tmp_path.iterdir())


def test_records_come_back_and_failed_ones_do_not(tmp_path):
    config = run_flags.parse(["x", "--server_lr=1"])
    row = {**ROW, "diverged": True}
    one, two, three = (Trial({"a": str(k), "b": "2"}, config) for k in (1, 2, 3))
    results.write(tmp_path, results.made(one, [row]))
    results.write(tmp_path, results.failed(two, MemoryError("all\nof it")))
    trials = {"a=1 b=2": one, "a=2 b=2": two, "a=3 b=2": three}
    found = results.read(tmp_path, trials)
    assert found == {"a=1 b=2": results.made(one, [row])}
    assert found["a=1 b=2"].status == "diverged" and found["a=1 b=2"].varied == one.varied
    text = (tmp_path / results.TRIALS / "a=2,b=2.json").read_text()
    assert "MemoryError: all of it" in text


def test_records_with_and_without_the_new_columns_stand_in_one_table(tmp_path):
    old, new = made("server=a", [0.1]), made("server=b", [0.2])
    new.rows[0].update({"bytes_sent": 10**12 + 1, "virtual_time": 0.5})
    results.write_table(tmp_path / results.RESULTS, [old, new])
    with open(tmp_path / results.RESULTS) as file:
        found = [(row["bytes_sent"], row["virtual_time"]) for row in csv.DictReader(file)]
    assert found == [("", ""), ("1000000000001", "0.5")]


_RUN = [
    "x", "--dataset=digits", "--model=logistic", "--num_clients=12", "--buffer_size=3",
    "--max_delay=2", "--local_epochs=1", "--server_lr=0.1", "--devices=1", "--eval_every=2",
    "--compilation_cache=off", "--noprogress", "--rounds=5",
]  # fmt: skip


def _clocked(config, plain=parts.schedule):
    """The paper's schedule with a clock, empty slots and slots without work; another one a seed."""
    (made, history), rng = plain(config), np.random.default_rng(config.seed)
    present, work = (rng.random((2, 50, 3)) < 0.7)[:, : config.rounds]
    time = np.cumsum(rng.exponential(60.0, 50))[: config.rounds]
    return made.replace(present=present, work=made.work * work, time=time), history


def _check_rows(config, rows, ends):
    """Rows after `ends` rounds; a model is 64 * 10 + 10 numbers of four bytes."""
    made, _ = _clocked(config)
    uploads = [int((made.present & (made.work > 0))[:end].sum()) for end in ends]
    assert [row["round"] for row in rows] == ends
    for name in ("bytes_sent", "bytes_received"):
        assert [row[name] for row in rows] == [2600 * n for n in uploads]
    assert [row["virtual_time"] for row in rows] == [0.0, *made.time[np.array(ends[1:]) - 1]]


def test_rows_of_a_run_that_was_interrupted_have_bytes_and_virtual_time(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "schedule", _clocked)
    line = [*_RUN, f"--out_dir={tmp_path / 'a'}"]
    run.run(run_flags.parse([*line, "--rounds=3"]))
    config = run_flags.parse([*line, "--rounds=6", "--resume"])
    _check_rows(config, run.run(config)[1], [0, 2, 3, 4, 6])


def test_rows_of_trials_with_a_schedule_each_have_bytes_and_virtual_time(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "schedule", _clocked)
    trials = {
        f"seed={seed}": Trial({"seed": str(seed)}, run_flags.parse([*_RUN, f"--seed={seed}"]))
        for seed in (0, 1)
    }
    for one in runner.run(trials, tmp_path / "sweep"):
        _check_rows(trials[one.name].config, one.rows, [0, 2, 4, 5])


def test_records_of_the_first_sweeps_say_in_their_names_what_was_varied(tmp_path):
    trial = Trial({"server_lr": "1", "seed": "0"}, run_flags.parse(["x", "--server_lr=1"]))
    results.write(tmp_path, results.made(trial, [ROW]))
    (path,) = (tmp_path / results.TRIALS).iterdir()
    kept = json.loads(path.read_text())
    del kept["varied"]
    path.write_text(json.dumps(kept))
    assert results.read(tmp_path, {"server_lr=1 seed=0": trial}) == {
        "server_lr=1 seed=0": results.made(trial, [ROW])
    }
