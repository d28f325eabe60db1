"""Reader of TensorFlow Datasets that needs no TensorFlow."""

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ccfl_jax.checks import check_labels, integer_vector

_PROBE_SECONDS = 8.0


def load_tfds(
    name: str, data_dir: str | Path | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Loads a supervised TFDS data set of equally shaped samples, such as images with labels.

    Reads the `array_record` files of a prepared data set with `tfds.data_source`, so TensorFlow
    is neither needed nor imported. If the data set is not prepared and its host answers, TFDS
    downloads and prepares it; for some data sets (Fashion-MNIST and CIFAR among them) TFDS's own
    preparation needs TensorFlow, and then it has to be prepared elsewhere once and copied.

    Args:
        name: TFDS name, such as "fashion_mnist" or "fashion_mnist:3.0.1".
        data_dir: TFDS data folder; by default $TFDS_DATA_DIR or ~/tensorflow_datasets.

    Returns:
        train and test, each a dict with "x" (array [n, ...] of the data set's own dtype) and "y"
        (int32 [n]), in the order of the files.

    Raises:
        ImportError: TFDS is not installed, or preparing the data set needs a missing package.
        ValueError: TFDS has no such data set, or it is not as described.
        FileNotFoundError: it is not prepared and its host does not answer; the message says
            which files are expected where. It comes within about ten seconds.
        OSError: TFDS could not download, prepare or read it.
    """
    tfds = _import_tfds()
    builder = _builder(tfds, name, data_dir)
    if not builder.is_prepared():
        _prepare(builder)
    place = f"TFDS {name!r} in {builder.data_path}"
    if not {"train", "test"} <= set(builder.info.splits):
        raise ValueError(
            f"{place}: expected splits train and test, found {list(builder.info.splits)}"
        )
    keys, features = builder.info.supervised_keys, builder.info.features
    if keys is None or len(keys) != 2 or not all(isinstance(key, str) for key in keys):
        raise ValueError(f"{place}: expected an input and a label as supervised keys, found {keys}")
    if not {*keys} <= set(features):
        raise ValueError(f"{place}: expected the features {keys}, found {sorted(features)}")
    train, test = (
        _merge(_samples(tfds, builder, name, split, data_dir), keys, place)
        for split in ("train", "test")
    )
    num_classes = getattr(features[keys[1]], "num_classes", None)
    if num_classes:
        check_labels(train["y"], num_classes, f"{place} train")
        check_labels(test["y"], num_classes, f"{place} test")
    return train, test


def _import_tfds() -> ModuleType:
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            f"TFDS: expected its package (pip install 'ccfl_jax[tfds]'), found {_first_line(error)}"
        ) from error
    return tensorflow_datasets


def _builder(tfds: ModuleType, name: str, data_dir: str | Path | None) -> Any:
    try:
        return tfds.builder(name, data_dir=data_dir)
    except Exception as error:
        raise ValueError(
            f"TFDS {name!r}: expected a data set that TFDS can open in "
            f"{data_dir or 'its data folder'}, found {_first_line(error)}"
        ) from error


def _prepare(builder: Any) -> None:
    """Lets TFDS download and prepare the data set, if its host answers."""
    urls = [url for url in builder.url_infos or {} if urlsplit(url).scheme in ("http", "https")]
    # TFDS retries, and sets no time limit on its requests.
    problem = _probe(urls[0]) if urls else None
    files = f"dataset_info.json, features.json and {builder.name}-{{train,test}}.array_record-*"
    if problem:
        raise FileNotFoundError(
            f"TFDS {builder.name!r}: expected {files} in {builder.data_path}, found none, and "
            f"{urlsplit(urls[0]).netloc} cannot be reached ({problem})"
        )
    try:
        builder.download_and_prepare(file_format="array_record")
    except ImportError as error:
        raise ImportError(
            f"TFDS {builder.name!r}: expected {files} in {builder.data_path}, found none, and it "
            f"cannot be prepared here ({_first_line(error)}): prepare it elsewhere and copy them"
        ) from error
    except Exception as error:
        raise OSError(
            f"TFDS {builder.name!r}: expected {files} in {builder.data_path}, found none, and they "
            f"cannot be prepared ({_first_line(error)})"
        ) from error


def _probe(url: str) -> str | None:
    """Returns why the URL's host cannot be reached, or None if it answers."""
    answer: list[str | None] = [f"no answer in {_PROBE_SECONDS:g} s"]

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            urllib.request.urlopen(request, timeout=_PROBE_SECONDS).close()
            answer[0] = None
        except urllib.error.HTTPError:
            answer[0] = None  # an error status is an answer
        except Exception as error:
            answer[0] = _first_line(error)

    # urllib's time limit does not cover the name look-up, hence the thread.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS)
    return answer[0]


def _samples(
    tfds: ModuleType, builder: Any, name: str, split: str, data_dir: str | Path | None
) -> Iterator[dict[str, Any]]:
    """Decodes the samples of a prepared split in the order of its files."""
    try:
        folder = os.path.abspath(builder.data_path)
        for path in builder.info.splits[split].filepaths:
            if os.path.dirname(os.path.abspath(path)) != folder:
                raise ValueError(f"dataset_info.json: expected files in its folder, found {path}")
        source = tfds.data_source(name, split=split, data_dir=data_dir, download=False)
        for row in range(len(source)):
            yield source[row]
    except Exception as error:
        raise OSError(
            f"TFDS {name!r}: expected array_record files of split {split} in {builder.data_path}, "
            f"found {_first_line(error)}"
        ) from error


def _merge(
    samples: Iterator[dict[str, Any]], keys: tuple[str, str], place: str
) -> dict[str, np.ndarray]:
    xs, ys = [], []
    for sample in samples:
        x, y = (np.asarray(sample[key]) for key in keys)
        first = xs[0] if xs else x
        if (x.shape, x.dtype) != (first.shape, first.dtype) or y.ndim:
            raise ValueError(
                f"{place}: expected inputs of one kind and scalar labels, found inputs "
                f"{first.dtype} {first.shape} and {x.dtype} {x.shape}, a label of shape {y.shape}"
            )
        xs.append(x)
        ys.append(y)
    if not xs:
        raise ValueError(f"{place}: expected samples in train and test, found a split without")
    labels = integer_vector(f"labels of {place}", np.stack(ys))
    if not 0 <= labels.min() <= labels.max() < 2**31:
        raise ValueError(
            f"labels of {place}: expected 0 to {2**31 - 1}, found {labels.min()} to {labels.max()}"
        )
    return {"x": np.stack(xs), "y": labels.astype(np.int32)}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
