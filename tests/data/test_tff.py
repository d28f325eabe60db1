"""data/readers/tff.py: small databases in the form of TensorFlow Federated's release."""

import contextlib
import lzma
import sqlite3
from collections import Counter

import numpy as np
import pytest
from refusal import refused

from ccfl_jax.data import NUM_CLASSES, load_dataset, load_tff
from ccfl_jax.data.readers.characters import character_ids
from ccfl_jax.data.readers.tf_example import encode_example

# As `sql_client_data_utils` of that library makes them.
TABLES = [
    "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
    "serialized_example_proto BLOB NOT NULL)",
    "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, "
    "num_examples INTEGER NOT NULL)",
]
RNG = np.random.default_rng(0)


def write(path, rows):
    """A database of rows (split, client, example)."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for table in TABLES:
            db.execute(table)
        db.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
        counts = Counter((client, split) for split, client, _ in rows)
        metadata = [(*key, count) for key, count in counts.items()]
        db.executemany("INSERT INTO client_metadata VALUES (?, ?, ?)", metadata)
    return path


def letter(label, pixels=None):
    pixels = RNG.random(784) if pixels is None else pixels
    return encode_example({"pixels": [*map(float, pixels)], "label": [label]})


def photo(label, pixels=None):
    pixels = RNG.integers(0, 256, 3072) if pixels is None else pixels
    return encode_example({"image": [*map(int, pixels)], "label": [label], "coarse_label": [3]})


def snippet(text):
    return encode_example({"snippets": [text]})


def load(name, folder, *args):
    return load_tff(name, folder, *args, cache_dir=folder / "cache")


EMNIST = [
    ("all_train", "f1_2", letter(61)), ("all_train", "f0_1", letter(4, np.arange(784) / 784)),
    ("digits_only_train", "f0_1", letter(4)), ("all_train", "f1_2", letter(9)),
    ("all_test", "f1_2", letter(0)), ("all_test", "f7_7", letter(1)),
    ("digits_only_test", "f0_1", letter(9)),
]  # fmt: skip
CIFAR = [
    ("train", "1", photo(99)), ("train", "0", photo(0, np.arange(3072) % 256)),
    ("train", "0", photo(5)), ("test", "0", photo(7)),
]  # fmt: skip
HAMLET, GHOST = "THE_TRAGEDY_OF_HAMLET_HAMLET", "THE_TRAGEDY_OF_HAMLET_GHOST"
LONG = b"To be, or not to be: that is the question. " * 4  # 172 characters
PLAYS = [
    ("train", HAMLET, snippet(LONG)), ("train", GHOST, snippet(b"Mark me.")),
    ("train", HAMLET, snippet(b"")), ("test", HAMLET, snippet(b"a\xe9")),
]  # fmt: skip


def test_emnist(tmp_path):
    """Clients by their names; f7_7 of the test part is no client of training."""
    write(tmp_path / "emnist_all.sqlite", EMNIST)
    train, test, counts = load("fed_emnist", tmp_path)
    assert train["x"].shape == (3, 28, 28, 1) and train["x"].dtype == np.float32
    ramp = (np.arange(784) / 784).astype(np.float32).reshape(28, 28)
    np.testing.assert_array_equal(train["x"][0, :, :, 0], ramp)
    assert train["y"].tolist() == [4, 61, 9] and train["client"].tolist() == [0, 1, 1]
    assert test["y"].tolist() == [0, 1] and test["client"].tolist() == [1, -1]
    assert counts == {"clients": 2, "too_small": 0}
    assert all(own[n].dtype == np.int32 for own in (train, test) for n in ("y", "client"))
    digits = load("fed_emnist_digitsonly", tmp_path)
    assert [part["y"].tolist() for part in digits[:2]] == [[4], [9]]


@pytest.mark.parametrize("suffix", ["", ".lzma", ".xz"])
def test_cifar_of_clients_who_share_names_alone(tmp_path, suffix):
    path = write(tmp_path / "fed_cifar100.sqlite", CIFAR)
    if suffix:
        form = lzma.FORMAT_XZ if suffix == ".xz" else lzma.FORMAT_ALONE
        packed = path.rename(path.with_name("plain"))
        path.with_name(path.name + suffix).write_bytes(lzma.compress(packed.read_bytes(), form))
    train, test, _ = load("fed_cifar100", tmp_path)
    assert train["x"].shape == (3, 32, 32, 3) and train["x"].dtype == np.uint8
    expected = (np.arange(3072) % 256).reshape(32, 32, 3)
    np.testing.assert_array_equal(train["x"][0], expected)
    assert train["y"].tolist() == [0, 5, 99] and train["client"].tolist() == [0, 0, 1]
    assert test["y"].tolist() == [7] and test["client"].tolist() == [-1]


def test_shakespeare(tmp_path):
    """172 characters, begin and end are 174 ids: three sequences of 81, 69 of them padding."""
    write(tmp_path / "shakespeare.sqlite", PLAYS)
    train, test, _ = load("shakespeare", tmp_path)
    assert train["x"].shape == (5, 80) == train["y"].shape and train["x"].dtype == np.int32
    assert train["client"].tolist() == [0, 1, 1, 1, 1] and test["client"].tolist() == [1]
    ids = [88, *character_ids([LONG.decode()]), 89, *[0] * 69]
    for row in range(3):
        assert train["x"][1 + row].tolist() == ids[81 * row : 81 * row + 80]
        assert train["y"][1 + row].tolist() == ids[81 * row + 1 : 81 * row + 81]
    assert train["x"][4].tolist() == [88, 89, *[0] * 78] and train["y"][4].tolist() == [
        89,
        *[0] * 79,
    ]
    assert test["x"][0, :4].tolist() == [88, 64, 87, 89] and (test["x"][0, 4:] == 0).all()
    assert train["y"].dtype == np.int32 and train["y"].max() < NUM_CLASSES["shakespeare"]


def test_clients_are_drawn_and_the_test_part_is_whole(tmp_path):
    rows = [("train", str(k), photo(k)) for k in range(20)] + [("test", "0", photo(1))] * 3
    write(tmp_path / "cifar100.sqlite", rows)
    draws = [load("fed_cifar100", tmp_path, 4, seed) for seed in (0, 1, 0)]
    labels = [draw[0]["y"].tolist() for draw in draws]
    assert labels[0] == labels[2] != labels[1] and all(len({*own}) == 4 for own in labels)
    assert all(draw[0]["client"].tolist() == [0, 1, 2, 3] for draw in draws)
    assert all(len(draw[1]["y"]) == 3 for draw in draws)
    both = load_dataset("fed_cifar100", tmp_path)
    assert len(both[0]["y"]) == 20 and len(both) == 2


FEW = np.zeros(783)
FAULTS = {
    "too few pixels": ("fed_emnist", letter(1, FEW),
                       "expected 784 floats pixels, found float64 [783]"),
    "pixels of another kind": ("fed_emnist", encode_example({"pixels": [0] * 784, "label": [1]}),
                               "expected 784 floats pixels, found int64 [784]"),
    "no pixels": ("fed_emnist", photo(1), "expected 784 floats pixels, found float64 [0]"),
    "nan": ("fed_emnist", letter(1, [np.nan] + [0.5] * 783),
            "expected pixels from 0 to 1, found nan to nan"),
    "too bright": ("fed_emnist", letter(1, [255] + [0.5] * 783),
                   "expected pixels from 0 to 1, found 0.5 to 255"),
    "too high a label": ("fed_emnist", letter(62), "expected a label from 0 to 61, found [62]"),
    "a letter among digits": ("fed_emnist_digitsonly", letter(10),
                              "expected a label from 0 to 9, found [10]"),
    "no label": ("fed_cifar100", encode_example({"image": [0] * 3072}),
                 "expected a label from 0 to 99, found []"),
    "no byte": ("fed_cifar100", photo(1, [256] + [1] * 3071),
                "expected image from 0 to 255, found 1 to 256"),
    "two snippets": ("shakespeare", encode_example({"snippets": [b"a", b"b"]}),
                     "expected one text snippets in an example, found 2 values"),
    "no example": ("shakespeare", b"\xff", "example: expected a serialised tf.train.Example, ..."),
    "no blob": ("shakespeare", "text", "expected an example as a blob, found str"),
}  # fmt: skip
FILES = {"fed_emnist": "emnist_all", "fed_emnist_digitsonly": "emnist_all"}
FILES |= {"fed_cifar100": "cifar100", "shakespeare": "shakespeare"}
SPLITS = {"fed_emnist": "all_train", "fed_emnist_digitsonly": "digits_only_train"}
GOOD = {"fed_emnist": letter(0), "fed_emnist_digitsonly": letter(0), "fed_cifar100": photo(0),
        "shakespeare": snippet(b"a")}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named_with_file_and_client(tmp_path, fault):
    name, example, message = FAULTS[fault]
    split = SPLITS.get(name, "train")
    rows = [(split, "bob", example), (split.replace("train", "test"), "bob", GOOD[name])]
    path = write(tmp_path / f"{FILES[name]}.sqlite", rows)
    refused(f"{path}: client 'bob': {message}", load, name, tmp_path)


def test_what_is_refused_before(tmp_path):
    names = (
        "emnist_all.sqlite, emnist_all.sqlite.xz, emnist_all.sqlite.lzma, fed_emnist.sqlite, ..."
    )
    message = f"fed_emnist: expected one of {names} in {tmp_path}, found none"
    refused(message, load, "fed_emnist", tmp_path, kind=FileNotFoundError)
    refused("data set: expected fed_emnist, ..., found 'emnist'", load, "emnist", tmp_path)
    refused("data_dir: expected the folder of the files of shakespeare, found none", load_dataset,
            "shakespeare")  # fmt: skip
    path = write(tmp_path / "cifar100.sqlite", CIFAR)
    refused(f"{path}: expected at least num_clients=3 clients ..., found 2, and 0 with fewer", load,
            "fed_cifar100", tmp_path, 3)  # fmt: skip
    refused("num_clients: expected an integer >= 1, found 0", load, "fed_cifar100", tmp_path, 0)
    write(tmp_path / "emnist_all.sqlite", EMNIST[:2])
    refused("...: client_metadata: expected 1 to ... examples in the split all_test ..., found 0",
            load, "fed_emnist", tmp_path)  # fmt: skip
