"""The data sets, the IDX reader and Synthetic(alpha, beta)."""

import gzip
import sys
import tracemalloc
from unittest.mock import Mock

import numpy as np
import pytest
from data_files import FASHION, fashion_images, idx_bytes, write_fashion
from refusal import refused

from ccfl_jax import data as fd
from ccfl_jax.data import datasets


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shape", [(5,), (3, 28, 28), (2, 1, 3, 4)])
def test_idx_comes_back(tmp_path, shape, compressed):
    array = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    content = idx_bytes(array)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content, mtime=0) if compressed else content)
    read = fd.read_idx(path)
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, array)


GOOD = idx_bytes(np.arange(20).reshape(4, 5))
NOISE = np.random.default_rng(0).integers(0, 256, (60, 60))
FIRST = "expected '00 00 08' and 1 to 8 dimensions, found the first bytes "
GZIP = "expected a whole gzip file, found "


@pytest.mark.parametrize(("content", "message"), [
    (b"", FIRST + "''"),
    (b"\x01" + GOOD[1:], FIRST + "'01 00 08 02'"),
    (GOOD[:2] + b"\x0d" + GOOD[3:], FIRST + "'00 00 0d 02'"),
    (GOOD[:3] + b"\x00" + GOOD[4:], FIRST + "'00 00 08 00'"),
    (GOOD[:9], "expected a header of 2 dimensions, found its end before"),
    (GOOD[:-1], "expected 20 items of shape (4, 5), found 19"),
    (GOOD + b"\0", "expected 20 items of shape (4, 5), found bytes after them"),
    (idx_bytes(np.zeros((0, 5))), "expected at least one item, found the shape (0, 5)"),
    (gzip.compress(idx_bytes(NOISE), mtime=0)[:1500], f"{GZIP}...end-of-stream..."),
    (gzip.compress(GOOD, mtime=0)[:-4] + b"\0\0\0\0", GZIP + "Incorrect length..."),
    (b"\x1f\x8b" + b"junk" * 9, GZIP + "..."),
])  # fmt: skip
def test_damaged_idx_is_refused_every_time(tmp_path, content, message):
    path = tmp_path / "broken"
    path.write_bytes(content)
    for _ in range(2):
        refused(f"{path}: {message}", fd.read_idx, path)


HUGE = bytes([0, 0, 8, 2]) + (2**20).to_bytes(4, "big") * 2 + b"12345"


@pytest.mark.parametrize(("content", "message", "most"), [
    (HUGE, f"expected {2**40} items of shape (1048576, 1048576), found 5", 16),
    (gzip.compress(HUGE, mtime=0),
     f"expected at most {2**30} items ..., found the shape (1048576, 1048576)", 16),
    (gzip.compress(GOOD + bytes(50_000_000), mtime=0), "expected 20 ..., found bytes ...", 4),
], ids=["claims too much", "packed", "more packed than it says"])  # fmt: skip
def test_no_more_is_read_than_there_is_and_the_header_says(tmp_path, content, message, most):
    path = tmp_path / "huge"
    path.write_bytes(content)
    assert len(content) < 100_000
    tracemalloc.start()
    refused(f"{path}: {message}", fd.read_idx, path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most * 2**20


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_fashion_mnist_is_read_from_the_given_folder(tmp_path, suffix):
    write_fashion(tmp_path, suffix)
    train, test = fd.load_dataset("fashion_mnist", tmp_path)
    np.testing.assert_array_equal(train["x"], fashion_images(12)[..., None])
    np.testing.assert_array_equal(test["x"], fashion_images(4)[..., None])
    assert train["x"].dtype == np.uint8
    np.testing.assert_array_equal(train["y"], np.arange(12) % 10)
    assert train["y"].dtype == test["y"].dtype == np.int32


def test_fashion_mnist_files_missing_from_the_given_folder(tmp_path):
    def missing(*names):
        message = f"...: expected {', '.join(FASHION)} ... in {folder}, found no {', '.join(names)}"
        refused(message, fd.load_dataset, "fashion_mnist", folder, kind=FileNotFoundError)

    folder = str(tmp_path)
    missing(*FASHION)
    write_fashion(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    missing("t10k-labels-idx1-ubyte")


@pytest.mark.parametrize(("name", "array", "message"), [
    ("train-labels-idx1", np.zeros(11), "expected [12], ..., found labels of shape [11]"),
    ("t10k-images-idx3", np.zeros((4, 28, 27)), "expected [N, 28, 28], found shape (4, 28, 27)"),
    ("train-labels-idx1", np.arange(12), "expected 0 to 9, found label 10 (1 times; 1 other ..."),
])  # fmt: skip
def test_fashion_mnist_files_that_do_not_fit_are_refused(tmp_path, name, array, message):
    write_fashion(tmp_path)
    path = tmp_path / f"{name}-ubyte"
    path.write_bytes(idx_bytes(array))
    refused(f"...{path}: {message}", fd.load_dataset, "fashion_mnist", tmp_path)


def test_fashion_mnist_looks_in_debians_folder_then_asks_tfds(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_DEBIAN_FASHION_MNIST", tmp_path)
    monkeypatch.setattr(datasets, "load_tfds", Mock(side_effect=FileNotFoundError("why")))
    message = f"...: expected IDX files in ... {tmp_path} (...fashion-mnist)...; found none; why"
    refused(message, fd.load_dataset, "fashion_mnist", kind=FileNotFoundError)
    monkeypatch.setattr(datasets, "load_tfds", lambda name: ("train of " + name, "test"))
    assert fd.load_dataset("fashion_mnist") == ("train of fashion_mnist", "test")
    write_fashion(tmp_path, ".gz")
    assert fd.load_dataset("fashion_mnist")[0]["x"].shape == (12, 28, 28, 1)


@pytest.mark.skipif(not datasets._DEBIAN_FASHION_MNIST.is_dir(), reason="package not installed")
def test_the_real_fashion_mnist():
    train, test = fd.load_dataset("fashion_mnist")
    assert train["x"].shape == (60_000, 28, 28, 1) and test["x"].shape == (10_000, 28, 28, 1)
    assert train["x"].dtype == np.uint8 and train["x"].max() == 255
    assert {*np.bincount(train["y"])} == {6000} and {*np.bincount(test["y"])} == {1000}


def test_digits():
    from sklearn.datasets import load_digits

    train, test = fd.load_dataset("digits")
    bunch = load_digits()
    assert train["x"].shape == (1437, 8, 8, 1) and train["x"].max() == 1
    assert (train["x"].dtype, train["y"].dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(test["x"][..., 0] * 16, bunch.images[::5])
    np.testing.assert_array_equal(test["y"], bunch.target[::5])
    kept = np.delete(np.arange(1797), np.arange(0, 1797, 5))
    np.testing.assert_array_equal(train["x"][..., 0] * 16, bunch.images[kept])
    np.testing.assert_array_equal(train["y"], bunch.target[kept])
    assert set(train["y"]) == set(range(fd.NUM_CLASSES["digits"]))


def test_packages_that_are_not_installed_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    message = "TFDS: expected its package (pip install 'ccfl_jax[tfds]'), found ..."
    refused(message, fd.load_tfds, "mnist", kind=ImportError)
    for name in ("digits", "synthetic"):
        assert len(fd.load_dataset(name)) == 2
    monkeypatch.setitem(sys.modules, "sklearn", None)
    message = "digits: expected scikit-learn (pip install scikit-learn), found none"
    refused(message, fd.load_dataset, "digits", kind=ImportError)


@pytest.mark.parametrize("name", ["cifar", "digits ", "Digits", "", None])
def test_unknown_names_are_refused_with_the_legal_ones(name):
    message = f"data set: expected {', '.join(fd.NUM_CLASSES)}, found {name!r}"
    refused(message, fd.load_dataset, name)


def test_synthetic_follows_its_formula():
    alpha, beta, seed, client = 0.5, 2.0, 11, 3
    train, test, indices = fd.synthetic(5, alpha, beta, seed)
    # The same stream, in the order of the formula: n, u, W, b, B, v, x.
    rng = np.random.default_rng([seed, 0x53594E54, client])
    size = int(np.exp(4 + 2 * rng.standard_normal())) + 50
    u = alpha * rng.standard_normal()
    weights = u + rng.standard_normal((10, 60))
    bias = u + rng.standard_normal(10)
    v = beta * rng.standard_normal() + rng.standard_normal(60)
    sigma = np.array([j**-1.2 for j in range(1, 61)])
    x = v + np.sqrt(sigma) * rng.standard_normal((size, 60))
    logits = x @ weights.T + bias
    rows, test_rows = indices[client], np.flatnonzero(test["client"] == client)
    assert (rows.size, test_rows.size) == (size - size // 5, size // 5)
    found_x = np.concatenate([train["x"][rows], test["x"][test_rows]])
    found_y = np.concatenate([train["y"][rows], test["y"][test_rows]])
    np.testing.assert_allclose(found_x, x, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found_y, logits.argmax(1))


def test_the_default_synthetic_is_federated():
    parts, (*expected, indices) = fd.load_dataset("synthetic"), fd.synthetic(100, 1.0, 1.0, 0)
    for part, same in zip(parts, expected, strict=True):
        for name in ("x", "y", "client"):
            np.testing.assert_array_equal(part[name], same[name])
            assert part[name].dtype == (np.float32 if name == "x" else np.int32)
    assert set(parts[0]["y"]) == set(range(fd.NUM_CLASSES["synthetic"]))
    np.testing.assert_array_equal(np.concatenate(indices), np.arange(parts[0]["y"].size))
    assert len(indices) == 100 and min(map(len, indices)) >= 40
    for own, rows in zip(fd.partition_natural(parts[0]["client"]), indices, strict=True):
        np.testing.assert_array_equal(own, rows)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"num_clients": 0}, "num_clients: expected an integer >= 1, found 0"),
    ({"alpha": -0.5}, "alpha: expected a number >= 0, found -0.5"),
    ({"beta": float("nan")}, "beta: expected a finite number, found nan"),
    ({"seed": -3}, "seed: expected an integer from 0 to 4294967295, found -3"),
])  # fmt: skip
def test_synthetic_refuses_bad_arguments(arguments, message):
    refused(message, fd.synthetic, **arguments)
