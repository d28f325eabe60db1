"""data/readers/npz.py, samples.py: a user's own arrays, and every fault that they may have."""

import numpy as np
import pytest
from refusal import refused

from ccfl_jax.data import load_npz

RNG = np.random.default_rng(0)
ARRAYS = {
    "x_train": RNG.normal(size=(12, 5)),
    "y_train": np.arange(12) % 4,
    "x_test": RNG.normal(size=(3, 5)),
    "y_test": np.array([0, 6, 1], np.uint8),
    "client_train": np.array([70, -1, 70, 5] * 3),
}


def write(folder, **changed):
    path = folder / "own.npz"
    arrays = ARRAYS | changed
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_arrays_come_in_the_dtypes_of_the_house(tmp_path):
    """Ids -1, 5, 70 are the clients 0, 1, 2; a label that only the test part has counts too."""
    train, test, num_classes = load_npz(write(tmp_path))
    assert num_classes == 7 and {*train} == {"x", "y", "client"} and {*test} == {"x", "y"}
    for part, name in ((train, "train"), (test, "test")):
        assert part["x"].dtype == np.float32 and part["y"].dtype == np.int32
        np.testing.assert_array_equal(part["x"], ARRAYS[f"x_{name}"].astype(np.float32))
        np.testing.assert_array_equal(part["y"], ARRAYS[f"y_{name}"])
    assert train["client"].dtype == np.int32 and train["client"].tolist() == [2, 0, 2, 1] * 3
    assert "client" not in load_npz(write(tmp_path, client_train=None))[0]


@pytest.mark.parametrize(("dtype", "shape", "kept", "seen"), [
    (np.uint8, (6, 7), np.uint8, (6, 7, 1)),  # grey images
    (np.uint8, (6, 7, 3), np.uint8, (6, 7, 3)),
    (np.uint8, (6,), np.uint8, (6,)),
    (np.float16, (6, 7), np.float32, (6, 7)),
    (np.bool_, (6,), np.float32, (6,)),
    (np.int64, (6,), np.int32, (6,)),
])  # fmt: skip
def test_kinds_of_inputs(tmp_path, dtype, shape, kept, seen):
    own = {
        f"x_{part}": np.ones((rows, *shape), dtype) for part, rows in (("train", 12), ("test", 3))
    }
    for part in load_npz(write(tmp_path, **own))[:2]:
        assert part["x"].dtype == kept and part["x"].shape[1:] == seen and (part["x"] == 1).all()


def test_whole_floats_are_labels(tmp_path):
    train, _, _ = load_npz(write(tmp_path, y_train=(np.arange(12) % 4).astype(float)))
    assert train["y"].dtype == np.int32 and train["y"].tolist() == [0, 1, 2, 3] * 3


def with_value(name, place, value, dtype=None):
    array = ARRAYS[name].astype(dtype or ARRAYS[name].dtype)
    array[place] = value
    return {name: array}


@pytest.mark.parametrize(("changed", "message"), [
    ({"y_test": None}, "expected ['x_train', 'y_train', 'x_test', 'y_test'] and optionally "
     "client_train, found missing ['y_test'], unknown [] in 4 arrays"),
    ({"z": np.zeros(2)}, "expected ..., found missing [], unknown ['z.npy'] in 6 arrays"),
    ({"y_train": np.array(["a"] * 12)},
     "y_train: expected booleans, integers or floats, found ..."),
    (with_value("x_train", (7, 2), np.nan),
     "x_train: expected finite numbers of float32, found nan in row 7"),
    (with_value("x_test", (2, 0), 1e39),
     "x_test: expected finite numbers of float32, found 1e+39 in row 2"),
    ({"x_train": np.full((12, 5), 2**31)},
     "x_train: expected integers of 32 bits, found 2147483648 in row 0"),
    ({"x_train": np.zeros((0, 5))}, "x_train: expected numbers [N, ...], found float64 [0, 5]"),
    ({"x_test": np.float64(3)}, "x_test: expected numbers [N, ...], found float64 []"),
    ({"y_train": np.zeros(11, int)},
     "y_train: expected one label for each of 12 rows, found int64 [11]"),
    ({"y_test": np.zeros((3, 2), int)},
     "y_test: expected one label for each of 3 rows, found int64 [3, 2]"),
    (with_value("y_train", 4, -1), "y_train: expected integers from 0, found -1 in row 4"),
    (with_value("y_train", 4, 0.5, float), "y_train: expected integers from 0, found 0.5 in row 4"),
    (with_value("y_train", 4, np.nan, float),
     "y_train: expected integers from 0, found nan in row 4"),
    (with_value("y_train", 4, 1000), "y: expected labels below 1000, found 1000"),
    ({"client_train": np.zeros(3, int)},
     "client_train: expected one id for each of 12 rows, found 3"),
    ({"client_train": np.zeros(12)},
     "client_train: expected ids that are all integers or all texts, found 0.0 in row 0"),
    ({"x_test": np.zeros((3, 4))},
     "x_test: expected samples like those of training, float32 [5], found float32 [4]"),
    ({"x_test": np.zeros((3, 5), np.uint8)},
     "x_test: expected samples like those of training, float32 [5], found uint8 [5]"),
])  # fmt: skip
def test_every_fault_is_named_with_its_row(tmp_path, changed, message):
    path = write(tmp_path, **changed)
    refused(f"{path}: {message}", load_npz, path)


def test_what_is_no_npz(tmp_path):
    path = tmp_path / "a.npz"
    refused(f"{path}: No such file or directory", load_npz, path, kind=FileNotFoundError)
    path.write_bytes(b"no zip")
    refused(f"{path}: expected an npz file, found ...", load_npz, path)
    np.savez(path, **ARRAYS | {"x_train": np.array([object()])}, allow_pickle=True)
    refused(f"{path}: expected ..., found ...", load_npz, path)
