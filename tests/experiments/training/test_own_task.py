"""--task: a task of one's own, and perhaps its data, in the commands."""

import json
import sys

import pytest
from refusal import ended
from small_runs import rows_of, without_clocks

from ccfl_jax.io import own_code
from experiments import compare, schedule, sweep, train
from experiments.sweeps import results

SOURCE = '''
import jax.numpy as jnp
import numpy as np
import ccfl_jax as ccfl


def task():
    """Least squares over features and a price, as arrays of one's own names."""
    def rows(params, batch):
        return batch["features"] @ params["w"] - batch["price"]

    def loss(params, batch, mask, key):
        return jnp.where(mask, rows(params, batch) ** 2, 0).sum() / jnp.maximum(mask.sum(), 1)

    def metrics(params, batch, mask):
        error = rows(params, batch)
        return {"loss": (jnp.where(mask, error**2, 0).sum(), mask.sum()),
                "error": (jnp.where(mask, abs(error), 0).sum(), mask.sum())}

    return ccfl.Task(lambda key: {"w": jnp.zeros(3)}, loss, metrics)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 3)).astype(np.float32)
    arrays = {"features": x, "price": x @ np.float32([1, -2, 3])}
    part = lambda a, b: {name: array[a:b] for name, array in arrays.items()}
    return part(0, 60) | {"client": np.repeat(["d", "a", "c", "b"], 15)}, part(60, 70)


def problem():
    return (task(), *data())


def pixels():
    rng = np.random.default_rng(0)
    part = lambda n: {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": np.arange(n) % 3}
    return part(30), part(9)


def unlost():
    return task()._replace(metrics=lambda params, batch, mask: {"error": (mask.sum(), mask.sum())})


def unmasked():
    return task()._replace(loss=lambda params, batch: 0.0)


def unscored():
    return task()._replace(metrics=lambda params, batch, mask: {"loss": mask.sum()})


def rowwise():
    return task()._replace(loss=lambda params, batch, mask, key: batch["price"])


def narrow():
    train, test = data()
    return task(), train, test | {"features": test["features"][:, :2]}


def broken():
    raise KeyError("prices.csv")


def nothing():
    return 3


number = 3
'''
OWN = ["--num_clients=4", "--buffer_size=2", "--max_delay=1", "--local_epochs=1", "--rounds=4"]
OWN += ["--eval_every=2", "--devices=1", "--compilation_cache=off", "--noprogress"]
OWN_DATA = "--dataset=python(own_prices:data)"
NATURAL = [*OWN, "--partition=natural", "--server=cc_fedsgd", "--server_lr=1", "--local_lr=0.1"]

pytestmark = pytest.mark.usefixtures("undrawn", "quickly_compiled")


@pytest.fixture
def code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_code.called.cache_clear()
    own_code._module.cache_clear()
    (tmp_path / "own_prices.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize("place", ["own_prices", "own_prices.py"])
def test_a_run_of_a_task_with_its_data_learns_and_goes_on(code, capsys, place):
    """w = (1, -2, 3) fits every row: after more rounds the error is smaller."""
    words = ["train", *NATURAL, f"--task={place}:problem", "--out_dir=a"]
    out = ended(0, capsys, train.main, *words).out
    assert f"task({place}:problem)" in out and "test error" in out
    rows = rows_of("a")
    assert rows[-1]["test_error"] < rows[0]["test_error"] / 2
    found = json.loads((code / "a/provenance.json").read_text())
    assert f"task[{place}:problem]" in found and f"train[python({place}:problem)]" in found
    ended(0, capsys, train.main, *words, "--rounds=6", "--resume")
    assert without_clocks(rows_of("a"))[:3] == without_clocks(rows)
    assert rows_of("a")[-1]["test_error"] < rows[-1]["test_error"]


def test_a_changed_task_is_noticed_at_resuming(code, refuses, capsys):
    words = ["train", *NATURAL, "--task=own_prices.py:problem", "--out_dir=a"]
    ended(0, capsys, train.main, *words)
    (code / "own_prices.py").write_text(SOURCE.replace("abs(error)", "2 * abs(error)"))
    own_code._module.cache_clear()
    message = "...expected results of one provenance ..., found task[own_prices.py:problem] ..."
    refuses(message, train.main, *words, "--rounds=6", "--resume")


def test_a_file_finds_the_modules_beside_it(code, capsys, monkeypatch):
    """As `python FILE.py` does, from whatever folder it is called; when called, too."""
    (code / "there").mkdir()
    (code / "own_prices.py").rename(code / "there/own_beside.py")
    late = "def late():\n    import own_beside\n    return own_beside.problem()\n"
    (code / "there/own_first.py").write_text(f"from own_beside import problem\n\n\n{late}")
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("problem", "late"):
        words = [*NATURAL, f"--task=there/own_first.py:{name}", f"--out_dir={name}"]
        ended(0, capsys, train.main, "train", *words)
    assert without_clocks(rows_of("problem")) == without_clocks(rows_of("late"))


def test_a_task_alone_takes_the_data_of_a_flag_and_data_alone_a_model(code, capsys):
    own = ["--task=own_prices:task", "--dataset=python(own_prices:data)", "--out_dir=a"]
    ended(0, capsys, train.main, "train", *NATURAL, *own)
    both = ["--task=own_prices:problem", "--out_dir=b"]
    ended(0, capsys, train.main, "train", *NATURAL, *both)
    assert without_clocks(rows_of("a")) == without_clocks(rows_of("b"))
    words = [*OWN, "--server_lr=0.1", "--dataset=python(own_prices:pixels)", "--model=logistic"]
    ended(0, capsys, train.main, "train", *words, "--partition=iid", "--out_dir=c")
    assert "test_accuracy" in rows_of("c")[0]


def test_sweeps_schedules_and_comparisons_take_it(code, capsys):
    own = [*NATURAL, "--task=own_prices:problem"]
    ended(0, capsys, sweep.main, "sweep", *own, "--vary=local_lr=0.05,0.1", "--out_dir=s")
    slow, fast = results.read_all(code / "s")
    assert slow.score == "error" and slow.rows[-1]["test_error"] > fast.rows[-1]["test_error"]
    made = [
        word for word in own if "=" in word and not word.startswith(("--dev", "--comp", "--ev"))
    ]
    made = [w for w in made if not w.startswith(("--server", "--local_lr"))]
    ended(0, capsys, schedule.main, "schedule", *made, "--file=s.npz", "--world=paper")
    own = [word for word in own if not word.startswith(("--server", "--local_lr"))]
    words = [*own, "--methods=fedavg,cc_fedsgd", "--budget=2", "--seeds=1", "--out_dir=c"]
    ended(0, capsys, compare.main, "compare", *words, "--target=error<=1e9")
    assert "updates to error<=1e9" in (code / "c/table.md").read_text()


@pytest.mark.parametrize(("words", "message"), [
    (["--task=own_prices"], "--task: expected MODULE:FUNCTION or FILE.py:FUNCTION, found ..."),
    (["--task=no_module:f"], "no_module:f: expected MODULE:FUNCTION ..., found ModuleNotFound..."),
    (["--task=no.py:f"], "no.py:f: expected MODULE:FUNCTION ..., found FileNotFoundError: ..."),
    (["--task=own_prices:gone"], "own_prices:gone: expected ..., found AttributeError: ..."),
    (["--task=own_prices:number"], "own_prices:number: expected a function, found int"),
    (["--task=own_prices:broken"], "own_prices:broken: expected a function that can be called "
     "without arguments, found KeyError: 'prices.csv'"),
    (["--task=own_prices:nothing"], "own_prices:nothing: expected (train, test) or ..., found int"),
    (["--task=own_prices:task"], "own_prices:task: expected (train, test) or ..., found Task"),
    (["--task=own_prices:data", "--dataset=python(own_prices:data)"],
     "own_prices:data: expected it to return a ccfl.Task or ..., found tuple"),
    (["--task=own_prices:unlost", OWN_DATA],
     "task.metrics: expected loss among them, found error"),
    (["--task=own_prices:unscored", OWN_DATA],
     "task.metrics: expected {name: (sum, count)}, found {'loss': ...}"),
    (["--task=own_prices:unmasked", OWN_DATA], "task.loss: expected a function of parameters, a "
     "batch (features float32 [2, 3], price float32 [2]), its mask and a key, found TypeE..."),
    (["--task=own_prices:rowwise", OWN_DATA], "task.loss: expected one float, found ...[2]..."),
    (["--task=own_prices:narrow"], "task.loss: expected a function of ... (features float32 [2, 2],"
     " ...), its mask and a key, found TypeError: ..."),
    (["--task=own_prices:task", "--model=mlp"], "--model: expected without --task, found with it"),
    (["--task=own_prices:problem", "--partition=iid"],
     "--partition: expected natural for samples without a label each, found no y with ..."),
    (["--task=own_prices:problem", "--attack=label_flip(0.5)"],
     "--attack: expected label_flip with one label a sample, found ..."),
    (["--task=own_prices:problem", "--target=accuracy>=1"],
     "--target: expected a metric of the task, error, loss, found 'accuracy'"),
])  # fmt: skip
def test_what_is_refused(code, refuses, words, message):
    refuses(message, train.main, "train", *NATURAL, "--out_dir=a", *words)
    assert not (code / "a").exists()
