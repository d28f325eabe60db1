"""experiments/reproduce.py: a short version of every figure and table, on made data."""

import csv
import json
import sqlite3

import numpy as np
import pytest

from experiments import reproduce
from experiments.paper import presets
from experiments.sweeps import results

_SHORT = [
    "--rounds=5",
    "--grid=coarse",
    "--seeds=1",
    "--eval_every=1",
    "--num_clients=6",
    "--local_epochs=1",
    "--devices=2",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with small files of each data set in its true form, learnable ones."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for labels, rows in ((1, 40), (2, 40)):
        train = [f"data_batch_{k}.bin" for k in range(1, 6)] if labels == 1 else ["train.bin"]
        for file in (*train, "test_batch.bin" if labels == 1 else "test.bin"):
            count = 5 * rows if file == "train.bin" else rows
            y = rng.integers(0, 10, (count, labels), dtype=np.uint8)
            x = rng.integers(0, 100, (count, 3072), dtype=np.uint8) + 15 * y[:, -1:]
            (folder / file).write_bytes(np.concatenate([y, x], axis=1, dtype=np.uint8).tobytes())
    for part, count in (("train", 200), ("t10k", 40)):
        y = rng.integers(0, 10, count, dtype=np.uint8)
        x = (rng.integers(0, 100, (count, 784)) + 15 * y[:, None]).astype(np.uint8)
        head = bytes([0, 0, 8, 3]) + np.array([count, 28, 28], ">u4").tobytes()
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + x.tobytes())
        head = bytes([0, 0, 8, 1]) + np.array([count], ">u4").tobytes()
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(head + y.tobytes())
    _stackoverflow(folder, rng)
    return folder


def _stackoverflow(folder, rng):
    def field(number, payload):
        return bytes([number << 3 | 2]) + _varint(len(payload)) + payload

    def example(title, tokens, tags):
        features = b""
        for name, text in (("title", title), ("tokens", tokens), ("tags", tags)):
            value = field(1, field(1, text.encode()))  # Feature.bytes_list, BytesList.value
            features += field(1, field(1, name.encode()) + field(2, value))
        return field(1, features)

    with sqlite3.connect(folder / "stackoverflow.sqlite") as db:
        db.execute("CREATE TABLE examples (split_name, client_id, serialized_example_proto)")
        db.execute("CREATE TABLE client_metadata (client_id, split_name, num_examples)")
        for split, clients in (("train", 8), ("test", 2)):
            for k in range(clients):
                db.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (f"c{k}", split, 20))
                for word in rng.integers(0, 50, 20):
                    message = example(f"w{word}", f"w{word} w{word + 1}", f"t{word % 5}")
                    db.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, f"c{k}", message))
    words = "".join(f"w{k} {20_000 - k}\n" for k in range(10_000))
    (folder / "stackoverflow.word_count").write_text(words)
    (folder / "stackoverflow.tag_count").write_text(
        json.dumps({f"t{k}": 1000 - k for k in range(500)})
    )


def _varint(number):
    if number < 128:
        return bytes([number])
    return bytes([number % 128 | 128]) + _varint(number // 128)


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
    """Runs an experiment in short, once: its folder and what `main` returned."""
    cache, done = tmp_path_factory.mktemp("cache"), {}

    def once(name, *args):
        if name not in done:
            folder = tmp_path_factory.mktemp("out") / name
            # Fewer trials of a model of 5 million parameters and its past, a small one for images.
            own = ["--model=logistic"]
            if name == "table3_stackoverflow":
                own = ["--local_lr=20", "--max_delay=1"]
            data = [f"--data_dir={files}", f"--compilation_cache={cache}"]
            code = reproduce.main(
                ["reproduce", name, *_SHORT, *own, *data, f"--out_dir={folder}", *args]
            )
            done[name] = folder, code
        return done[name]

    return once


@pytest.mark.parametrize("name", presets.names())
def test_every_experiment_runs_to_its_verdict(run, name):
    folder, code = run(name)
    assert code in (0, 3)  # a rate may be too high for the made data
    summary = json.loads((folder / results.SUMMARY).read_text())
    preset = presets.preset(name, {"data_dir": "x", "local_lr": "1"})
    assert set(summary["choices"]) == set(preset.methods)
    assert len(summary["verdicts"]) == len(preset.claims)
    for verdict in summary["verdicts"]:
        assert verdict["margins"] and isinstance(verdict["holds"], bool)
    for ending in ("png", "svg"):
        assert (folder / f"{name}.{ending}").stat().st_size > 5000
    with open(folder / results.RESULTS) as file:
        rows = list(csv.DictReader(file))
    score = "recall_at_5" if name == "table3_stackoverflow" else "accuracy"
    finished = [row for row in rows if row["status"] == "finished"]
    assert finished and all(0 <= float(row[f"test_{score}"]) <= 1 for row in finished)
    assert {row["stage"] for row in rows} == {"grid", "final"}
    tuned = len(preset.methods) - ("cc_fedavg" in preset.methods)
    trials = {row["trial"] for row in rows if row["stage"] == "grid"}
    assert len(trials) == 5 * tuned + ("cc_fedavg" in preset.methods)
    final = {row["trial"] for row in rows if row["stage"] == "final"}
    values = [len(values) for values in preset.vary.values()]
    assert len(final) == (1 + values[0] * (len(preset.methods) - 1) if values else tuned + (
        "cc_fedavg" in preset.methods))  # fmt: skip


def test_the_chosen_setting_is_the_best_by_training(run):
    """Checked against the file of results, with plain loops."""
    folder, _ = run("fig2_fmnist")
    with open(folder / results.RESULTS) as file:
        rows = [row for row in csv.DictReader(file) if row["stage"] == "grid"]
    summary = json.loads((folder / results.SUMMARY).read_text())
    for server, choice in summary["choices"].items():
        last = {  # of five rounds the last fifth is the last one
            row["trial"]: float(row["train_accuracy"])
            for row in rows
            if f"server={server}" in row["trial"].split()
            and row["round"] == "5"
            and row["status"] == "finished"
        }
        assert last[choice["chosen"]] == max(last.values())
        assert choice["train"] == pytest.approx(max(last.values()), rel=1e-5)  # six digits


def test_what_the_grid_has_run_is_not_run_again(run):
    """One seed and the same rounds: the final trial is the grid's, to the bit."""
    folder, _ = run("fig2_fmnist")
    for path in (folder / "final" / results.TRIALS).iterdir():
        one = json.loads(path.read_text())
        grid = folder / "grid" / results.TRIALS / path.name.replace(",seed=0", "")
        assert one["rows"] == json.loads(grid.read_text())["rows"]


def test_the_same_command_again_trains_nothing(run, files, capsys):
    folder, code = run("fig2_fmnist")
    capsys.readouterr()  # what the first command said, if it was this test that gave it
    before = (folder / results.RESULTS).read_bytes()
    args = ["--model=logistic", f"--data_dir={files}", "--compilation_cache=off"]
    assert (
        reproduce.main(["reproduce", "fig2_fmnist", *_SHORT, *args, f"--out_dir={folder}"]) == code
    )
    assert "trial     " not in capsys.readouterr().out
    assert (folder / results.RESULTS).read_bytes() == before


def test_more_rounds_and_seeds_for_the_chosen_settings(run, files, tmp_path):
    args = [*_SHORT, "--model=logistic", f"--data_dir={files}", "--compilation_cache=off"]
    args += ["--grid_rounds=2", "--seeds=2", "--rounds=3", f"--out_dir={tmp_path}"]
    assert reproduce.main(["reproduce", "fig3_gamma", *args, "--normalise=epochs"]) in (0, 3)
    with open(tmp_path / results.RESULTS) as file:
        rows = list(csv.DictReader(file))
    last = {stage: max(int(r["round"]) for r in rows if r["stage"] == stage) for stage in
            ("grid", "final")}  # fmt: skip
    assert last == {"grid": 2, "final": 3}
    assert {row["trial"].split()[-1] for row in rows if row["stage"] == "final"} == {
        "seed=0", "seed=1"
    }  # fmt: skip
    config = next((tmp_path / "final" / results.TRIALS).iterdir()).read_text()
    assert json.loads(config)["config"]["normalise"] == "epochs"


def test_the_list_names_every_experiment(capsys):
    assert reproduce.main(["reproduce", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == presets.names()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "NAME: found none"),
        (["fig9"], "NAME: found 'fig9'"),
        (["fig1_alpha3", "--seeds=0"], "--seeds: expected an integer from 1 to 1000, found 0"),
        (["fig1_alpha3", "--seeds=1000000000"], "--seeds: expected a whole, found 1000000000"),
        (["fig1_alpha3", "--rounds=0"], "--rounds: found 0"),
        (["fig1_alpha3", "--normalise=work"], "--normalise: found 'work'"),
        (["fig1_alpha3", "--model=cnn"], "--model: found cnn with --dataset=cifar10"),
        (["fig1_alpha3", "rounds=3"], "NAME: expected one, found 'fig1_alpha3 rounds=3'"),
        (["fig1_alpha3", "--round=3"], "--round: found on the command line"),
        (["fig1_alpha3", "--grid=fine"], "--grid: expected coarse, paper, wide, found 'fine'"),
        (
            ["fig1_alpha3", "--seeds=many"],
            "--seeds: expected an integer from 1 to 1000, found 'many'",
        ),
        (["table3_stackoverflow"], "--data_dir: found none"),
        (["fig2_fmnist", "--data_dir=/nowhere"], "/nowhere must hold train-images"),
        (["all"], "--data_dir: found none"),
    ],
)
def test_a_wrong_command_is_refused_in_a_line(tmp_path, capsys, args, message):
    out = tmp_path / "out"
    assert reproduce.main(["reproduce", *args, f"--out_dir={out}"]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not out.exists()
