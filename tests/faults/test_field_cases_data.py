"""Faults people met in other simulators, as `test_field_cases.py`: partitions and data sets."""

import gzip

import jax
import numpy as np
import pytest
from problems import make_schedule, values_of, values_task

import ccfl_jax as ccfl
from ccfl_jax.data import read_idx
from experiments.config import run_flags
from experiments.corpora import stackoverflow_files
from experiments.training import parts, run

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


def test_pt_07_a_number_is_the_same_client_in_data_and_schedule():
    """Client i holds the value i, which its round takes off x = 0."""
    data, task = values_of(*([client] for client in range(10))), values_task()
    server = ccfl.cc_fedavg()
    round_fn = ccfl.build_round(task, server, 1.0, batch_size=1)
    state = ccfl.init_state(task, server, jax.random.key(0))
    for client in range(10):
        assert data.client(client)["v"].tolist() == [client]
        end, _ = ccfl.run_rounds(round_fn, state, make_schedule([[client]]), data)
        assert float(end.params["x"]) == -client
    for client, found in ((10, "found client 10"), (-1, "client: found -1")):
        with pytest.raises(IndexError, match=f"found {client}"):
            data.client(client)
        with pytest.raises(ValueError, match=found):
            ccfl.run_rounds(round_fn, state, make_schedule([[client]]), data)


def test_pt_10_as_many_clients_as_asked_for_or_both_numbers():
    """Ten clients of six samples, and of data that come with seven clients."""
    dealt = ccfl.partition_iid(np.zeros(6, int), 10, seed=0)
    assert [len(own) for own in dealt] == [1] * 6 + [0] * 4
    with pytest.raises(ValueError, match="10 .*need 100, have 6"):
        ccfl.partition_dirichlet(np.zeros(6, int), 10, 0.5, seed=0)
    args = ["--dataset=synthetic", "--model=logistic", "--partition=natural", "--server_lr=1"]
    config = run_flags.parse(["train", *args, "--num_clients=10"])
    with pytest.raises(ValueError, match="--num_clients: expected 7, the clients of, found 10 .*"):
        parts.clients(config, {"y": np.zeros(7, int), "client": np.arange(7)})


def test_pt_10_a_run_says_how_many_clients_have_too_few_samples(tmp_path, capsys):
    """Six clients with 1, 2, 3 and three times 4 samples, of which 3 are asked for."""
    words, tags = [f"w{k}" for k in range(10_000)], [f"t{k}" for k in range(500)]
    examples = [
        stackoverflow_files.Example(split, client, words[:5], words, tags)
        for client in range(6)
        for split in ("train", "test")
        for _ in range(min(client + 1, 4))
    ]
    stackoverflow_files.write(tmp_path / "corpus", examples)
    asked = ["--dataset=stackoverflow", "--model=tags", "--partition=natural", "--rounds=1"]
    asked += ["--num_clients=3", "--buffer_size=2", "--min_examples=3", "--server_lr=1"]
    asked += [f"--data_dir={tmp_path}/corpus", f"--out_dir={tmp_path}/run"]
    run.run(run_flags.parse(["train", *asked]))
    assert "; 2 more have fewer than 3 and are left out" in capsys.readouterr().out


def test_ds_03_one_byte_changed_in_a_compressed_file_is_found(tmp_path):
    """Each byte in turn: refused by name, or read as before (a byte of the head)."""
    array = np.random.default_rng(0).integers(0, 256, (7, 5)).astype(np.uint8)
    plain = bytes([0, 0, 8, 2]) + (7).to_bytes(4, "big") + (5).to_bytes(4, "big") + array.tobytes()
    whole, path, refused = gzip.compress(plain, mtime=0), tmp_path / "images.gz", 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        path.write_bytes(changed)
        try:
            np.testing.assert_array_equal(read_idx(path), array)
        except ValueError as error:
            assert str(error).startswith(f"{path}: ")
            refused += 1
    assert refused >= len(whole) - 10  # ten bytes of gzip's head


def test_ds_07_no_test_sample_is_in_a_clients_hands(monkeypatch):
    """Samples are their own numbers; a run's clients share out the training part and no other."""
    ids = np.arange(500, dtype=np.float32).reshape(500, 1, 1, 1)
    labels = np.arange(500, dtype=np.int32) % 10
    is_test = np.arange(500) % 5 == 0
    both = [{"x": ids[one], "y": labels[one]} for one in (~is_test, is_test)]
    monkeypatch.setattr(ccfl, "load_dataset", lambda name, data_dir: tuple(both))
    args = ["x", "--dataset=digits", "--model=logistic", "--num_clients=12", "--server_lr=1"]
    for partition in ("iid", "dirichlet", "dirichlet_client"):
        config = run_flags.parse([*args, f"--partition={partition}"])
        own, test, _ = parts.load(*parts.source(config))
        data = ccfl.FederatedData.from_offsets(own, *parts.owners(config, own))
        held = np.concatenate([data.client(client)["x"].ravel() for client in range(12)])
        assert sorted(held) == np.flatnonzero(~is_test).tolist()
        assert not set(held) & set(test["x"].ravel())
