"""sweeps/results.py, selection.py and paper/claims.py: what is read, what is chosen, what held."""

import csv
import json
import math
from urllib.parse import quote

import pytest
from refusal import refused

from experiments.config import run_flags
from experiments.config.sweep_flags import Trial
from experiments.paper import claims, presets
from experiments.sweeps import results, selection
from experiments.sweeps.results import Record

ROW = {"round": 0, "train_accuracy": None, "test_loss": None, "test_accuracy": 0.1}
ROW |= {"seconds": 0.0, "diverged": False}


def made(name, scores, status="finished", rounds=10, **config):
    """A record with an evaluation every two rounds, whose scores are `scores`, training ones +1."""
    rows = [
        {"round": 2 * k, "train_loss": None, "test_loss": 0.0, "test_accuracy": score,
         "train_accuracy": None if score is None or k == 0 else score + 1}
        for k, score in enumerate(scores)
    ]  # fmt: skip
    varied = dict(word.split("=") for word in name.split())
    config = {"server": varied["server"], "seed": int(varied.get("seed", 0))} | config
    return Record(name, varied, status, None, config | {"rounds": rounds}, rows)


def test_a_score_is_the_mean_over_a_fifth_of_the_rounds_of_what_finished():
    assert selection.tail_mean(made("server=a", range(6)), "test") == 5  # of 10 the one after 8
    long = made("server=a", range(11), rounds=20)
    assert selection.tail_mean(long, "test") == 9.5  # of 18 and 20
    assert selection.tail_mean(long, "train") == 10.5
    assert selection.tail_mean(long, "test", 0.6) == 5.5  # of 10 and 12
    for status, last in (("diverged", 5), ("failed", 5), ("finished", None)):
        assert selection.tail_mean(made("server=a", [0] * 5 + [last], status), "test") is None


def test_a_setting_is_chosen_by_training_over_its_seeds():
    """Means 3.5, 4 and none: one seed of the third diverged, whatever the other reached."""
    last = [(1, 0, 5), (1, 1, 2), (2, 0, 4), (2, 1, 4), (3, 0, 9), (3, 1, 9)]
    names = "server=a server_lr={} seed={}".format
    trials = [made(names(rate, seed), [0] * 5 + [score]) for rate, seed, score in last]
    trials[-1] = trials[-1]._replace(status="diverged")
    assert selection.best(trials) == "server=a server_lr=2"
    choice = selection.choices(trials)["a"]
    assert (choice.train, choice.test, choice.diverged) == (5, 4, 1)
    assert selection.best(trials[4:]) is None
    equal = [made(f"server=a server_lr={k}", [0] * 5 + [1]) for k in (3, 1, 2)]
    assert selection.best(equal) == "server=a server_lr=3"  # the first


def test_of_errors_the_lowest_is_chosen():
    trials = [made(f"server=a server_lr={k}", [0] * 5 + [k]) for k in (2, 1, 3)]
    for one in trials:
        for row in one.rows:
            for part in ("train", "test"):
                row[f"{part}_mean_absolute_error"] = row.pop(f"{part}_accuracy")
    assert selection.best(trials) == "server=a server_lr=1"
    assert selection.best(trials[2:] + trials[:1]) == "server=a server_lr=2"


def test_held_out_samples_choose_where_there_are_some():
    """Training ranks 2 above 1, the held-out samples 1 above 2."""
    trials = [made(f"server=a server_lr={k}", [0] * 5 + [k], validation=0.1) for k in (1, 2)]
    for one, score in zip(trials, (0.9, 0.8), strict=True):
        one.rows[-1]["validation_accuracy"] = score
    choice = selection.choices(trials)["a"]
    assert (choice.chosen, choice.validation) == ("server=a server_lr=1", 0.9)
    assert "train 2.0000, held-out 0.9000, test 1.0000" in selection.line(choice)
    trials[0].config["validation"] = None
    assert selection.choices(trials)["a"].chosen == "server=a server_lr=2"


def test_choosing_by_test_is_stated_where_it_differs():
    trials = [made(f"server=a server_lr={k}", [0] * 5 + [k]) for k in (1, 2)]
    trials[0].rows[-1]["train_accuracy"] = 7
    choice = selection.choices(trials)["a"]
    assert (choice.chosen, choice.by_test) == ("server=a server_lr=1", "server=a server_lr=2")
    assert "by test data server=a server_lr=2" in selection.line(choice)


def judged(trials, *its, vary=None):
    return claims.judge(presets.Preset("x", "X", [], {}, [], vary or {}, its), trials)


ABOVE = {"better": ["a", "b"], "than": "base", "points": 10}


def finals(**scores):
    """server=scores of its seeds, the last evaluation's test scores."""
    return [
        made(f"server={server} seed={seed}", [0.0] * 5 + [score])
        for server, own in scores.items()
        for seed, score in enumerate(own)
    ]


def test_margins_are_paired_by_seed():
    """a - base: 20 and 10 points, mean 15, sample deviation sqrt(50); b - base: 11 and 13."""
    (ruling,) = judged(finals(base=[0.5, 0.6], a=[0.7, 0.7], b=[0.61, 0.73]), ABOVE)
    (a, spread), (b, _) = ruling["margins"]["a"], ruling["margins"]["b"]
    assert (a, b, spread) == pytest.approx((15, 12, math.sqrt(50)))
    assert ruling["holds"] and "+15.0 (spread 7.1)" in claims.line(ruling)


@pytest.mark.parametrize(("scores", "holds"), [
    ({"base": [0.5], "a": [0.7], "b": [0.61]}, True),
    ({"base": [0.5], "a": [0.7], "b": [0.59]}, False),  # 9 points are not over 10
    ({"base": [0.5], "a": [None], "b": [0.9]}, False),
    ({"base": [None], "a": [0.9], "b": [0.9]}, False),
    ({"a": [0.9], "b": [0.9]}, None),  # nothing to compare with
    ({"base": [0.1]}, None),
])  # fmt: skip
def test_a_claim_holds_where_every_margin_does(scores, holds):
    (ruling,) = judged(finals(**scores), ABOVE)
    assert ruling["holds"] is holds
    assert all(spread is None for _, spread in ruling["margins"].values())  # of a single seed
    said = {True: ": holds", False: "does NOT hold", None: "not judged"}[holds]
    assert claims.line(ruling).endswith(said)


def test_a_claim_about_training_and_an_earlier_round():
    """Training scores are the test scores + 1 in all: at 60 % of ten rounds the rows of round 6."""
    scores = {"base": [0, 0, 0, 0.1, 0.5, 0.9], "a": [0, 0, 0, 0.4, 0.5, 0.6]}
    trials = [made(f"server={name}", own) for name, own in scores.items()]
    claim = {"better": ["a"], "than": "base", "points": 10}
    at = claim | {"at": 0.6}
    found = judged(trials, at, claim, at | {"part": "train"})
    assert [one["margins"]["a"][0] for one in found] == pytest.approx([30, -30, 30])
    assert [one["holds"] for one in found] == [True, False, True]
    assert "at 60% of the rounds" in found[0]["claim"]


def test_a_sensitivity_claim_counts_the_values_in_its_range():
    values = {0.0: 0.3, 0.5: 0.4, 0.9: 0.8, 0.95: 0.75}
    trials = [made("server=base seed=0", [0] * 5 + [0.5], b1=None)]
    for value, score in values.items():
        trials.append(made(f"server=a b1={value} seed=0", [0] * 5 + [score], b1=value))
    claim = {"better": ["a"], "than": "base", "points": 0}
    every, above = judged(trials, claim, claim | {"from": 0.7}, vary={"b1": list(values)})
    assert not every["holds"] and len(every["margins"]) == 4
    assert above["holds"] and set(above["margins"]) == {"a b1=0.9", "a b1=0.95"}
    points = {"a": {value: [score] for value, score in values.items()}}
    assert selection.by_value(trials, "b1") == (points, ("base", [0.5]))


def written(folder, change=lambda text: text, name="server_lr=1", row=ROW):
    """A record that was written and then changed; and its trial by its name."""
    varied = dict(word.split("=") for word in name.split())
    trial = Trial(varied, run_flags.parse(["x", "--server_lr=1"]))
    results.write(folder, results.made(trial, [row]))
    (path,) = (folder / results.TRIALS).iterdir()
    path.write_bytes(change(path.read_text()).encode(errors="surrogateescape"))
    return path, {name: trial}


_FIELDS = "expected a trial's name, status, config and rows, found"


@pytest.mark.parametrize(("content", "message"), [
    *((text, "expected JSON, found ...") for text in ("", "{", "\udcff", "[" * 9**5)),
    ('{"a": NaN}', "expected numbers, found NaN"),
    *((text, f"{_FIELDS} {text}") for text in ("[]", "{}", "{'config': 3}")),
    *((wrong, f"{_FIELDS} {{'name': ...")
      for wrong in ({"status": "won"}, {"status": []}, {"config": []}, {"rows": {}})),
    ({"name": "server_lr=2"}, "expected the record of 'server_lr=1', found that of 'server_lr=2'"),
])  # fmt: skip
def test_a_damaged_record_is_refused_with_its_name(tmp_path, content, message):
    def change(text):
        whole = isinstance(content, str)
        return content.replace("'", '"') if whole else json.dumps(json.loads(text) | content)

    path, trials = written(tmp_path, change)
    refused(f"{path}: {message}", results.read, tmp_path, trials)


@pytest.mark.parametrize(("rows", "number", "found"), [
    ([], 0, "round None"),
    ([{**ROW, "round": 0.0}], 0, "round 0.0"),
    ([{**ROW, "round": -1}], 0, "round -1"),
    ([ROW, ROW], 1, "round 0"),
    ([{**ROW, "round": 10**400}], 0, "round 1000..."),
    ([{**ROW, "test_accuracy": "0.1"}], 0, "test_accuracy '0.1'"),
    ([{**ROW, "test_accuracy": True}], 0, "test_accuracy True"),
    ([{**ROW, "train_accuracy": 1e300}], 0, "train_accuracy 1e+300"),
    ([ROW, {"round": 1, "seconds": 1.0, "test_accuracy": 0.1}], 1, "train_accuracy None"),
    ([{"round": 0, "seconds": 0, "test_loss": 0.1}], 0, "train_loss None"),
    ([{**ROW, "seconds": None}], 0, "seconds None"),
])  # fmt: skip
def test_what_cannot_be_rows_is_refused_by_its_place(rows, number, found):
    results.check_rows([ROW, {**ROW, "round": 5, "train_accuracy": 1}], "file", ("seconds",))
    expected = "file: expected rows with a rising round and numbers"
    message = f"{expected}, found row {number} with {found}"
    refused(message, results.check_rows, rows, "file", ("seconds",))


@pytest.mark.parametrize("name", ["../x", "a/b", "/x", "dataset=npz(../a b/%2F.npz) seed=1"])
def test_a_path_in_the_name_of_a_trial_is_no_path(tmp_path, name):
    trial = Trial({"server_lr": "1"}, run_flags.parse(["x", "--server_lr=1"]))
    one = results.failed(trial, ValueError("no"))._replace(name=name)
    results.write(tmp_path, one)
    (path,) = (tmp_path / results.TRIALS).iterdir()
    assert path.name == quote(name.replace(" ", ","), safe="(),=") + ".json"
    assert results.read_all(tmp_path) == [one]


def test_records_come_back_and_failed_ones_do_not(tmp_path):
    row = {**ROW, "diverged": True}
    _, trials = written(tmp_path, name="a=1 b=2", row=row)
    one, failing = trials["a=1 b=2"], trials["a=1 b=2"]._replace(varied={"a": "2", "b": "2"})
    results.write(tmp_path, results.failed(failing, MemoryError("all\nof it")))
    (found,) = results.read(tmp_path, trials | {"a=2 b=2": failing, "a=3 b=2": one}).values()
    assert found == results.made(one, [row])
    assert found.status == "diverged" and found.varied == one.varied
    text = (tmp_path / results.TRIALS / "a=2,b=2.json").read_text()
    assert "MemoryError: all of it" in text


def test_records_of_the_first_sweeps_say_in_their_names_what_was_varied(tmp_path):
    name = "server_lr=1 seed=0"
    path, trials = written(tmp_path, name=name)
    kept = {key: value for key, value in json.loads(path.read_text()).items() if key != "varied"}
    path.write_text(json.dumps(kept))
    assert results.read(tmp_path, trials) == {name: results.made(trials[name], [ROW])}


def test_records_with_and_without_the_new_columns_stand_in_one_table(tmp_path):
    old, new = made("server=a", [0.1]), made("server=b", [0.2])
    new.rows[0].update({"bytes_sent": 10**12 + 1, "virtual_time": 1 / 3})
    results.write_table(tmp_path / results.RESULTS, [old, new])
    with open(tmp_path / results.RESULTS) as file:
        found = [(row["bytes_sent"], row["virtual_time"]) for row in csv.DictReader(file)]
    assert found == [("", ""), ("1000000000001", "0.333333")]  # whole, or six digits
