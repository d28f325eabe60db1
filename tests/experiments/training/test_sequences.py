"""Runs on sequences and of the autoencoder, from files that the test writes; what is refused."""

import json

import corpus
import jax
import numpy as np
import pytest
from refusal import ended
from small_runs import BASE, rows_of

from ccfl_jax.data.readers.tf_example import encode_example
from experiments import train
from experiments.config import run_flags
from experiments.training import tasks

pytestmark = pytest.mark.usefixtures("undrawn", "quickly_compiled")
OWN = ["--num_clients=3", "--buffer_size=2", "--partition=natural", "--rounds=2", "--eval_every=1"]
OWN += ["--batch_size=2", "--local_lr=0.1"]


def run(*args):
    return train.main(["train", *BASE, *OWN, *map(str, args)])


def ran(folder, *args):
    """The rows of a run, of losses and accuracies that are numbers."""
    assert run(*args, f"--out_dir={folder}") == 0
    rows = rows_of(folder)
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert all(row["test_loss"] > 0 for row in rows)
    return rows


def test_a_run_of_plays(tmp_path):
    """At the start about one of 90 characters is right: the loss is near log 90."""
    text = b"To be, or not to be: that is the question."
    rows = [
        (split, f"ROLE_{k}", encode_example({"snippets": [text]}))
        for split in ("train", "test")
        for k in range(4)
    ]
    corpus.write(tmp_path, rows, name="shakespeare")
    words = ["--dataset=shakespeare", f"--data_dir={tmp_path}", "--model=char_lstm"]
    rows = ran(tmp_path / "r", *words)
    assert rows[0]["test_loss"] == pytest.approx(np.log(90), abs=0.2)
    assert rows[2]["test_loss"] < rows[0]["test_loss"]
    provenance = json.loads((tmp_path / "r/provenance.json").read_text())
    assert "train[shakespeare,3,0]" in provenance


def leaf(folder, x, y):
    users = {name: {"x": x, "y": y} for name in "abc"}
    text = json.dumps({"users": [*users], "num_samples": [len(y)] * 3, "user_data": users})
    for part in ("train", "test"):
        (folder / part).mkdir()
        (folder / part / "all_data.json").write_text(text)
    return f"--dataset=leaf({folder})"


def test_a_run_of_leafs_plays(tmp_path):
    """The label is the one character after eighty."""
    data = leaf(tmp_path, ["a" * 80, "b" * 80], ["a", "b"])
    rows = ran(tmp_path / "r", data, "--model=char_lstm")
    assert all(row["test_accuracy"] in (0, 0.5, 1) for row in rows)


def test_a_run_of_sentences(tmp_path):
    """10,000 words, of which the sentences use three; "other" is unknown, and not scored."""
    sentences = {"a": "w1 w2 w3", "b": "w2 other w1", "c": "w3 w3", "d": "w1"}
    rows = [
        (split, name, corpus.post("", text, ""))
        for split in ("train", "test")
        for name, text in sentences.items()
    ]
    corpus.write(tmp_path, rows, words={f"w{k}": 10_000 - k for k in range(10_000)})
    words = ["--dataset=stackoverflow_nwp", f"--data_dir={tmp_path}", "--model=word_lstm"]
    rows = ran(tmp_path / "r", *words)
    assert rows[0]["test_loss"] == pytest.approx(np.log(10_004), abs=0.2)
    config = json.loads((tmp_path / "r/config.json").read_text())
    assert config["max_words"] == 20
    provenance = json.loads((tmp_path / "r/provenance.json").read_text())
    assert "train[stackoverflow_nwp,3,0,500,1,20]" in provenance


def test_unknown_words_and_ends_are_not_scored():
    """Of the targets w1, unknown, end and padding two are learnt besides, and one is scored."""
    y = np.array([[1, 10_001, 10_003, 0]], np.int32)
    x = np.array([[10_002, 1, 10_001, 10_003]], np.int32)
    counts = {}
    for dataset, model in (("stackoverflow_nwp", "word_lstm"), ("npz(a)", "word_lstm")):
        task = tasks.task_of(dataset, model, "float32", {"x": x}, 10_004)
        found = task.metrics(task.init(jax.random.key(0)), {"x": x, "y": y}, np.ones(1, bool))
        counts[dataset] = [int(found[name][1]) for name in ("loss", "accuracy")]
    assert counts == {"stackoverflow_nwp": [3, 1], "npz(a)": [3, 3]}


def test_a_run_of_an_autoencoder(tmp_path, capsys):
    """Its one metric is the squared error, of which the lowest is the best: it is that of the best
    checkpoint. Pixels are grey, 0.25, and outputs are near 0.5 at the start."""
    rows = [
        (split, f"f{k}", encode_example({"pixels": [0.25] * 784, "label": [k]}))
        for split in ("all_train", "all_test")
        for k in range(4)
    ]
    corpus.write(tmp_path, rows, name="emnist_all")
    words = ["--dataset=fed_emnist", f"--data_dir={tmp_path}", "--model=autoencoder"]
    rows = ran(tmp_path / "r", *words, "--keep_checkpoints=1")
    assert " after 2 rounds; best " in (out := capsys.readouterr().out) and " after 2\n" in out
    assert [path.name for path in (tmp_path / "r/checkpoints").iterdir()] == ["2"]
    assert 0.03 < rows[0]["test_loss"] < 0.2 and "test_accuracy" not in rows[0]
    assert rows[2]["test_loss"] < rows[0]["test_loss"]


def test_words_of_a_sentence_have_a_default_of_their_own():
    words = ["x", "--server_lr=1", "--partition=natural", "--data_dir=d"]
    for dataset, model, most in (
        ("stackoverflow", "tags", 150),
        ("stackoverflow_nwp", "word_lstm", 20),
    ):
        own = [*words, f"--dataset={dataset}", f"--model={model}"]
        assert run_flags.parse(own).max_words == most
        assert run_flags.parse([*own, "--max_words=7"]).max_words == 7


@pytest.mark.parametrize(("words", "message"), [
    (["--dataset=shakespeare", "--data_dir=d", "--model=word_lstm"],
     "--model: expected char_lstm, found word_lstm with --dataset=shakespeare"),
    (["--dataset=stackoverflow_nwp", "--model=word_lstm"],
     "--data_dir: expected the folder of the files of stackoverflow_nwp, found none"),
    (["--dataset=shakespeare", "--data_dir=d", "--model=char_lstm", "--attack=label_flip(0.5)"],
     "--attack: expected label_flip with one label a sample, found label_flip(0.5) with ..."),
    (["--dataset=shakespeare", "--data_dir=d", "--model=char_lstm", "--max_words=5"],
     "--max_words: expected with stackoverflow, stackoverflow_nwp, found with ..."),
    (["--dataset=digits", "--model=char_lstm"],
     "--model: expected mlp, logistic, found char_lstm with --dataset=digits"),
])  # fmt: skip
def test_flags_that_do_not_fit(capsys, words, message):
    words = ["--partition=natural", "--num_clients=3", "--buffer_size=2", *words]
    assert message.split("...")[0] in ended(2, capsys, train.main, "train", *BASE, *words).err


@pytest.mark.parametrize(("x", "y", "found"), [
    ([[0.5] * 4], [1], "float32 [4], found char_lstm"),
    ([["", "", "", "", "so sad", ""]], [0],
     "int32 [25], found char_lstm with ... (ids: expected integers from 0 to 1, found int32 ..."),
])  # fmt: skip
def test_leafs_other_samples_are_no_sequences_of_characters(tmp_path, capsys, x, y, found):
    data = leaf(tmp_path, x, y)
    words = [*BASE, *OWN, data, "--model=char_lstm"]
    said = ended(2, capsys, train.main, "train", *words).err
    assert all(part in said for part in f"--model: expected one for samples {found}".split("..."))
    assert said.count("\n") == 1
