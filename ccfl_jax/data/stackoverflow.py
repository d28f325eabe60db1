"""Tag prediction on Stack Overflow: reader of the federated SQLite release."""

import sqlite3
from array import array
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as shortened
from typing import NamedTuple

import numpy as np

from ccfl_jax.checks import check_seed, check_whole
from ccfl_jax.data.sqlite import decompressed, file_size, open_database
from ccfl_jax.data.tf_example import decode_example
from ccfl_jax.data.word_counts import read_tag_ids, read_word_ids

# Names this module's draws, so that no other part of a run with the same seed shares them.
_STREAM = 0x534F5441
_DATABASES = [
    f"{stem}.sqlite{packed}"
    for stem in ("stackoverflow", "corpus")
    for packed in ("", ".xz", ".lzma")
]
_COLUMNS = {
    "examples": {"split_name", "client_id", "serialized_example_proto"},
    "client_metadata": {"split_name", "client_id", "num_examples"},
}
_OF_ONE = (
    "SELECT serialized_example_proto FROM examples "
    "WHERE split_name = ? AND client_id = ? ORDER BY rowid LIMIT ?"
)
_OF_ALL = (
    "SELECT client_id, serialized_example_proto FROM examples NOT INDEXED "
    "WHERE split_name = ? ORDER BY rowid"
)
_FEATURES = ("title", "tokens", "tags")
_LARGEST_ROW = 1 << 22
_SMALLEST_ROW = 12  # bytes of an example in the file: numbers that frame it, its split's name
_PADDING, _UNKNOWN = -1, -2


class _Wanted(NamedTuple):
    """Which rows of a split to read.

    Attributes:
        split: its name.
        ids: all its clients.
        sizes: int64, how many examples each has.
        chosen: int64 [n], the clients to read, as places in `ids`.
        rows: int64 [n], how many of the first examples of each.
    """

    split: str
    ids: list[str]
    sizes: np.ndarray
    chosen: np.ndarray
    rows: np.ndarray


def load_stackoverflow(
    data_dir: str | Path,
    num_clients: int | None = None,
    seed: int = 0,
    *,
    max_examples: int = 500,
    min_examples: int = 1,
    max_test: int = 10_000,
    vocabulary: int = 10_000,
    num_tags: int = 500,
    max_words: int = 250,
    keep_unknown: bool = True,
    cache_dir: str | Path = "~/.cache/ccfl_jax/sqlite",
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, int]]:
    """Loads posts with their tags, from the files of the federated Stack Overflow release.

    `data_dir` holds three files, of each the first that is there:

    * stackoverflow.sqlite or corpus.sqlite, plain, .xz or .lzma, with the tables
      `examples(split_name, client_id, serialized_example_proto)` and
      `client_metadata(client_id, split_name, num_examples)`. An example is a tf.train.Example with
      one text each of `title`, `tokens` (the body) and `tags`, joined by "|".
    * stackoverflow.word_count or word_count: lines of a word and a count, which does not rise.
    * stackoverflow.tag_count or tag_count: a JSON object of tag -> count.

    The first `vocabulary` words of the word file have the ids 0, 1, ...; the `num_tags` tags with
    the highest counts, of equals the first in the alphabet, are 0, 1, .... The release's texts are
    lower-case words already and are only split at white space. A text is the title, then the body,
    so that what is cut off, all beyond `max_words` ids, is the end of the body. A repeated word is
    there each time. Tags beyond the `num_tags` are left out; an example may so be left without any.

    A word outside the vocabulary has the id -2: it counts in the length that a bag of words is
    divided by and has no parameters, as in the program of Reddi et al. (Adaptive Federated
    Optimization, ICLR 2021). With `keep_unknown=False` it is left out, as in the baselines of
    TensorFlow Federated.

    Of a client the first examples in the file are used. Some of the clients are read through the
    index on `client_id`, which touches little more of a large file than it uses; half a split and
    more, or a file without that index, is read once from end to end. A compressed file is
    decompressed once, in pieces, into `cache_dir`; later calls find it there, as long as the path,
    size and time of the file are the same.

    The files are not trusted. The database is opened read-only; its header, its tables and the type
    of every value are checked, and SQLite's steps and the examples that `client_metadata` claims
    are bounded by its size. What a compressed one unpacks to is bounded by the room in `cache_dir`,
    and by 100 times its packed size or 64 MiB, whichever is more; texts, such as the release's 30
    GB, pack to a tenth and not to a hundredth. A row may have 4 MiB, a line of the word file 1 KiB,
    the tag file 16 MiB.

    Args:
        data_dir: folder of the three files.
        num_clients: clients drawn uniformly without replacement, numbered in the order of their
            ids; all of them by default.
        seed: 0..2**32-1, of that draw and nothing else.
        max_examples: most examples of a training client.
        min_examples: clients with fewer in the split `train` are left out before the draw.
        max_test: most test examples. They are those of the split `test`, client by client in an
            order of clients that is drawn once and for all, as their ids may mean something.
        vocabulary: number of words.
        num_tags: number of tags.
        max_words: L, the most ids of a text.
        keep_unknown: whether words outside the vocabulary count.
        cache_dir: folder for decompressed files.

    Returns:
        train, test: "x" int32 [N, L], word ids and then -1; "y" int32 [N, T], tags and then -1, T
        the most that an example of this part has; "client" int32 [N], in train ascending from 0 to
        num_clients-1, in test the number that the client has in train, or -1 if it is not there.
        counts: "clients" of the split `train` and how many of them are "too_small"; "words",
        "unknown_words", "cut_texts" and "untagged" examples among the training examples read.

    Raises:
        FileNotFoundError: a file is missing; the message says which names are looked for.
        ValueError: an argument is not as described, there are fewer clients, words or tags than
            asked for, or a file is damaged, of another form or not of this corpus (examples and
            `client_metadata` disagree, no word or no tag is known). The message names the file.
        MemoryError: the examples asked for do not fit.
        OSError: a file cannot be read, or `cache_dir` has no room for the decompressed one.
    """
    limits = {"max_examples": max_examples, "min_examples": min_examples, "max_test": max_test}
    sizes = {"vocabulary": vocabulary, "num_tags": num_tags, "max_words": max_words}
    for name, value in {"num_clients": num_clients, **limits, **sizes}.items():
        if name != "num_clients" or value is not None:
            check_whole(name, value, 1)
    check_seed(seed)
    source = _find(data_dir, _DATABASES)
    word_file, tag_file = (
        _find(data_dir, [f"stackoverflow.{name}", name]) for name in ("word_count", "tag_count")
    )
    words, tags = read_word_ids(word_file, vocabulary), read_tag_ids(tag_file, num_tags)
    plain = decompressed(source, Path(cache_dir))
    with open_database(plain, source, _COLUMNS, _LARGEST_ROW) as db:
        train_rows = _draw_train(db, num_clients, min_examples, max_examples, seed)
        test_rows = _draw_test(db, max_test)
        train, facts = _encode(db, train_rows, words, tags, max_words, keep_unknown)
        test, _ = _encode(db, test_rows, words, tags, max_words, keep_unknown)
        for name, file in (("x", word_file), ("y", tag_file)):
            if max(train[name].max(), test[name].max()) < 0:
                raise ValueError(f"has in the examples asked for nothing that is in {file}")
    number = {train_rows.ids[client]: k for k, client in enumerate(train_rows.chosen)}
    own = [number.get(test_rows.ids[client], -1) for client in test_rows.chosen]
    train["client"] = np.repeat(np.arange(len(number), dtype=np.int32), train_rows.rows)
    test["client"] = np.repeat(np.array(own, np.int32), test_rows.rows)
    small = int((train_rows.sizes < min_examples).sum())
    return train, test, {"clients": len(train_rows.ids), "too_small": small, **facts}


def _find(data_dir: str | Path, names: list[str]) -> Path:
    paths = (Path(data_dir) / name for name in names)
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise FileNotFoundError(f"Stack Overflow: {data_dir} must hold one of {', '.join(names)}")
    return found


def _clients(db: sqlite3.Connection, split: str) -> tuple[list[str], np.ndarray]:
    """The ids of a split's clients, ascending, and how many examples each has, int64."""
    query = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? ORDER BY 1"
    ids, sizes = [], []
    for client, size in db.execute(query, (split,)):
        if not isinstance(client, str) or not isinstance(size, int) or size < 0:
            raise ValueError(f"client_metadata has the row {shortened((client, split, size))}")
        if ids and ids[-1] == client:
            raise ValueError(
                f"client_metadata has two rows of {shortened(client)} in the split {split}"
            )
        ids.append(client)
        sizes.append(size)
    total, most = sum(sizes), file_size(db) // _SMALLEST_ROW
    if not 0 < total <= most:
        raise ValueError(
            f"client_metadata says {total} examples in the split {split}, legal: 1 to {most}, for "
            "which the file has room"
        )
    return ids, np.array(sizes, np.int64)


def _draw_train(
    db: sqlite3.Connection, num_clients: int | None, least: int, most: int, seed: int
) -> _Wanted:
    ids, sizes = _clients(db, "train")
    chosen = np.flatnonzero(sizes >= least)
    if chosen.size < (num_clients or 1):
        raise ValueError(
            f"found {chosen.size} clients with {least} training examples or more, and "
            f"{len(ids) - chosen.size} with fewer, legal: num_clients, {num_clients or 1}, or more"
        )
    if num_clients is not None:
        rng = np.random.default_rng([seed, _STREAM])
        chosen = np.sort(rng.choice(chosen, num_clients, replace=False))
    return _Wanted("train", ids, sizes, chosen, np.minimum(sizes[chosen], most))


def _draw_test(db: sqlite3.Connection, most: int) -> _Wanted:
    ids, sizes = _clients(db, "test")
    order = np.random.default_rng(_STREAM).permutation(len(ids))
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen = order[before < most]
    rows = np.minimum(sizes[chosen], most - before[before < most])
    return _Wanted("test", ids, sizes, chosen, rows)


def _examples(db: sqlite3.Connection, wanted: _Wanted) -> Iterator[tuple[int, object]]:
    """Each wanted example with the place of its client in `wanted.chosen`."""
    plan = db.execute(f"EXPLAIN QUERY PLAN {_OF_ONE}", ("", "", 1)).fetchall()
    indexed = any("client_id=?" in step[-1] for step in plan)
    if indexed and 2 * wanted.rows.sum() < wanted.sizes.sum():
        return _by_index(db, wanted)
    return _by_scan(db, wanted)


def _by_index(db: sqlite3.Connection, wanted: _Wanted) -> Iterator[tuple[int, object]]:
    for place, (client, rows) in enumerate(
        zip(wanted.chosen.tolist(), wanted.rows.tolist(), strict=True)
    ):
        # One more than the client is said to have, where that is no more than is wanted.
        size, found = int(wanted.sizes[client]), 0
        limit = rows if rows < size else size + 1
        for (message,) in db.execute(_OF_ONE, (wanted.split, wanted.ids[client], limit)):
            found += 1
            if found <= rows:
                yield place, message
        if found != min(limit, size):
            raise _disagreement(wanted, client, found)


def _by_scan(db: sqlite3.Connection, wanted: _Wanted) -> Iterator[tuple[int, object]]:
    client_of = {name: client for client, name in enumerate(wanted.ids)}
    places = np.full(len(wanted.ids), -1)
    places[wanted.chosen] = np.arange(len(wanted.chosen))
    places, rows, sizes = places.tolist(), wanted.rows.tolist(), wanted.sizes.tolist()
    found = [0] * len(sizes)
    for name, message in db.execute(_OF_ALL, (wanted.split,)):
        client = client_of.get(name)
        if client is None:
            raise ValueError(f"client_metadata lacks {shortened(name)} of the split {wanted.split}")
        place = places[client]
        if found[client] < (rows[place] if place >= 0 else 0):
            yield place, message
        found[client] += 1
    for client, size in enumerate(sizes):
        if found[client] != size:
            raise _disagreement(wanted, client, found[client])


def _disagreement(wanted: _Wanted, client: int, found: int) -> ValueError:
    return ValueError(
        f"client {shortened(wanted.ids[client])} of the split {wanted.split} has {found} examples, "
        f"client_metadata says {wanted.sizes[client]}"
    )


def _encode(
    db: sqlite3.Connection,
    wanted: _Wanted,
    words: dict[bytes, int],
    tags: dict[bytes, int],
    max_words: int,
    keep_unknown: bool,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The arrays "x" and "y" of the wanted examples, client by client, and counts."""
    # Memory is taken as rows are written: a false number of examples takes none.
    x = np.empty((int(wanted.rows.sum()), max_words), np.int32)
    next_row = (np.cumsum(wanted.rows) - wanted.rows).tolist()
    tag_rows, tag_places, tag_ids = array("q"), array("i"), array("i")
    facts = dict.fromkeys(("words", "unknown_words", "cut_texts", "untagged"), 0)
    for place, message in _examples(db, wanted):
        try:
            text, names = _text_and_tags(message)
        except ValueError as error:
            client = shortened(wanted.ids[wanted.chosen[place]])
            raise ValueError(f"client {client}: {error}") from error
        row, next_row[place] = next_row[place], next_row[place] + 1
        ids = [words.get(word, _UNKNOWN) for word in text]
        facts["words"] += len(ids)
        facts["unknown_words"] += ids.count(_UNKNOWN)
        if not keep_unknown:
            ids = [word for word in ids if word != _UNKNOWN]
        facts["cut_texts"] += len(ids) > max_words
        ids = ids[:max_words]
        x[row, : len(ids)], x[row, len(ids) :] = ids, _PADDING
        own = [tags[name] for name in dict.fromkeys(names) if name in tags]
        facts["untagged"] += not own
        tag_rows.extend([row] * len(own))
        tag_places.extend(range(len(own)))
        tag_ids.extend(own)
    y = np.full((len(x), max(tag_places, default=0) + 1), _PADDING, np.int32)
    y[np.array(tag_rows, np.int64), np.array(tag_places, np.int64)] = tag_ids
    return {"x": x, "y": y}, facts


def _text_and_tags(message: object) -> tuple[list[bytes], list[bytes]]:
    if not isinstance(message, bytes):
        raise ValueError(f"found an example of the type {type(message).__name__}, legal: a blob")
    features = decode_example(message, _FEATURES)
    for name in _FEATURES:
        values = features.get(name, [])
        if len(values) != 1 or not isinstance(values[0], bytes):
            raise ValueError(f"an example has not just one text {name}")
    title, body, tags = (features[name][0] for name in _FEATURES)
    return title.split() + body.split(), tags.split(b"|")
