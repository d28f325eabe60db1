"""Scores of single clients: their own test rows, and clients who never take part."""

import csv
import re

import numpy as np
import pytest
from refusal import ended
from small_runs import SMALL, config_of, near, rows_of, without_clocks

import ccfl_jax as ccfl
from experiments import sweep, train
from experiments.config import run_flags
from experiments.sweeps import results
from experiments.training import client_lists, client_scores, parts, run_setup

OWN = ("--server_lr=0.1", "--rounds=4", "--eval_every=2", "--compilation_cache=off")
TESTED = ("--client_test=0.3", "--unseen_clients=2")
pytestmark = pytest.mark.usefixtures("undrawn")


PERSONAL = (*SMALL, "--model=mlp", "--rounds=30", "--eval_every=30", "--compilation_cache=off")
PERSONAL += ("--alpha=0.05", "--client_test=0.3", "--local_lr=0.02")


@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_each_client_has_test_rows_of_its_own_and_keeps_one_to_train_on(share):
    sizes = [0, 1, 2, 10, 57]
    lists = np.split(np.random.default_rng(0).permutation(70), np.cumsum(sizes)[:-1])
    train, test = client_lists.split(lists, share, 7)
    for n, rows, own, tested in zip(sizes, lists, train, test, strict=True):
        assert sorted([*own, *tested]) == sorted(rows) and not {*own} & {*tested}
        assert len(tested) == (0 if n < 2 else min(max(round(share * n), 1), n - 1))
    again, other = client_lists.split(lists, share, 7)[1], client_lists.split(lists, share, 8)[1]
    assert [a.tolist() for a in again] == [a.tolist() for a in test]
    assert [a.tolist() for a in other] != [a.tolist() for a in test]


def test_unseen_clients_are_drawn_from_the_seed_and_the_others_keep_their_rows():
    lists = [np.arange(k, k + 1) for k in range(9)]
    drawn = []
    for seed in (0, 0, 1):
        seen, unseen = (np.concatenate(own) for own in client_lists.without_unseen(lists, 4, seed))
        assert len(unseen) == 4 and sorted([*seen, *unseen]) == [*range(9)]
        drawn.append(unseen.tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_with_unseen_clients_a_run_trains_on_num_clients_of_them():
    """Twelve train, of fourteen that the data are dealt out to; no row is in two lists."""
    labels = {"y": np.random.default_rng(0).integers(0, 10, 900)}
    plain = parts.dealt(config_of(), labels)
    assert [*plain] == ["train"] and len(plain["train"][1]) == 13
    config = config_of(*TESTED)
    found = parts.dealt(config, labels)
    counts = {name: len(starts) - 1 for name, (_, starts) in found.items()}
    assert counts == {"train": 12, "unseen": 2, "clients": 12}
    every = np.concatenate([rows for rows, _ in found.values()])
    assert sorted(every) == sorted(np.concatenate(parts.clients(config, labels)))
    moved = parts.dealt(config_of(*TESTED, "--data_seed=1"), labels)
    assert moved["clients"][0].tolist() != found["clients"][0].tolist()


def test_clients_of_the_data_are_counted_with_those_who_do_not_take_part(refuses, tmp_path):
    words = ("--dataset=synthetic", "--partition=natural", "--unseen_clients=4")
    message = "--num_clients: expected 96, the clients of synthetic but 4 unseen, found 12 with "
    words += (*OWN, f"--out_dir={tmp_path / 'a'}")
    refuses(message + "--partition=natural", train.main, "train", *SMALL, *words)
    for flag, wrong in (("client_test", "1"), ("unseen_clients", "0")):
        message = f"--{flag}: expected a..., found {wrong}..."
        refuses(message, train.main, "train", *SMALL, f"--{flag}={wrong}")


def test_rows_have_mean_worst_decile_and_variance_over_clients(tmp_path, capsys):
    """As NumPy has them, of each client's rows that the run did not train on."""
    words = [*SMALL, *OWN, *TESTED, f"--out_dir={tmp_path / 'a'}"]
    out = ended(0, capsys, train.main, "train", *words).out
    config = run_flags.parse(["train", *words, "--resume"])
    job = run_setup.prepare(config)
    params, task, problem = job.progress.states.params, job.problem.task, job.problem
    run_setup.close(job)
    train_rows = problem.data.arrays["y"][problem.data.indices]
    tested = [problem.tested["clients"].client(k) for k in range(12)]
    unseen = [problem.tested["unseen"].client(k) for k in range(2)]
    counts = [sum(len(own["y"]) for own in lists) for lists in (tested, unseen)]
    assert len(train_rows) + sum(counts) == 1437
    end = f"{counts[0]} to test each client on, {counts[1]} of unseen clients\n"
    assert f"data      digits: {len(train_rows)} to train, 360 to test, {end}" in out
    last = rows_of(tmp_path / "a")[-1]
    for name, lists in (("clients", tested), ("unseen", unseen)):
        scores = [ccfl.evaluate(task, params, own)["accuracy"] for own in lists]
        expected = np.mean(scores), np.mean(sorted(scores)[:2]), np.var(scores)
        if name == "unseen":
            expected = np.mean(scores), min(scores), np.var(scores)
        columns = [last[f"{name}_{kind}_accuracy"] for kind in ("mean", "worst", "variance")]
        np.testing.assert_allclose(columns, expected, rtol=1e-6)
    assert not [name for name in last if "loss" in name and "clients" in name]


def test_a_sweep_over_seeds_has_the_columns_of_single_runs(tmp_path, capsys):
    """Clients' lists are of unequal length there: each seed partitions anew."""
    words = [*SMALL, *OWN, *TESTED, "--alpha=0.1"]
    vary = ["--vary=seed=0,1,2", "--devices=2", f"--out_dir={tmp_path / 's'}"]
    ended(0, capsys, sweep.main, "sweep", *words, *vary)
    found = {one.name: one.rows for one in results.read_all(tmp_path / "s")}
    for seed in range(3):
        folder = tmp_path / f"{seed}"
        own = ["--devices=1", f"--seed={seed}", f"--out_dir={folder}"]
        ended(0, capsys, train.main, "train", *words, *own)
        trial, alone = (without_clocks(rows) for rows in (found[f"seed={seed}"], rows_of(folder)))
        for ours, theirs in zip(trial, alone, strict=True):
            assert ours.keys() == theirs.keys() and "clients_worst_accuracy" in ours
            assert [ours] == near([theirs], 1e-5)


def test_with_own_last_layers_clients_are_served_and_the_global_model_is_not(tmp_path, capsys):
    """Its last layer is that of x_0; a label in ten is right by chance. Skewed labels."""
    for method in ("fedper", "ditto", "fedavg"):
        words = [*PERSONAL, f"--method={method}", f"--out_dir={tmp_path / method}"]
        ended(0, capsys, train.main, "train", *words)
    own, beside, plain = (rows_of(tmp_path / n)[-1] for n in ("fedper", "ditto", "fedavg"))
    assert own["test_accuracy"] < 0.2 and own["clients_mean_accuracy"] > 0.75
    close = pytest.approx(plain["test_accuracy"], abs=0.01)
    assert beside["test_accuracy"] == close  # Ditto's global model is FedAvg's
    assert beside["clients_mean_accuracy"] > plain["clients_mean_accuracy"] + 0.05


@pytest.mark.parametrize("method", ["fedper", "ditto"])
def test_a_sweep_scores_own_models_as_single_runs_do(method, tmp_path, capsys):
    words = [*PERSONAL, "--rounds=4", "--eval_every=2", f"--method={method}", "--client_test=0.3"]
    vary = ["--vary=seed=0,1", "--devices=2", f"--out_dir={tmp_path / 's'}"]
    ended(0, capsys, sweep.main, "sweep", *words, *vary)
    ended(0, capsys, train.main, "train", *words, "--seed=1", f"--out_dir={tmp_path / 'r'}")
    trial = next(one.rows for one in results.read_all(tmp_path / "s") if one.name == "seed=1")
    assert without_clocks(trial) == near(without_clocks(rows_of(tmp_path / "r")), 1e-5)


def test_more_own_layers_than_the_model_has_are_refused(refuses, tmp_path):
    words = (*PERSONAL, f"--out_dir={tmp_path / 'a'}", "--rule=fedper(2)", "--method=fedper")
    message = "--rule: layers: expected fewer than the 2 of the model, ['dense1'], ['dense2'], "
    refuses(message + "found 2", train.main, "train", *words)
    assert not (tmp_path / "a").exists()


def steps(params, x, y, count):
    """Full-batch gradient descent of softmax regression, at rate 0.5, in NumPy."""
    w, b = (np.asarray(params["dense"][name], np.float64) for name in ("kernel", "bias"))
    for _ in range(count):
        logits = x @ w + b
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        slope = (p / p.sum(axis=1, keepdims=True) - np.eye(10)[y]) / len(y)
        w, b = w - 0.5 * x.T @ slope, b - 0.5 * slope.sum(axis=0)
    return w, b


@pytest.mark.parametrize("more", [(), ("--data_memory=0.6",)], ids=["whole", "streamed"])
def test_each_client_fine_tunes_the_last_model_and_is_scored_before_and_after(
    more, tmp_path, capsys
):
    """Batches are whole, so an epoch is one step; also of a run that is over. Twelve clients in
    buffers of five."""
    words = [*SMALL, *OWN, "--batch_size=2000", "--buffer_size=5", "--client_test=0.3", "--seed=1"]
    words += ["--local_lr=0.5", "--alpha=0.1", f"--out_dir={tmp_path / 'a'}", *more]
    out = ended(0, capsys, train.main, "train", *words).out
    (plain,) = re.findall(r"^clients   (\w+): mean ([\d.]+), worst", out, re.MULTILINE)
    assert plain[0] == "accuracy"
    out = ended(0, capsys, train.main, "train", *words, "--resume", "--fine_tune=3").out
    told = dict(re.findall(r"^clients   (\w+): mean ([\d.]+), worst", out, re.MULTILINE))
    job = run_setup.prepare(run_flags.parse(["train", *words, "--resume"]))
    run_setup.close(job)
    params, data = job.progress.states.params, job.problem.data
    tested = job.problem.tested["clients"]
    with open(tmp_path / "a" / "clients.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["client"] for row in rows] == [str(k) for k in range(12)]
    for name, count in (("accuracy", 0), ("tuned_accuracy", 3)):
        scores = []
        for k, row in enumerate(rows):
            own, test = ({n: a.reshape(len(a), -1) if n == "x" else a for n, a in c.items()}
                         for c in (data.client(k), tested.client(k)))  # fmt: skip
            w, b = steps(params, own["x"].astype(np.float64), own["y"], count)
            scores.append(((test["x"] @ w + b).argmax(axis=1) == test["y"]).mean())
            assert row["samples"] == str(len(own["y"]))
            assert row["test_samples"] == str(len(test["y"]))
            assert float(row[name]) == pytest.approx(scores[-1], abs=1e-6)
        assert float(told[name]) == pytest.approx(np.mean(scores), abs=1e-4)
    assert float(told["tuned_accuracy"]) > float(told["accuracy"]) + 0.05
    assert told["accuracy"] == plain[1]


def test_fine_tuning_has_rows_to_score_it_on_and_models_to_start_from(refuses, tmp_path):
    start = "--fine_tune: expected with --client_test, and a method without models of clients' own"
    out = f"--out_dir={tmp_path / 'a'}"
    refuses(f"{start}, found 2 without", train.main, "train", *SMALL, *OWN, out, "--fine_tune=2")
    words = (*PERSONAL, "--method=ditto", out, "--fine_tune=2")
    refuses(f"{start}, found 2 with ditto", train.main, "train", *words)
    words = ("--fine_tune=2", "--client_test=0.2", "--vary=seed=0,1", *SMALL, *OWN, out)
    message = "--fine_tune: expected a single run, whose clients.csv has the scores, found with a "
    refuses(message + "sweep", sweep.main, "sweep", *words)


def test_of_an_error_the_worst_clients_have_the_highest_and_a_loss_alone_is_the_score():
    """Of twelve clients the worst decile is two."""
    values = np.random.default_rng(0).uniform(size=12)
    found = client_scores.fairness("mean_absolute_error", values)
    np.testing.assert_allclose(found.worst, np.mean(sorted(values)[-2:]))
    np.testing.assert_allclose([found.mean, found.variance], [np.mean(values), np.var(values)])
    assert client_scores.fairness("accuracy", values) == ccfl.fairness(values)
    alone, both = {"loss": values}, {"loss": values, "accuracy": values}
    assert [*client_scores.scores(alone)] == ["loss"]
    assert [*client_scores.scores(both)] == ["accuracy"]
