"""The CIFAR files: which byte is which, and what is refused."""

from unittest.mock import Mock

import numpy as np
import pytest
from data_files import CIFAR, CIFAR_FOLDERS, LABEL_BYTES, write_cifar
from refusal import refused

from ccfl_jax.data.readers import cifar

# Red, green and blue of two pixels that no relabelling of the axes leaves in their places.
PIXELS = {(0, 0, 1): 11, (1, 0, 1): 12, (2, 0, 1): 13, (0, 30, 2): 21, (2, 30, 2): 23}


@pytest.mark.parametrize(("name", "labels"), [("cifar10", [7]), ("cifar100", [3, 91])])
def test_planes_become_the_last_axis(tmp_path, name, labels):
    planes, expected = bytearray(3072), np.zeros((1, 32, 32, 3), np.uint8)
    for (channel, row, column), value in PIXELS.items():
        planes[1024 * channel + 32 * row + column] = value
        expected[0, row, column, channel] = value
    write_cifar(tmp_path, name)
    (tmp_path / CIFAR[name][-1]).write_bytes(bytes(labels) + planes)
    _, test = cifar.load_cifar(name, tmp_path)
    assert test["x"].dtype == np.uint8 and test["x"].flags.c_contiguous
    np.testing.assert_array_equal(test["x"], expected)
    assert test["y"].dtype == np.int32
    np.testing.assert_array_equal(test["y"], labels[-1:])


@pytest.mark.parametrize("inside", [False, True], ids=["folder", "subfolder"])
@pytest.mark.parametrize("name", CIFAR)
def test_all_files_are_read_in_their_order(tmp_path, name, inside):
    folder = write_cifar(tmp_path / CIFAR_FOLDERS[name] if inside else tmp_path, name, records=3)
    train, test = cifar.load_cifar(name, str(tmp_path))
    contents = [(folder / file).read_bytes() for file in CIFAR[name]]
    for part, content in ((train, b"".join(contents[:-1])), (test, contents[-1])):
        rows = np.frombuffer(content, np.uint8).reshape(-1, LABEL_BYTES[name] + 3072)
        planes = part["x"].transpose(0, 3, 1, 2).reshape(len(rows), 3072)
        np.testing.assert_array_equal(planes, rows[:, -3072:])
        np.testing.assert_array_equal(part["y"], rows[:, LABEL_BYTES[name] - 1])
    assert (len(train["y"]), len(test["y"])) == (15, 3)


@pytest.mark.parametrize(("name", "file", "size"), [
    *(("cifar10", "data_batch_3.bin", size) for size in (0, 3072, 2 * 3073 - 1, 2 * 3074)),
    ("cifar10", "test_batch.bin", 1),
    ("cifar100", "train.bin", 2 * 3073),  # as if it were a file of CIFAR-10
])  # fmt: skip
def test_files_without_whole_records_are_refused_by_name(tmp_path, name, file, size):
    path = write_cifar(tmp_path, name) / file
    path.write_bytes(bytes(size))
    whole = LABEL_BYTES[name] + 3072
    message = f"{path}: expected a multiple of {whole}, ..., found {size} bytes"
    refused(message, cifar.load_cifar, name, tmp_path)


@pytest.mark.parametrize(("name", "place"), [("cifar10", -1), ("cifar100", 0)])
def test_a_published_file_cut_off_at_the_end_of_a_record_is_refused(
    tmp_path, monkeypatch, name, place
):
    """As if the files had been published with the two records, or ten, that the tests write."""
    published = [10 if file == "train.bin" else 2 for file in CIFAR[name]]
    files = cifar._FILES[name]._replace(published=published)
    monkeypatch.setitem(cifar._FILES, name, files)
    path = write_cifar(tmp_path, name) / CIFAR[name][place]
    cifar.load_cifar(name, tmp_path)
    path.write_bytes(path.read_bytes()[: -LABEL_BYTES[name] - 3072])
    whole = published[place]
    message = f"{path}: expected {whole}, as published, ..., found {whole - 1} records"
    refused(message, cifar.load_cifar, name, tmp_path)


def test_published_sizes():
    sizes = {"cifar10": [30_730_000] * 6, "cifar100": [153_700_000, 30_740_000]}
    for name, bytes_ in sizes.items():
        assert [n * (LABEL_BYTES[name] + 3072) for n in cifar._FILES[name].published] == bytes_


@pytest.mark.parametrize(("name", "file", "labels", "message"), [
    ("cifar10", "data_batch_2.bin", [10], "(labels): expected 0 to 9, found label 10"),
    ("cifar10", "test_batch.bin", [255], "(labels): expected 0 to 9, found label 255"),
    ("cifar100", "train.bin", [20, 0], "(coarse labels): expected 0 to 19, found label 20"),
    ("cifar100", "test.bin", [0, 100], "(fine labels): expected 0 to 99, found label 100"),
])  # fmt: skip
def test_labels_out_of_range_are_refused_by_name(tmp_path, name, file, labels, message):
    path = write_cifar(tmp_path, name) / file
    path.write_bytes(bytes(labels) + path.read_bytes()[len(labels) :])
    refused(f"labels of {path} {message} (1 times)", cifar.load_cifar, name, tmp_path)


def test_missing_files_are_named(tmp_path):
    def missing(name, folder, files):
        place = f"{folder} or its folder {CIFAR_FOLDERS[name]}"
        known = f"...: expected {', '.join(CIFAR[name])} of ..., unpacked, in {place}"
        message = f"{known}, found no {', '.join(files)}"
        refused(message, cifar.load_cifar, name, folder, kind=FileNotFoundError)

    for name, files in CIFAR.items():
        missing(name, tmp_path, files)
        missing(name, tmp_path / "nowhere", files)
    write_cifar(tmp_path, "cifar10")
    (tmp_path / "data_batch_2.bin").unlink()
    (tmp_path / "data_batch_5.bin").unlink()
    missing("cifar10", tmp_path, ["data_batch_2.bin", "data_batch_5.bin"])


@pytest.mark.parametrize("name", ["cifar", "CIFAR10", "", None])
def test_other_names_are_refused(name):
    refused(f"data set: expected cifar10, cifar100, found {name!r}", cifar.load_cifar, name)


@pytest.mark.parametrize("name", CIFAR)
def test_without_a_folder_tfds_is_asked(monkeypatch, name):
    monkeypatch.setattr(cifar, "load_tfds", lambda name: ("train of " + name, "test"))
    assert cifar.load_cifar(name) == ("train of " + name, "test")
    archive = f"cifar-{name[5:]}-binary.tar.gz"
    message = f"CIFAR-...: expected data_dir, ...{archive} is unpacked, found none; why"
    for error in (ImportError, FileNotFoundError, OSError):
        monkeypatch.setattr(cifar, "load_tfds", Mock(side_effect=error("why")))
        refused(message, cifar.load_cifar, name, kind=error)
