"""Clients and their examples in SQLite, as TensorFlow Federated publishes its data sets."""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, NamedTuple

import numpy as np

from ccfl_jax.data.readers.sqlite import file_size
from ccfl_jax.data.readers.tf_example import decode_example

# The stream of this module's draws: no other part of a run with the same seed shares it.
STREAM = 0x534F5441
COLUMNS = {
    "examples": {"split_name", "client_id", "serialized_example_proto"},
    "client_metadata": {"split_name", "client_id", "num_examples"},
}
# By client, for which SQLite uses an index on them or sorts.
EXAMPLES = (
    "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? "
    "AND client_id IN (SELECT value FROM json_each(?)) ORDER BY client_id, rowid"
)


class Wanted(NamedTuple):
    """Which examples of a split to read.

    Attributes:
        split: its name.
        clients: the ids of the n clients to read.
        sizes: int64 [n], how many examples each has.
        rows: int64 [n], how many of these to read, the first in the file.
    """

    split: str
    clients: list[str]
    sizes: np.ndarray
    rows: np.ndarray


def databases(*stems: str) -> list[str]:
    """The names that a database may have: plain or compressed."""
    return [f"{stem}.sqlite{packed}" for stem in stems for packed in ("", ".xz", ".lzma")]


def find(title: str, data_dir: str | Path, names: list[str]) -> Path:
    """The first of the files that is there; FileNotFoundError with `title` for none."""
    paths = (Path(data_dir) / name for name in names)
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise FileNotFoundError(
            f"{title}: expected one of {', '.join(names)} in {data_dir}, found none"
        )
    return found


def clients(db: sqlite3.Connection, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The ids of a split's clients, ascending, and how many examples each has, int64."""
    query = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?"
    sizes = {}
    for client, size in db.execute(query, (split,)):
        if not isinstance(client, str) or not isinstance(size, int) or size < 0:
            raise ValueError(
                "client_metadata: expected a text and an integer >= 0, found "
                f"{shortened((client, size))} in the split {split}"
            )
        if client in sizes:
            raise ValueError(
                f"client_metadata: expected one row for each client, found two of "
                f"{shortened(client)} in the split {split}"
            )
        sizes[client] = size
    total, most = sum(sizes.values()), file_size(db)
    if not 0 < total <= most:
        raise ValueError(
            f"client_metadata: expected 1 to {most} examples in the split {split} (the bytes of "
            f"the file), found {total}"
        )
    ids = sorted(sizes)
    return np.array(ids, object), np.array([sizes[client] for client in ids], np.int64)


def draw_train(
    db: sqlite3.Connection,
    split: str,
    num_clients: int | None,
    seed: int,
    least: int = 1,
    most: int | None = None,
) -> tuple[Wanted, dict[str, int]]:
    """The examples to read of a split for training, and its counts of clients.

    Args:
        db: the database.
        split: the name of the split.
        num_clients: clients drawn uniformly without replacement, in the order of their ids; None:
            all of them.
        seed: of that draw.
        least: clients with fewer examples are left out before.
        most: examples of a client.
    """
    ids, sizes = clients(db, split)
    chosen = np.flatnonzero(sizes >= least)
    counts = {"clients": len(ids), "too_small": len(ids) - chosen.size}
    if chosen.size < (num_clients or 1):
        raise ValueError(
            f"expected at least num_clients={num_clients or 1} clients with {least} training "
            f"examples or more, found {chosen.size}, and {counts['too_small']} with fewer"
        )
    if num_clients is not None:
        rng = np.random.default_rng([seed, STREAM])
        chosen = np.sort(rng.choice(chosen, num_clients, replace=False))
    sizes = sizes[chosen]
    rows = sizes if most is None else np.minimum(sizes, most)
    return Wanted(split, ids[chosen].tolist(), sizes, rows), counts


def every(db: sqlite3.Connection, split: str) -> Wanted:
    """All examples of a split."""
    ids, sizes = clients(db, split)
    return Wanted(split, ids.tolist(), sizes, sizes)


def examples(db: sqlite3.Connection, wanted: Wanted) -> Iterator[tuple[int, object]]:
    """Each wanted example with the place of its client, in the order of the file."""
    places = {client: place for place, client in enumerate(wanted.clients)}
    rows, found = wanted.rows.tolist(), [0] * len(places)
    for client, message in db.execute(EXAMPLES, (wanted.split, json.dumps(wanted.clients))):
        place = places.get(client)  # a column may say that 'a' equals 'A'
        if place is None:
            raise ValueError(
                f"client_metadata: expected every client of the split {wanted.split}, found no "
                f"{shortened(client)}"
            )
        if found[place] < rows[place]:
            yield place, message
        found[place] += 1
    for client, size, count in zip(wanted.clients, wanted.sizes.tolist(), found, strict=True):
        if count != size:
            raise ValueError(
                f"client {shortened(client)} of the split {wanted.split}: expected {size} "
                f"examples, as in client_metadata, found {count}"
            )


def decoded(
    db: sqlite3.Connection,
    wanted: Wanted,
    names: Collection[str],
    read: Callable[[dict[str, list]], Any],
) -> Iterator[tuple[int, Any]]:
    """`read` of the features `names` of each wanted example, with the place of its client.

    Raises:
        ValueError: with the client, for what is no example, or what `read` refuses.
    """
    for place, message in examples(db, wanted):
        try:
            if not isinstance(message, bytes):
                kind = type(message).__name__
                raise ValueError(f"expected an example as a blob, found {kind}")
            found = read(decode_example(message, names))
        except ValueError as error:
            client = shortened(wanted.clients[place])
            raise ValueError(f"client {client}: {error}") from error
        yield place, found


def numbers_in_train(train: Wanted, other: Wanted) -> np.ndarray:
    """int32 [n]: the number of each client of `other` among those of training, or -1."""
    number = {client: k for k, client in enumerate(train.clients)}
    return np.array([number.get(client, -1) for client in other.clients], np.int32)
