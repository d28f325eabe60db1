"""data/readers/arrow.py: Parquet files and what Hugging Face's `save_to_disk` writes."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from refusal import refused

from ccfl_jax.data import load_huggingface, load_parquet

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 2, 3)).astype(np.float32)
TRAIN = {"x": X.tolist(), "y": [0, 1, 2, 3, 1], "client": ["b", "a", "b", "c", "a"]}
TEST = {"x": X[:2].tolist(), "y": [0, 4], "client": ["c", "z"]}
HUGGING = "data-00000-of-00001.arrow"


def table(columns, **types):
    return pa.table({n: pa.array(values, types.get(n)) for n, values in columns.items()})


def write_parquet(folder, train, test):
    folder.mkdir(exist_ok=True)
    for name, tables in (("train", train), ("test", test)):
        for k, one in enumerate(tables if isinstance(tables, list) else [tables]):
            pq.write_table(one, folder / f"{name}-{k:05d}.parquet", row_group_size=2)
    return folder


def write_saved(folder, train, test):
    """As `DatasetDict.save_to_disk` does: a stream in each file, named in state.json."""
    for name, one in (("train", train), ("test", test)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        with pa.ipc.new_stream(folder / name / HUGGING, one.schema) as stream:
            stream.write_table(one, max_chunksize=2)
        state = {"_data_files": [{"filename": HUGGING}], "_fingerprint": "f", "_split": name}
        (folder / name / "state.json").write_text(json.dumps(state))
    return folder


def encoded(pixels, form="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return {"bytes": file.getvalue(), "path": None}


WRITERS = [(write_parquet, load_parquet), (write_saved, load_huggingface)]


@pytest.mark.parametrize(("write", "load"), WRITERS)
@pytest.mark.parametrize("kind", [None, pa.list_(pa.list_(pa.float32(), 3), 2),
                                  pa.large_list(pa.list_(pa.float64()))])  # fmt: skip
def test_lists_are_axes_and_clients_are_numbered_by_their_ids(tmp_path, write, load, kind):
    """z of the test part is no client of training."""
    types = {"x": kind} if kind else {}
    train, test, classes = load(write(tmp_path / "d", table(TRAIN, **types), table(TEST, **types)))
    assert classes == 5 and train["x"].dtype == np.float32 and train["y"].dtype == np.int32
    np.testing.assert_array_equal(train["x"], X)
    np.testing.assert_array_equal(test["x"], X[:2])
    assert train["y"].tolist() == TRAIN["y"] and test["y"].tolist() == [0, 4]
    assert train["client"].tolist() == [1, 0, 1, 2, 0] and test["client"].tolist() == [2, -1]
    assert train["client"].dtype == test["client"].dtype == np.int32


@pytest.mark.parametrize(("write", "load"), WRITERS)
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3)])
def test_encoded_images_under_other_names(tmp_path, write, load, shape):
    pixels = RNG.integers(0, 256, (4, *shape)).astype(np.uint8)
    columns = {
        "image": [encoded(one) for one in pixels],
        "label": [0, 1, 2, 0],
        "writer": [7, 7, 3, 5],
    }
    own = table(columns)
    train, test, classes = load(write(tmp_path / "d", own, own), "image", "label", "writer")
    assert classes == 3 and train["x"].dtype == np.uint8
    np.testing.assert_array_equal(train["x"], pixels.reshape(4, 4, 5, -1))
    assert train["client"].tolist() == test["client"].tolist() == [2, 2, 0, 1]
    assert "client" not in load(tmp_path / "d", "image", "label")[0]


def test_several_files_are_one_part(tmp_path):
    whole = table(TRAIN)
    folder = write_parquet(tmp_path / "d", [whole.slice(0, 3), whole.slice(3)], table(TEST))
    train, _, _ = load_parquet(folder)
    np.testing.assert_array_equal(train["x"], X)
    assert train["client"].tolist() == [1, 0, 1, 2, 0]


def test_what_the_package_itself_writes(tmp_path):
    """Of rows in another order it writes them so; labels have names there, images two axes."""
    datasets = pytest.importorskip("datasets", reason="a heavy package, which nothing here needs")
    features = datasets.Features({
        "x": datasets.Array2D((2, 3), "float32"), "y": datasets.ClassLabel(names=[*"abcde"]),
        "client": datasets.Value("string"),
    })  # fmt: skip
    train = datasets.Dataset.from_dict(TRAIN, features=features)
    test = datasets.Dataset.from_dict(TEST, features=features).select([1, 0])
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "d")
    own, held, classes = load_huggingface(tmp_path / "d")
    np.testing.assert_array_equal(own["x"], X)
    assert held["y"].tolist() == [4, 0] and classes == 5


PIXELS = np.zeros((4, 5), np.uint8)
IMAGES = {"x": [encoded(PIXELS)] * 5}
PALETTE = io.BytesIO()
Image.fromarray(PIXELS).convert("P").save(PALETTE, "PNG")
FAULTS = {
    "no label column": (TRAIN | {"label": TRAIN["y"]}, "y", "expected columns x, y, client, ..."),
    "a missing row": ({"x": [*TRAIN["x"][:3], None, TRAIN["x"][4]]}, None,
                      "x: expected a value, found none in row 3"),
    "a missing number": ({"x": [*TRAIN["x"][:4], [[1, 2, 3], [4, None, 6]]]}, None,
                         "x: expected a value, found none in row 4"),
    "another shape": ({"x": [*TRAIN["x"][:2], [[1.0, 2], [3, 4]], *TRAIN["x"][3:]]}, None,
                      "x: expected rows of one shape, found another in row 2"),
    "texts": ({"x": [["a"]] * 5}, None, "x: expected numbers, found string"),
    "no numbers": ({"x": [[]] * 5}, None, "x: expected numbers, found none"),
    "a missing label": ({"y": [0, 1, None, 2, 3]}, None,
                        "y: expected a value, found none in row 2"),
    "labels as texts": ({"y": [*"abcde"]}, None, "y: expected numbers, found string"),
    "a label that is unknown": ({"y": [0, 1, 2, -1, 0]}, None,
                                "y: expected integers from 0, found -1 in row 3"),
    "labels of two axes": ({"y": [[0]] * 5}, None,
                           "y: expected one label for each of 5 rows, found int64 [5, 1]"),
    "nan": ({"x": [0.0, 1.0, np.nan, 3.0, 4.0]}, None,
            "x: expected finite numbers of float32, found nan in row 2"),
    "images of two sizes": ({"x": [*IMAGES["x"][:4], encoded(PIXELS[1:])]}, None,
                            "x: expected images L or RGB of one size, found L (3, 5) in row 4"),
    "an image of a palette": ({"x": [{"bytes": PALETTE.getvalue(), "path": None}] * 5}, None,
                              "x: expected images L or RGB of one size, found P (4, 5) in row 0"),
    "no image": ({"x": [{"bytes": b"GIF89a", "path": None}] * 5}, None,
                 "x: expected an image, found ... in row 0"),
    "an image elsewhere": ({"x": [{"bytes": None, "path": "/etc/passwd"}] * 5}, None,
                           "x: expected an image, found ... in row 0"),
}  # fmt: skip


@pytest.mark.parametrize(("write", "load"), WRITERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named_with_file_column_and_row(tmp_path, write, load, fault):
    changed, dropped, message = FAULTS[fault]
    broken = table({n: values for n, values in (TRAIN | changed).items() if n != dropped})
    folder = write(tmp_path / "d", broken, table(TEST))
    file = "train-00000.parquet" if load is load_parquet else f"train/{HUGGING}"
    refused(f"{folder / file}: {message}", load, folder)


def test_faults_of_folders(tmp_path):
    own, test = table(TRAIN), table(TEST)
    message = f"Parquet: expected train*.parquet in {tmp_path}, found none"
    refused(message, load_parquet, tmp_path, kind=FileNotFoundError)
    message = f"save_to_disk: expected {tmp_path}/train/state.json, found none"
    refused(message, load_huggingface, tmp_path, kind=FileNotFoundError)
    folder = write_parquet(tmp_path / "a", own, test)
    refused("...train-00000.parquet: expected columns x, y, writer, found ['x', 'y', 'client']",
            load_parquet, folder, "x", "y", "writer")  # fmt: skip
    (folder / "test-00000.parquet").write_bytes(b"PAR1")
    refused("...test-00000.parquet: expected a table of columns, found ...", load_parquet, folder)
    folder = write_parquet(tmp_path / "b", [own, own.drop_columns("client")], test)
    refused("...train-00001.parquet: expected clients in all files or in none, found both",
            load_parquet, folder)  # fmt: skip
    flat = table(TRAIN | {"x": [1.0] * 5})
    folder = write_parquet(tmp_path / "c", [own, flat], test)
    refused("...train-00001.parquet: file: expected samples like those of training, float32 [2, 3],"
            " found float32 []", load_parquet, folder)  # fmt: skip
    refused(f"{tmp_path}/e: client: expected ids that are all integers or all texts, found None in "
            "row 1", load_parquet, write_parquet(tmp_path / "e", table(TRAIN | {
                "client": ["a", None, "b", "b", "b"]}), test))  # fmt: skip


@pytest.mark.parametrize(("state", "found"), [
    ("[]", "None"), ('{"_data_files": []}', "None"), ('{"_data_files": [3]}', "None"),
    ('{"_data_files": [{"filename": "../a"}]}', "'../a'"), ('{"_data_files": "ab"}', "None"),
    ('{"_data_files": [{"filename": "a\\u0000"}]}', "'a\\x00'"),
])  # fmt: skip
def test_files_of_a_saved_split_are_in_its_folder(tmp_path, state, found):
    folder = write_saved(tmp_path / "d", table(TRAIN), table(TEST))
    (folder / "test/state.json").write_text(state)
    message = f"{folder}/test/state.json: expected names of _data_files, found {found}"
    refused(message, load_huggingface, folder)
    (folder / "test/state.json").write_text('{"_data_files": [{"filename": "b.arrow"}]}')
    message = f"{folder}/test/state.json: expected the files of _data_files, found no b.arrow"
    refused(message, load_huggingface, folder)
