"""ccfl.load_run: settings, rows and models of a run, from its folder."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from problems import assert_trees_equal
from refusal import ended, refused
from small_runs import contents, copied, line, rows_of

import ccfl_jax as ccfl
from experiments import train
from experiments.config import run_flags
from experiments.training import parts, run_setup
from experiments.training.run import train as finish

OWN = ["--rounds=6", "--eval_every=2", "--keep_checkpoints=3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, quickly_compiled):
    """A folder, and the last state of the run."""
    folder = tmp_path_factory.mktemp("loaded")
    states = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.figures.curves.draw_curves", lambda *args: None)
        patch.setattr(
            "ccfl_jax.runs.checkpoints.save_params",
            lambda place, params, own=ccfl.runs.checkpoints.save_params: (
                states.append(jax.tree.map(np.array, params)),
                own(place, params),
            ),
        )
        finish(run_setup.prepare(run_flags.parse(line(*OWN, f"--out_dir={folder}"))))
    return folder, states[-1]


def test_a_run_gives_settings_rows_and_models_and_changes_no_file(trained):
    folder, last = trained
    before = contents(folder)
    run = ccfl.load_run(folder)
    assert run.rows == rows_of(folder) and run.config["num_clients"] == 12
    assert_trees_equal(run.params(), last)
    assert_trees_equal(run.params("last"), run.params(6))
    test = parts.load("digits", None).test
    for round_ in (2, 4, 6):
        (row,) = [row for row in run.rows if row["round"] == round_]
        found = ccfl.evaluate(run.task, run.params(round_), test)
        assert found["accuracy"] == pytest.approx(row["test_accuracy"], abs=1e-7)
    best = max(run.rows[1:], key=lambda row: row["test_accuracy"])
    assert_trees_equal(run.params("best"), run.params(best["round"]))
    assert contents(folder) == before


def test_it_predicts_as_it_was_scored(trained):
    folder, _ = trained
    test = parts.load("digits", None).test
    logits = ccfl.load_run(folder).predict(test["x"])
    assert logits.shape == (len(test["y"]), 10)
    hits = (logits.argmax(axis=1) == test["y"]).mean()
    assert hits == pytest.approx(rows_of(folder)[-1]["test_accuracy"], abs=1e-7)
    one = ccfl.load_run(folder).predict(test["x"][:3], 4)
    assert one.shape == (3, 10) and np.abs(one - logits[:3]).max() > 0


def test_params_npz_has_every_leaf_by_its_path(trained):
    folder, last = trained
    with np.load(folder / "params.npz") as file:
        found = dict(file)
    named, _ = jax.tree_util.tree_flatten_with_path(last)
    wanted = {jax.tree_util.keystr(p, simple=True, separator="."): leaf for p, leaf in named}
    assert found.keys() == wanted.keys()
    for name, leaf in wanted.items():
        np.testing.assert_array_equal(found[name], leaf)


def test_a_trained_model_starts_another_run(trained):
    """Its first row scores what the run's last row did."""
    run = ccfl.load_run(trained[0])
    test = parts.load("digits", None).test
    made = ccfl.simulation(run.task, ccfl.cc_fedsgd(1.0), 0.1)
    state = made.init(jax.random.key(1), params=run.params())
    found = ccfl.evaluate(run.task, state.params, test)
    assert found["accuracy"] == pytest.approx(run.rows[-1]["test_accuracy"], abs=1e-7)


def test_what_cannot_be_loaded_is_refused(trained, tmp_path):
    message = "{}: expected the folder of a run (a sweep keeps no models), found no config.json"
    refused(message.format(tmp_path), ccfl.load_run, tmp_path, kind=FileNotFoundError)
    folder = copied(trained[0], tmp_path / "a")
    run = ccfl.load_run(folder)
    message = "which: expected best, last or one of the rounds kept, [2, 4, 6], found {}"
    for which in (5, "first"):
        refused(message.format(repr(which)), run.params, which)
    (file,) = (folder / "checkpoints/4").rglob("arrays.npz")
    file.write_bytes(file.read_bytes()[:40])
    refused("...4: expected a whole checkpoint, found ...", run.params, 4, kind=OSError)
    (folder / "config.json").write_text("[]")
    refused("...config.json: expected a JSON object, found []", ccfl.load_run, folder)
    (folder / "task.json").write_text(json.dumps({"model": "Nothing"}))
    other = dataclasses.replace(run)  # which has not looked for its task
    refused("record: expected a model with its samples, found ...", lambda: other.task)


@pytest.mark.usefixtures("undrawn", "quickly_compiled")
def test_a_task_of_ones_own_is_found_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_pixels.py").write_text(
        "import ccfl_jax as ccfl\n"
        "from ccfl_jax.models import Logistic\n"
        "def task():\n"
        "    return ccfl.classification_task(Logistic(10), (8, 8, 1), 10)\n"
    )
    words = [w for w in line(*OWN, "--task=own_pixels.py:task") if w != "--model=logistic"]
    ended(0, capsys, train.main, *words, "--out_dir=a")
    run = ccfl.load_run("a")
    test = parts.load("digits", None).test
    found = ccfl.evaluate(run.task, run.params("best"), test)["accuracy"]
    assert found == pytest.approx(max(row["test_accuracy"] for row in run.rows[1:]), abs=1e-7)


@pytest.mark.usefixtures("undrawn", "quickly_compiled")
def test_a_run_of_ditto_has_two_models(tmp_path, capsys):
    own = ["--rounds=2", "--eval_every=2", "--method=ditto", "--client_test=0.3"]
    ended(0, capsys, train.main, *line(*own, "--server_lr=1", f"--out_dir={tmp_path / 'a'}"))
    run = ccfl.load_run(tmp_path / "a")
    test = parts.load("digits", None).test
    found = ccfl.evaluate(run.task, run.params(), test)["accuracy"]
    assert found == pytest.approx(run.rows[-1]["test_accuracy"], abs=1e-7)
    assert run.task.predict is None
    refused("task: expected one with predict, found a task without", run.predict, test["x"])
