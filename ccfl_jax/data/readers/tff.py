"""EMNIST, CIFAR-100 and Shakespeare by clients, as TensorFlow Federated publishes them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np

from ccfl_jax.checks import check_seed, check_whole
from ccfl_jax.data.readers import characters
from ccfl_jax.data.readers.federated_sqlite import (
    COLUMNS,
    Wanted,
    databases,
    decoded,
    draw_train,
    every,
    find,
    numbers_in_train,
)
from ccfl_jax.data.readers.sqlite import decompressed, open_database

_LENGTH = 80  # of a sequence of characters, as in McMahan et al. 2017

Rows = tuple[np.ndarray, np.ndarray]  # "x" and "y" of an example, of one row or several


class _Release(NamedTuple):
    """A published database: names of its file, its splits, its features and what reads them.

    `same_clients` is whether the clients of both splits are the same.
    """

    stems: tuple[str, ...]
    splits: tuple[str, str]
    names: tuple[str, ...]
    read: Callable[[dict[str, list]], Rows]
    same_clients: bool = True


def load_tff(
    name: str,
    data_dir: str | Path,
    num_clients: int | None = None,
    seed: int = 0,
    cache_dir: str | Path = "~/.cache/ccfl_jax/sqlite",
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, int]]:
    """Loads a data set with its clients, from TensorFlow Federated's SQLite release.

    * `fed_emnist`: emnist_all.sqlite (or fed_emnist.sqlite), handwritten digits and letters of
      3,400 writers; x float32 [N, 28, 28, 1] from 0 to 1 as published, where 1 is the background;
      y 0..61. `fed_emnist_digitsonly`: the same file's digits, 3,383 writers, y 0..9.
    * `fed_cifar100`: cifar100.sqlite (or fed_cifar100.sqlite), 500 clients of 100 images, dealt out
      by Pachinko allocation; x uint8 [N, 32, 32, 3]; y the fine label, 0..99. The test clients are
      100 others, though with names of these.
    * `shakespeare`: shakespeare.sqlite, 715 roles; x, y int32 [N, 80], ids of `characters.py`. Each
      snippet is "begin", its characters and "end", padded to a multiple of 81 and cut into
      sequences of 81; x is the first 80 of one, y the last 80.

    These are the inputs of Reddi et al., Adaptive Federated Optimization (ICLR 2021). What becomes
    of an image there before the model (of CIFAR-100: a random crop of 24 x 24, a flip, each image
    normalised by itself) is no part of the data; the command line's `fed_cifar100` has crops of
    32 x 32 with a border, flips, and channels normalised, as `cifar100`.

    Files are plain, .xz or .lzma, which is decompressed once into `cache_dir`. Tables and trust are
    as in `load_stackoverflow`.

    Args:
        name: one of the above.
        data_dir: the folder of the file.
        num_clients: training clients drawn uniformly without replacement, numbered in the order of
            their ids; all of them by default. The test part is always whole.
        seed: 0..2**32-1, of that draw.
        cache_dir: folder for decompressed files.

    Returns:
        train, test: "x", "y", and "client" int32 [N], in train ascending from 0, in test the number
        of the client in train or -1.
        counts: "clients" of training, and "too_small", those of them without examples.

    Raises:
        FileNotFoundError: the file is missing; the message has the possible names.
        ValueError: an argument is not as described, or in one line with the file and the client,
            damage or another format.
        OSError: a file cannot be read, or `cache_dir` has no room.

    Examples:
        Of a folder with shakespeare.sqlite, in which one role says a sentence:

        >>> train, test, counts = ccfl.data.load_tff("shakespeare", "shakespeare")
        >>> train["x"].shape, counts["clients"]
        ((1, 80), 1)
    """
    if name not in _RELEASES:
        raise ValueError(f"data set: expected {', '.join(_RELEASES)}, found {name!r}")
    if num_clients is not None:
        check_whole("num_clients", num_clients, 1)
    check_seed(seed)
    release = _RELEASES[name]
    source = find(name, data_dir, databases(*release.stems))
    with open_database(decompressed(source, Path(cache_dir)), source, COLUMNS) as db:
        chosen, counts = draw_train(db, release.splits[0], num_clients, seed)
        held = every(db, release.splits[1])
        train = _arrays(db, chosen, release, numbers_in_train(chosen, chosen))
        own = (
            numbers_in_train(chosen, held) if release.same_clients else np.full(len(held.rows), -1)
        )
        test = _arrays(db, held, release, own)
    return train, test, counts


def _arrays(
    db: Connection, wanted: Wanted, release: _Release, numbers: np.ndarray
) -> dict[str, np.ndarray]:
    """The arrays of a part, client by client, whose numbers are `numbers`."""
    found: list[list[Rows]] = [[] for _ in wanted.clients]
    for place, rows in decoded(db, wanted, release.names, release.read):
        found[place].append(rows)
    x, y = (
        np.concatenate(every) for every in zip(*(one for of in found for one in of), strict=True)
    )
    sizes = [sum(len(rows[1]) for rows in of) for of in found]
    return {"x": x, "y": y, "client": np.repeat(numbers.astype(np.int32), sizes)}


def _image(
    features: dict[str, list], name: str, shape: tuple[int, ...], dtype: type, classes: int
) -> Rows:
    """One image, floats from 0 to 1 or bytes, and its label."""
    of_floats = dtype is np.float32
    pixels, most = np.asarray(features.get(name, [])), 1 if of_floats else 255
    size = int(np.prod(shape))
    if pixels.shape != (size,) or pixels.dtype.kind != ("f" if of_floats else "i"):
        kind = "floats" if of_floats else "integers"
        raise ValueError(
            f"expected {size} {kind} {name}, found {pixels.dtype} {list(pixels.shape)}"
        )
    if not (pixels >= 0).all() or not (pixels <= most).all():
        raise ValueError(
            f"expected {name} from 0 to {most}, found {pixels.min():g} to {pixels.max():g}"
        )
    label = features.get("label", [])
    if len(label) != 1 or not isinstance(label[0], int) or not 0 <= label[0] < classes:
        raise ValueError(f"expected a label from 0 to {classes - 1}, found {str(label)[:40]}")
    return pixels.astype(dtype).reshape(1, *shape), np.array(label, np.int32)


def _sequences(features: dict[str, list]) -> Rows:
    """The sequences of a snippet, and the same one character later."""
    texts = features.get("snippets", [])
    if len(texts) != 1 or not isinstance(texts[0], bytes):
        raise ValueError(f"expected one text snippets in an example, found {len(texts)} values")
    ids = characters.character_ids([texts[0].decode("latin-1")])  # a byte is a character
    ids = np.concatenate([[characters.BEGIN], ids, [characters.END]])
    whole = np.full(-(-len(ids) // (_LENGTH + 1)) * (_LENGTH + 1), characters.PADDING, np.int32)
    whole[: len(ids)] = ids
    rows = whole.reshape(-1, _LENGTH + 1)
    return rows[:, :-1], rows[:, 1:]


def _emnist(split: str, classes: int) -> _Release:
    read = partial(_image, name="pixels", shape=(28, 28, 1), dtype=np.float32, classes=classes)
    splits = f"{split}_train", f"{split}_test"
    return _Release(("emnist_all", "fed_emnist"), splits, ("pixels", "label"), read)


_RELEASES = {
    "fed_emnist": _emnist("all", 62),
    "fed_emnist_digitsonly": _emnist("digits_only", 10),
    "fed_cifar100": _Release(
        ("cifar100", "fed_cifar100"),
        ("train", "test"),
        ("image", "label"),
        partial(_image, name="image", shape=(32, 32, 3), dtype=np.uint8, classes=100),
        same_clients=False,
    ),
    "shakespeare": _Release(("shakespeare",), ("train", "test"), ("snippets",), _sequences),
}
