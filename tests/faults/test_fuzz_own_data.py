"""Every reader of a user's own data, and of TensorFlow Federated's, fed as `fuzzing` says."""

import json
from functools import partial

import corpus
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzzing import SHARES, Reader, check_reader, written

from ccfl_jax import data as fd
from ccfl_jax.data.readers.tf_example import encode_example

LETTER = encode_example({"pixels": [0.5] * 784, "label": [5]})
TABLE = pa.table({"x": [[0.5, 1], [2, 3], [4, 5]], "y": [0, 2, 1], "client": ["a", "b", "a"]})


def read_own(load, folder):
    train, test, num_classes = load(folder)
    for part in (train, test):
        assert part["x"].dtype in (np.float32, np.uint8, np.int32) and np.isfinite(part["x"]).all()
        assert part["y"].dtype == np.int32 and len(part["y"]) == len(part["x"])
        assert 0 <= part["y"].min() <= part["y"].max() < num_classes
    assert train["x"].shape[1:] == test["x"].shape[1:]
    assert train.get("client", np.zeros(1)).min() >= 0


def own_npz(folder):
    rows = {"x_train": np.ones((4, 3)), "x_test": np.ones((2, 3)), "client_train": np.arange(4)}
    np.savez_compressed(folder / "own.npz", y_train=np.arange(4), y_test=np.arange(2), **rows)


def own_parquet(folder):
    for part in ("train", "test"):
        pq.write_table(TABLE, folder / f"{part}.parquet")


def own_saved(folder):
    """One file for both parts, as in `own_leaf`."""
    with pa.ipc.new_stream(folder / "data.arrow", TABLE.schema) as stream:
        stream.write_table(TABLE)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))


def own_leaf(folder):
    """One file for both parts: its link is read where the other is."""
    text = {
        "x": ["To be, or not to be, that is the question: whether 'tis nobler in the mind to su"]
    }
    users = {"users": ["a", "b"], "num_samples": [1, 1]}
    data = {name: text | {"y": ["f"]} for name in users["users"]}
    (folder / "users.json").write_text(json.dumps(users | {"user_data": data}))


def read_linked(load, folder):
    for part in ("train", "test"):
        (folder / part).symlink_to(folder)
    try:
        read_own(load, folder)
    finally:
        for part in ("train", "test"):
            (folder / part).unlink()


def read_letters(folder):
    train, test, _ = fd.load_tff("fed_emnist", folder, cache_dir=folder / "cache")
    read_own(lambda at: (train, test, 62), folder)
    assert train["x"].min() >= 0 and train["x"].max() <= 1 and test["client"].min() >= -1


def own_letters(folder):
    rows = [(split, "a", LETTER) for split in ("all_train", "all_test")]
    corpus.write(folder, rows, name="emnist_all")
    for name in ("word_count", "tag_count"):
        (folder / name).unlink()


READERS = {
    "npz": Reader(written(own_npz), partial(read_own, lambda at: fd.load_npz(at / "own.npz"))),
    "LEAF": Reader(written(own_leaf), partial(read_linked, fd.load_leaf)),
    "EMNIST of clients": Reader(written(own_letters), read_letters),
    "Parquet": Reader(written(own_parquet), partial(read_own, fd.load_parquet)),
    "saved columns": Reader(written(own_saved), partial(read_linked, fd.load_huggingface)),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("share", SHARES)
def test_a_damaged_file_is_read_or_refused(tmp_path, name, share):
    check_reader(READERS[name], tmp_path, share)
