"""Data of one's own on the command line: runs, resumed ones, schedules, and what is refused."""

import dataclasses
import json

import corpus
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusal import ended
from small_runs import BASE, rows_of

from ccfl_jax.data.readers.tf_example import encode_example
from experiments import schedule, sweep, train
from experiments.config import run_flags
from experiments.training import method, parts

pytestmark = pytest.mark.usefixtures("undrawn", "quickly_compiled")
RNG = np.random.default_rng(0)
OWN = ["--num_clients=3", "--buffer_size=2", "--partition=natural", "--rounds=2", "--eval_every=1"]


def write(path, shape=(28, 28), dtype=np.uint8, classes=3, **changed):
    """Three clients, of 4, 4 and 4 rows."""
    x = RNG.integers(0, 255, (18, *shape)).astype(dtype)
    arrays = {"x_train": x[:12], "y_train": np.arange(12) % classes, "x_test": x[12:]}
    arrays |= {"y_test": np.arange(6) % classes, "client_train": np.arange(12) // 4} | changed
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return f"--dataset=npz({path})"


def run(*args):
    return train.main(["train", *BASE, *OWN, *map(str, args)])


@pytest.mark.parametrize("model", ["mlp", "logistic", "cnn"])
def test_a_run_of_two_rounds(tmp_path, model, capsys):
    data, folder = write(tmp_path / "own.npz"), tmp_path / "r"
    assert run(data, f"--model={model}", f"--out_dir={folder}") == 0
    rows = rows_of(folder)
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert all(0 <= row["test_accuracy"] <= 1 and row["test_loss"] > 0 for row in rows)
    out = capsys.readouterr().out
    assert "own.npz" in out and "12 to train" in out
    provenance = json.loads((folder / "provenance.json").read_text())
    assert f"train[npz({tmp_path / 'own.npz'})]" in provenance


def test_a_run_of_leafs_files(tmp_path):
    users = {name: {"x": RNG.random((4, 784)).tolist(), "y": [0, 1, 2, 1]} for name in "abc"}
    text = json.dumps({"users": [*users], "num_samples": [4] * 3, "user_data": users})
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "all_data.json").write_text(text)
    assert run(f"--dataset=leaf({tmp_path})", "--model=cnn", f"--out_dir={tmp_path / 'r'}") == 0
    rows = rows_of(tmp_path / "r")
    assert [row["round"] for row in rows] == [0, 1, 2] and rows[2]["train_loss"] > 0


@pytest.mark.parametrize("form", ["parquet", "huggingface"])
def test_a_run_of_columns_by_their_names(tmp_path, form):
    own = {
        "pixels": RNG.random((12, 5)).tolist(),
        "label": [0, 1, 2] * 4,
        "writer": [*"aaabbbcccbca"],
    }
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        pq.write_table(pa.table(own), tmp_path / f"{part}.parquet")
        with pa.ipc.new_stream(tmp_path / part / "a.arrow", pa.table(own).schema) as stream:
            stream.write_table(pa.table(own))
        (tmp_path / part / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    data = f"--dataset={form}({tmp_path}, pixels, label, writer)"
    assert run(data, f"--out_dir={tmp_path / 'r'}") == 0
    assert [row["round"] for row in rows_of(tmp_path / "r")] == [0, 1, 2]


def test_a_run_of_drawn_writers(tmp_path):
    """Three of five; test samples are of all."""
    pixels = [0.25] * 784
    rows = [
        (split, f"f{k}", encode_example({"pixels": pixels, "label": [k]}))
        for split in ("all_train", "all_test")
        for k in range(5)
    ]
    corpus.write(tmp_path, rows, name="emnist_all")
    words = ["--dataset=fed_emnist", f"--data_dir={tmp_path}", "--model=cnn"]
    assert run(*words, f"--out_dir={tmp_path / 'r'}") == 0
    assert [row["round"] for row in rows_of(tmp_path / "r")] == [0, 1, 2]
    provenance = json.loads((tmp_path / "r/provenance.json").read_text())
    assert "train[fed_emnist,3,0]" in provenance


def test_it_is_resumed_with_the_same_data_alone(tmp_path, capsys):
    data, folder = write(tmp_path / "own.npz"), f"--out_dir={tmp_path / 'r'}"
    assert run(data, folder) == 0
    assert run(data, folder, "--resume", "--rounds=3") == 0
    write(tmp_path / "own.npz", y_train=np.zeros(12, int))
    said = ended(
        2, capsys, train.main, "train", *BASE, *OWN, data, folder, "--resume", "--rounds=4"
    )
    assert "expected results of one provenance" in said.err and "train[npz(" in said.err


def test_the_folder_of_a_run_without_a_name_has_no_path_in_it(tmp_path, monkeypatch):
    data = write(tmp_path / "own.npz")
    monkeypatch.chdir(tmp_path)
    assert run(data) == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["npz-cc_fedams-001"]


def test_a_sweep_a_flip_of_labels_and_a_schedule_by_labels(tmp_path):
    data = write(tmp_path / "own.npz", (5,), np.float32)
    vary = ["--vary=server_lr=0.1,1", f"--out_dir={tmp_path / 's'}", "--attack=label_flip(0.5)"]
    assert sweep.main(["sweep", *BASE, *OWN, data, *vary]) == 0
    assert len(list((tmp_path / "s/trials").iterdir())) == 2
    base = [word for word in BASE if "max_delay" not in word]
    made = [f"--file={tmp_path / 'a.npz'}", "--availability=label(60)", "--concurrency=2"]
    assert schedule.main(["schedule", *base, *OWN, data, *made]) == 0


def test_labels_are_flipped_by_the_classes_of_the_data():
    """With 7 classes label y becomes 6 - y for the attacker's rows."""
    config = run_flags.parse(["x", "--server_lr=1", "--attack=label_flip(0.5)"])
    data = method.ccfl.FederatedData.from_indices({"y": np.arange(4)}, [[0, 1], [2, 3]])
    numbers = {"attackers": np.array([False, True])}
    found = method.poisoned(config, numbers, data, 7)
    assert found.arrays["y"].tolist() == [0, 1, 4, 3]


def test_home_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "own.npz")
    assert parts.load("npz(~/own.npz)", None).num_classes == 3


@pytest.mark.parametrize(("own", "words", "message"), [
    ({"shape": (5,), "dtype": np.float32}, ["--model=cnn"],
     "--model: expected one for samples float32 [5], found cnn with ... (...CNN: ...)"),
    ({"shape": (80,), "dtype": np.int32}, ["--model=mlp"],
     "--model: expected one for samples int32 [80], found mlp with --dataset=npz(...) (MLP: "
     "expected floats or bytes, found int32)"),
    ({"client_train": None}, [], "--partition: expected iid, dirichlet, dirichlet_client (or "
     "clients in the data), found natural with --dataset=npz(...)"),
    ({}, ["--num_clients=4"], "--num_clients: expected 3, the clients of npz(...), found 4 with "
     "--partition=natural"),
    ({"y_train": np.arange(12) - 1}, [],
     "...own.npz: y_train: expected integers from 0, found -1 in row 0"),
    ({}, ["--data_dir=a"], "--data_dir: expected with ..., found with --dataset=npz(...)"),
    ({}, ["--dataset=npz"], "--dataset: expected digits, ..., found 'npz'..."),
    ({}, ["--dataset=npz()"], "--dataset: expected digits, ..., found 'npz()'..."),
    ({}, ["--dataset=npz(nowhere.npz)"], "nowhere.npz: No such file or directory"),
    ({}, ["--dataset=fed_emnist"],
     "--data_dir: expected the folder of the files of fed_emnist, found none"),
    ({}, ["--dataset=fed_emnist", "--data_dir=a", "--partition=iid"],
     "--partition: expected natural, found iid with --dataset=fed_emnist"),
    ({}, ["--dataset=sent140"], "--dataset: expected digits, ..., found 'sent140'..."),
    ({}, ["--model=tags"], "--model: expected cnn, ..., found tags with --dataset=npz(...)"),
])  # fmt: skip
def test_what_is_refused(tmp_path, refuses, own, words, message):
    data, folder = write(tmp_path / "own.npz", **own), tmp_path / "r"
    refuses(message, train.main, "train", *BASE, *OWN, data, *words, f"--out_dir={folder}")
    assert not folder.exists()


def test_settings_are_kept_as_they_were_written(tmp_path):
    config = run_flags.parse(["x", "--server_lr=1", "--dataset=npz(a,b c.npz)", "--model=mlp"])
    assert dataclasses.asdict(config)["dataset"] == "npz(a,b c.npz)"
    assert parts.source(config) == ("npz(a,b c.npz)", None, None, None)
