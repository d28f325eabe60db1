"""Data sets by name, as NumPy arrays."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ccfl_jax.checks import check_labels
from ccfl_jax.data.readers.characters import NUM_IDS
from ccfl_jax.data.readers.cifar import load_cifar
from ccfl_jax.data.readers.idx import read_idx
from ccfl_jax.data.readers.stackoverflow import load_stackoverflow
from ccfl_jax.data.readers.stackoverflow_words import load_stackoverflow_nwp
from ccfl_jax.data.readers.tfds import load_tfds
from ccfl_jax.data.readers.tff import load_tff
from ccfl_jax.data.synthetic import synthetic

# The data sets that load_dataset knows, and how many classes each has.
NUM_CLASSES = {
    "digits": 10,
    "fashion_mnist": 10,
    "synthetic": 10,
    "cifar10": 10,
    "cifar100": 100,
    "stackoverflow": 500,
    "stackoverflow_nwp": 10_004,
    "fed_emnist": 62,
    "fed_emnist_digitsonly": 10,
    "fed_cifar100": 100,
    "shakespeare": NUM_IDS,
}

_DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
_IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def load_dataset(
    name: str, data_dir: str | Path | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Loads a data set's train and test part.

    * `digits`: the 1,797 images that scikit-learn ships (UCI optical digits, Alpaydin and Kaynak
      1998); x float32 [n, 8, 8, 1], the pixels 0..16 divided by 16. There is no official split:
      test is every fifth image, those whose number is a multiple of 5 (360 of them).
    * `fashion_mnist` (Xiao, Rasul and Vollgraf 2017): x uint8 [n, 28, 28, 1], unscaled. Read from
      the four IDX files, plain or .gz (the plain one if both are there): in `data_dir`
      if given, and then only there; else where Debian's package dataset-fashion-mnist puts them,
      /usr/share/datasets/fashion-mnist; else through TFDS, see `load_tfds`.
    * `cifar10`, `cifar100` (Krizhevsky 2009): x uint8 [n, 32, 32, 3], unscaled; from the files of
      the binary version in `data_dir`, else through TFDS, see `load_cifar`.
    * `stackoverflow`: `load_stackoverflow(data_dir)` with its other arguments at their defaults;
      x int32 [n, 250] word ids, y int32 [n, tags] tags, both padded with -1.
    * `stackoverflow_nwp`: `load_stackoverflow_nwp(data_dir)` likewise; x, y int32 [n, 20] word ids.
    * `fed_emnist`, `fed_emnist_digitsonly`, `fed_cifar100`, `shakespeare`:
      `load_tff(name, data_dir)`.
    * `synthetic`: `synthetic()` with its default arguments; x float32 [n, 60].

    Args:
        name: one of the above.
        data_dir: folder of the data set's files. `digits` and `synthetic` read none.

    Returns:
        train and test, each a dict with "x" and "y" (int32 [n], in 0..NUM_CLASSES[name]-1); where
        the clients are part of the data, also "client" (int32 [n]). Of `stackoverflow`,
        `stackoverflow_nwp` and `shakespeare` y has a second axis.

    Raises:
        ValueError: unknown name, or a damaged file, or files that do not belong together.
        FileNotFoundError: files are missing; the message says which, and where they should be.
        ImportError: a package that the source needs is missing; the message says which.

    Examples:
        >>> train, test = ccfl.load_dataset("digits")
        >>> train["x"].shape, test["x"].shape, int(train["y"].max())
        ((1437, 8, 8, 1), (360, 8, 8, 1), 9)
    """
    if name == "digits":
        return _digits()
    if name == "fashion_mnist":
        return _fashion_mnist(data_dir)
    if name in ("cifar10", "cifar100"):
        return load_cifar(name, data_dir)
    if name == "synthetic":
        return synthetic()[:2]
    if name not in NUM_CLASSES:
        raise ValueError(f"data set: expected {', '.join(NUM_CLASSES)}, found {name!r}")
    if data_dir is None:
        raise ValueError(f"data_dir: expected the folder of the files of {name}, found none")
    if name == "stackoverflow":
        return load_stackoverflow(data_dir)[:2]
    if name == "stackoverflow_nwp":
        return load_stackoverflow_nwp(data_dir)[:2]
    return load_tff(name, data_dir)[:2]


def _digits() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise ImportError("digits: expected scikit-learn (pip install scikit-learn), found none")
    # Its file alone: `load_digits` reads that too, after an import of most of a second.
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",")
    x = (table[:, :-1].reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    y = table[:, -1].astype(np.int32)
    is_test = np.arange(y.size) % 5 == 0
    return {"x": x[~is_test], "y": y[~is_test]}, {"x": x[is_test], "y": y[is_test]}


def _fashion_mnist(
    data_dir: str | Path | None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    folder = _DEBIAN_FASHION_MNIST if data_dir is None else Path(data_dir)
    names = [name for pair in _IDX_FILES.values() for name in pair]
    found = {name: path for name in names if (path := _find(folder, name))}
    if not found and data_dir is None:
        return _fashion_mnist_from_tfds()
    missing = [name for name in names if name not in found]
    if missing:
        raise FileNotFoundError(
            f"Fashion-MNIST: expected {', '.join(names)} (or each with .gz) in {folder}, found no "
            f"{', '.join(missing)}"
        )
    train, test = (
        _read_pair(found[images], found[labels]) for images, labels in _IDX_FILES.values()
    )
    return train, test


def _find(folder: Path, name: str) -> Path | None:
    paths = (folder / name, folder / f"{name}.gz")
    return next((path for path in paths if path.is_file()), None)


def _read_pair(images_path: Path, labels_path: Path) -> dict[str, np.ndarray]:
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.shape[1:] != (28, 28):
        raise ValueError(f"{images_path}: expected [N, 28, 28], found shape {images.shape}")
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"{labels_path}: expected [{images.shape[0]}], one for each image of {images_path}, "
            f"found labels of shape {list(labels.shape)}"
        )
    check_labels(labels, NUM_CLASSES["fashion_mnist"], str(labels_path))
    return {"x": images[..., None], "y": labels.astype(np.int32)}


def _fashion_mnist_from_tfds() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    try:
        return load_tfds("fashion_mnist")
    except (ImportError, OSError) as error:
        raise type(error)(
            f"Fashion-MNIST: expected IDX files in data_dir or {_DEBIAN_FASHION_MNIST} (apt-get "
            f"install dataset-fashion-mnist), or with TFDS; found none; {error}"
        ) from error
