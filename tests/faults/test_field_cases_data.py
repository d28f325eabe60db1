"""Faults people met in other simulators, as `test_field_cases.py`: partitions and data sets."""

import gzip

import data_files
import numpy as np
import pytest
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.data import read_idx
from experiments.config import run_flags
from experiments.corpora import stackoverflow_files
from experiments.training import parts, report, run_setup

# 60,000 labels of ten balanced classes.
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10, dtype=np.int32), 6000))


@pytest.mark.parametrize("by", ["label", "client"])
def test_pt_06_labels_read_through_the_indices_are_the_samples_own(by):
    """Features are the labels; the mean largest share of a class stays that of alpha 0.1."""
    lists = ccfl.partition_dirichlet(LABELS, 100, 0.1, seed=0, by=by)
    data = ccfl.FederatedData.from_indices({"x": LABELS.astype("f")}, lists)
    shares = []
    for client, rows in enumerate(lists):
        np.testing.assert_array_equal(data.client(client)["x"], LABELS[rows])
        shares.append(np.bincount(LABELS[rows]).max() / len(rows))
    assert np.mean(shares) >= 0.45


def test_pt_10_as_many_clients_as_asked_for_or_both_numbers():
    """Ten clients of six samples, and of data that come with seven clients."""
    labels = np.zeros(6, int)
    assert [len(own) for own in ccfl.partition_iid(labels, 10, seed=0)] == [1] * 6 + [0] * 4
    message = "num_clients: expected at most 0, found 10 ...(need 100, have 6)"
    refused(message, ccfl.partition_dirichlet, labels, 10, 0.5, seed=0)
    args = ["--dataset=synthetic", "--model=logistic", "--partition=natural", "--server_lr=1"]
    config = run_flags.parse(["train", *args, "--num_clients=10"])
    own = {"y": np.zeros(7, int), "client": np.arange(7)}
    refused("--num_clients: expected 7, ..., found 10...", parts.clients, config, own)


def test_pt_10_a_run_says_how_many_clients_have_too_few_samples(tmp_path):
    """Six clients with 1, 2, 3 and three times 4 samples, of which 3 are asked for."""
    words, tags = [f"w{k}" for k in range(10_000)], [f"t{k}" for k in range(500)]
    examples = [
        stackoverflow_files.Example(split, client, words[:5], words, tags)
        for client in range(6) for split in ("train", "test") for _ in range(min(client + 1, 4))
    ]  # fmt: skip
    stackoverflow_files.write(tmp_path / "corpus", examples)
    asked = ["--dataset=stackoverflow", "--model=tags", "--partition=natural", "--rounds=1"]
    asked += ["--num_clients=3", "--buffer_size=2", "--min_examples=3", "--server_lr=1"]
    asked += [f"--data_dir={tmp_path}/corpus", f"--out_dir={tmp_path}/run", "--max_delay=0"]
    job = run_setup.prepare(run_flags.parse(["train", *asked]))
    try:
        assert "; 2 more have fewer than 3 and are left out" in report.header(job)
    finally:
        run_setup.close(job)


def test_ds_03_one_byte_changed_in_a_compressed_file_is_found(tmp_path):
    """Each byte in turn: refused by name, or read as before (a byte of the head)."""
    array = np.random.default_rng(0).integers(0, 256, (7, 5)).astype(np.uint8)
    whole = gzip.compress(data_files.idx_bytes(array), mtime=0)
    path, noticed = tmp_path / "images.gz", 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        path.write_bytes(changed)
        try:
            np.testing.assert_array_equal(read_idx(path), array)
        except ValueError as error:
            assert str(error).startswith(f"{path}: ")
            noticed += 1
    assert noticed >= len(whole) - 10  # ten bytes of gzip's head


def test_ds_07_no_test_sample_is_in_a_clients_hands(monkeypatch):
    """Samples are their own numbers; a run's clients share out the training part and no other."""
    ids = np.arange(500)
    split = (ids[ids % 5 != 0], ids[ids % 5 == 0])
    both = [{"x": own.astype("f")[:, None, None, None], "y": own % 10} for own in split]
    monkeypatch.setattr(ccfl, "load_dataset", lambda name, data_dir: tuple(both))
    args = ["x", "--dataset=digits", "--model=logistic", "--num_clients=12", "--server_lr=1"]
    for partition in ("iid", "dirichlet", "dirichlet_client"):
        config = run_flags.parse([*args, f"--partition={partition}"])
        own, _, test, *_ = parts.load(*parts.source(config))
        data = ccfl.FederatedData.from_offsets(own, *parts.dealt(config, own)["train"])
        held = np.concatenate([data.client(client)["x"].ravel() for client in range(12)])
        assert sorted(held) == split[0].tolist()
        assert not set(held) & set(test["x"].ravel())
