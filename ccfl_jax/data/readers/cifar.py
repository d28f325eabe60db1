"""CIFAR-10 and CIFAR-100, from the binary version's files or through TFDS."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ccfl_jax.checks import check_labels
from ccfl_jax.data.readers.tfds import load_tfds

_SHAPE = (3, 32, 32)  # colour planes, red, green and blue; rows; columns
_PIXELS = 3 * 32 * 32


class _Files(NamedTuple):
    """The binary version's files; a record is one byte for each of `labels`, then the pixels."""

    title: str
    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    labels: tuple[tuple[str, int], ...]  # name and number of classes; the last is the target
    published: tuple[int, ...]  # records of each file, training files first


_FILES = {
    "cifar10": _Files(
        title="CIFAR-10",
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        train=tuple(f"data_batch_{k}.bin" for k in range(1, 6)),
        test="test_batch.bin",
        labels=(("labels", 10),),
        published=(10_000,) * 6,
    ),
    "cifar100": _Files(
        title="CIFAR-100",
        folder="cifar-100-binary",
        archive="cifar-100-binary.tar.gz",
        train=("train.bin",),
        test="test.bin",
        labels=(("coarse labels", 20), ("fine labels", 100)),
        published=(50_000, 10_000),
    ),
}


def load_cifar(
    name: str, data_dir: str | Path | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Loads CIFAR-10 or CIFAR-100 (Krizhevsky 2009): 50,000 training and 10,000 test images.

    With `data_dir` from the files of the binary version, in that folder or in the one that their
    archive makes there:

    * `cifar10`: data_batch_1.bin to data_batch_5.bin and test_batch.bin, perhaps in
      cifar-10-batches-bin; a record is the label, then the image;
    * `cifar100`: train.bin and test.bin, perhaps in cifar-100-binary; a record is the coarse label
      (one of 20), the fine label, then the image. The fine label is the one to predict.

    An image is 3,072 bytes: the red plane row by row, then the green, then the blue. Without
    `data_dir` through TFDS, see `load_tfds`.

    Files of any number of records are read, but where one has its published number, all must: a
    published file that was cut off at the end of a record is refused.

    Args:
        name: "cifar10" or "cifar100".
        data_dir: folder of the files.

    Returns:
        train and test, each a dict with "x" (uint8 [n, 32, 32, 3], unscaled; in the order of the
        files) and "y" (int32 [n]).

    Raises:
        ValueError: unknown name; a file that is empty, holds no whole number of records or a label
            out of range; files that do not belong together. The message names the file.
        FileNotFoundError: files are missing; the message says which.
        ImportError, OSError: TFDS cannot bring the data; the message says what to do.

    Examples:
        >>> import pathlib
        >>> pathlib.Path("cifar").mkdir(exist_ok=True)
        >>> record = bytes([3, 42]) + bytes(3072)  # the coarse label, the fine one, a black image
        >>> for name in ("train.bin", "test.bin"):
        ...     _ = pathlib.Path("cifar", name).write_bytes(record)

        >>> train, test = ccfl.data.load_cifar("cifar100", "cifar")
        >>> train["x"].shape, train["y"].tolist()
        ((1, 32, 32, 3), [42])
    """
    if name not in _FILES:
        raise ValueError(f"data set: expected {', '.join(_FILES)}, found {name!r}")
    files = _FILES[name]
    if data_dir is None:
        return _from_tfds(name, files)
    paths = _find(files, Path(data_dir))
    counts = [_count(path, files) for path in paths]
    _check_counts(files, paths, counts)
    *train, test = (_read(path, files) for path in paths)
    return {key: np.concatenate([part[key] for part in train]) for key in ("x", "y")}, test


def _find(files: _Files, folder: Path) -> list[Path]:
    """The paths of the training files, then of the test file."""
    names = (*files.train, files.test)
    places = {name: (folder / name, folder / files.folder / name) for name in names}
    found = {name: [path for path in places[name] if path.is_file()] for name in names}
    missing = [name for name in names if not found[name]]
    if missing:
        raise FileNotFoundError(
            f"{files.title}: expected {', '.join(names)} of {files.archive}, unpacked, in {folder} "
            f"or its folder {files.folder}, found no {', '.join(missing)}"
        )
    return [found[name][0] for name in names]


def _record(files: _Files) -> int:
    return len(files.labels) + _PIXELS


def _count(path: Path, files: _Files) -> int:
    """The number of records, by the size of the file alone."""
    size = path.stat().st_size
    if size == 0 or size % _record(files):
        raise ValueError(
            f"{path}: expected a multiple of {_record(files)}, the bytes of a {files.title} record,"
            f" at least one, found {size} bytes"
        )
    return size // _record(files)


def _check_counts(files: _Files, paths: list[Path], counts: list[int]) -> None:
    if not any(map(int.__eq__, counts, files.published)):
        return
    for path, count, published in zip(paths, counts, files.published, strict=True):
        if count != published:
            raise ValueError(
                f"{path}: expected {published}, as published, for files beside it have theirs, "
                f"found {count} records"
            )


def _read(path: Path, files: _Files) -> dict[str, np.ndarray]:
    records = np.fromfile(path, np.uint8).reshape(-1, _record(files))
    for column, (what, num_classes) in enumerate(files.labels):
        check_labels(records[:, column], num_classes, f"{path} ({what})")
    target = len(files.labels) - 1
    # Planes become the last axis: they are moved, not relabelled.
    x = records[:, target + 1 :].reshape(-1, *_SHAPE).transpose(0, 2, 3, 1)
    return {"x": np.ascontiguousarray(x), "y": records[:, target].astype(np.int32)}


def _from_tfds(name: str, files: _Files) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    try:
        return load_tfds(name)
    except (ImportError, OSError) as error:
        raise type(error)(
            f"{files.title}: expected data_dir, the folder where {files.archive} is unpacked, "
            f"found none; {error}"
        ) from error
