"""The TFDS reader, on small data sets in TFDS's own format on disk."""

import io
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
from unittest.mock import Mock

import numpy as np
import pytest
from data_files import CIFAR_FOLDERS, write_cifar
from refusal import refused

from ccfl_jax import data as fd
from ccfl_jax.data.readers import tfds as reader
from ccfl_jax.data.readers.cifar import load_cifar

tfds = pytest.importorskip("tensorflow_datasets")
SHAPE = (4, 5, 1)
COUNTS = {"train": 7, "test": 3}
INFO, FEATURES = "ccfl_tiny/1.0.0/dataset_info.json", "ccfl_tiny/1.0.0/features.json"


def image(number):
    return np.full(SHAPE, 10 * number, np.uint8)


def as_png(array):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array[..., 0] if array.shape[2] == 1 else array).save(file, "PNG")
    file.seek(0)
    return file


def make_builder(name, encode):
    """A TFDS data set of COUNTS images; image k has the label k % 3 and the grey level 10 k."""
    kinds = tfds.features.Image(shape=SHAPE), tfds.features.ClassLabel(num_classes=3)
    features = tfds.features.FeaturesDict(dict(zip(("image", "label"), kinds, strict=True)))
    members = {
        "VERSION": tfds.core.Version("1.0.0"),
        "_info": lambda self: tfds.core.DatasetInfo(
            builder=self, features=features, supervised_keys=("image", "label")
        ),
        "_generate_examples": lambda self, count: (
            (k, {"image": encode(image(k)), "label": k % 3}) for k in range(count)
        ),
        "_split_generators": lambda self, _: {
            split: self._generate_examples(count) for split, count in COUNTS.items()
        },
        "__module__": __name__,
    }
    return type(name, (tfds.core.GeneratorBasedBuilder,), members)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The folder of the tiny set, as TFDS prepares it."""
    folder = tmp_path_factory.mktemp("tfds")
    builder = make_builder("CcflTiny", as_png)(data_dir=folder)
    builder.download_and_prepare(file_format="array_record")
    return folder


@pytest.fixture
def folder(tmp_path, prepared):
    """A copy of it that may be damaged."""
    return shutil.copytree(prepared, tmp_path / "tfds")


def assert_is_the_tiny_set(train, test):
    for part, count in ((train, 7), (test, 3)):
        assert (part["x"].dtype, part["y"].dtype) == (np.uint8, np.int32)
        # TFDS shuffles while it writes, so the samples are told apart by their grey level.
        numbers = part["x"][:, 0, 0, 0] // 10
        np.testing.assert_array_equal(np.sort(numbers), np.arange(count))
        np.testing.assert_array_equal(part["x"], np.stack([image(k) for k in numbers]))
        np.testing.assert_array_equal(part["y"], numbers % 3)


def test_reads_a_prepared_data_set(prepared):
    assert list(prepared.glob("ccfl_tiny/1.0.0/ccfl_tiny-train.array_record-*"))
    assert_is_the_tiny_set(*fd.load_tfds("ccfl_tiny", prepared))
    assert_is_the_tiny_set(*fd.load_tfds("ccfl_tiny:1.0.0", str(prepared)))


def test_prepares_what_needs_no_network(tmp_path, prepared):
    assert_is_the_tiny_set(*fd.load_tfds("ccfl_tiny", tmp_path))
    assert (tmp_path / INFO).exists()


SCRIPT = """
    import sys

    from ccfl_jax.data import load_tfds

    assert "tensorflow_datasets" not in sys.modules
    trap, good, *bad = sys.argv[1:]
    sys.path.insert(0, trap)
    train, test = load_tfds("ccfl_tiny", good)
    assert train["x"].shape == (7, 4, 5, 1) and test["y"].shape == (3,)
    assert "tensorflow" not in sys.modules
    for folder in bad:
        try:
            load_tfds("ccfl_tiny", folder)
        except ValueError as error:
            print(error)
"""


def test_reads_without_tensorflow_and_without_the_builders_code(tmp_path, prepared):
    """In a new process the builder class does not exist: the files alone describe the samples."""
    trap = tmp_path / "trap" / "tensorflow"
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text("raise RuntimeError('tensorflow was imported')")
    folders = []
    change_label = FEATURES, '"numClasses": "3"', '"numClasses": "2"'
    change_key = INFO, '"featureKey": "label"', '"featureKey": "x"'
    for file, old, new in (change_label, change_key):
        folders.append(shutil.copytree(prepared, tmp_path / file.replace("/", "_")))
        text = (folders[-1] / file).read_text()
        assert old in text
        (folders[-1] / file).write_text(text.replace(old, new))
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), trap.parent, prepared, *folders]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    label, feature = done.stdout.splitlines()
    assert label.endswith("expected 0 to 1, found label 2 (2 times)")
    assert feature.endswith("expected the features ('image', 'x'), found ['image', 'label']")


FILES = "expected dataset_info.json, features.json and ...-{train,test}.array_record-* in "


def refuse_names(*_, **__):
    raise socket.gaierror(-2, "Name or service not known")


def test_without_network_the_error_says_which_files_go_where(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", refuse_names)
    expected = f"TFDS 'fashion_mnist': {FILES}{tmp_path / 'fashion_mnist'}..., found none"
    message = f"{expected}, and fashion-mnist....amazonaws.com cannot be reached (...)"
    refused(message, fd.load_tfds, "fashion_mnist", tmp_path, kind=FileNotFoundError)


def test_a_name_look_up_that_hangs_is_given_up(tmp_path, monkeypatch):
    released = threading.Event()

    def hang(*_, **__):
        released.wait(60)
        refuse_names()

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(reader, "_PROBE_SECONDS", 0.2)
    try:
        message = "...cannot be reached (no answer in 0.2 s)"
        refused(message, fd.load_tfds, "fashion_mnist", tmp_path, kind=FileNotFoundError)
    finally:
        released.set()


@pytest.mark.parametrize(("name", "error", "kind", "message"), [
    ("CcflNeedsTensorflow", ModuleNotFoundError("No tensorflow"), ImportError,
     "it cannot be prepared here (No tensorflow): prepare it elsewhere and copy them"),
    ("CcflFails", ConnectionError("connection reset\nby peer"), OSError,
     "they cannot be prepared (connection reset)"),
], ids=["a package is missing", "the download fails"])  # fmt: skip
def test_a_preparation_that_fails_says_which_files_go_where(tmp_path, name, error, kind, message):
    builder = make_builder(name, Mock(side_effect=error))
    message = f"...: {FILES}{tmp_path / builder.name}..., found none, and {message}"
    refused(message, fd.load_tfds, builder.name, tmp_path, kind=kind)


@pytest.mark.parametrize("name", ["ccfl_nothing", "Bad Name", "fashion_mnist:9.9.9", ""])
def test_unknown_names_are_refused_in_one_line(tmp_path, name):
    message = f"TFDS {name!r}: expected a data set that TFDS can open in {tmp_path}, found ..."
    refused(message, fd.load_tfds, name, tmp_path)


TRAIN = "TFDS 'ccfl_tiny': expected array_record files of split train in ..., found "


@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "flipped"])
def test_damaged_files_are_refused(folder, damage):
    (path,) = folder.glob("ccfl_tiny/1.0.0/ccfl_tiny-train.array_record-*")
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        half, rest = content[: len(content) // 2], content[len(content) // 2 :]
        flipped = half + bytes([rest[0] ^ 255]) + rest[1:]
        path.write_bytes({"cut": half, "empty": b"", "flipped": flipped}[damage])
    refused(TRAIN + "...", fd.load_tfds, "ccfl_tiny", folder, kind=OSError)


OUTSIDE = "...dataset_info.json: expected files in its folder, found"


@pytest.mark.parametrize(("old", "new", "kind", "message"), [
    ('"array_record"', '"tfrecord"', OSError, TRAIN + "..."),
    ('"name": "test"', '"name": "held"', ValueError,
     "...: expected splits train and test, found ['train', 'held']"),
    ('"7"', '"9"', OSError, TRAIN + "..."),
    ('"{DATASET}-', '"../{DATASET}-', OSError, f"{OUTSIDE} ...ccfl_tiny..."),
    ('"{DATASET}-', '"/etc/{DATASET}-', OSError, f"{OUTSIDE} /etc/ccfl_tiny..."),
    ("{", "", ValueError, "TFDS 'ccfl_tiny': expected a data set that TFDS can ..., found ..."),
])  # fmt: skip
def test_descriptions_that_do_not_fit_are_refused(folder, old, new, kind, message):
    (folder / INFO).write_text((folder / INFO).read_text().replace(old, new, 1))
    refused(message, fd.load_tfds, "ccfl_tiny", folder, kind=kind)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_from_tfds_is_cifar_from_its_files(tmp_path, monkeypatch, name):
    """TFDS reads the same files by its own code; it opens and encodes without TensorFlow here."""
    from tensorflow_datasets.image_classification import cifar

    folder = write_cifar(tmp_path / CIFAR_FOLDERS[name], name, records=4)
    names = {"batches.meta": 10, "coarse_label_names": 20, "fine_label_names": 100}
    for file, count in names.items():
        (folder / f"{file}.txt").write_text("\n".join(map(str, range(count))))
    read, manager = cifar._load_data, tfds.download.DownloadManager

    def read_as_png(path, count=1):
        return ((labels, as_png(np.ascontiguousarray(x))) for labels, x in read(path, count))

    monkeypatch.setattr(cifar, "tf", Mock(**{"io.gfile.GFile": open}))
    monkeypatch.setattr(cifar, "_load_data", read_as_png)
    monkeypatch.setattr(manager, "download_and_extract", lambda self, url: str(tmp_path))
    builder = tfds.builder(name, data_dir=tmp_path / "tfds")
    builder.download_and_prepare(file_format="array_record")

    def rows(part):
        return sorted(zip(part["y"], map(bytes, part["x"]), strict=True))  # TFDS shuffles

    parts = load_cifar(name, tmp_path), fd.load_tfds(name, tmp_path / "tfds")
    for ours, theirs in zip(*parts, strict=True):
        assert ours["x"].shape == theirs["x"].shape and ours["y"].dtype == theirs["y"].dtype
        assert rows(ours) == rows(theirs)
