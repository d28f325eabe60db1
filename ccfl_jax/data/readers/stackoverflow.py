"""Tag prediction on Stack Overflow: reader of the federated SQLite release."""

import json
import sqlite3
from array import array
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as shortened
from typing import NamedTuple

import numpy as np

from ccfl_jax.checks import check_seed, check_whole
from ccfl_jax.data.readers.sqlite import decompressed, file_size, open_database
from ccfl_jax.data.readers.tf_example import decode_example
from ccfl_jax.data.readers.vocabulary import read_tag_ids, read_word_ids

# The stream of this module's draws: no other part of a run with the same seed shares it.
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
# By client, for which SQLite uses an index on them or sorts.
_EXAMPLES = (
    "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? "
    "AND client_id IN (SELECT value FROM json_each(?)) ORDER BY client_id, rowid"
)
_FEATURES = ("title", "tokens", "tags")
_PADDING, _UNKNOWN = -1, -2


class _Wanted(NamedTuple):
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

    `data_dir` holds three files, of each the first that exists:

    * stackoverflow.sqlite or corpus.sqlite, plain, .xz or .lzma, with the tables
      `examples(split_name, client_id, serialized_example_proto)` and
      `client_metadata(client_id, split_name, num_examples)`. An example is a tf.train.Example with
      one text each of `title`, `tokens` (the body) and `tags`, joined by "|".
    * stackoverflow.word_count or word_count: lines of a word and a count, which does not rise.
    * stackoverflow.tag_count or tag_count: a JSON object of tag -> count.

    The first `vocabulary` words of the word file have the ids 0, 1, ...; so do the `num_tags` tags
    with the highest counts, of equals in alphabetical order. The release's texts are lower-case
    words already and are only split at white space. A text is the title, then the body; ids beyond
    `max_words`, the end of the body, are cut off. A repeated word has an id each time. Tags beyond
    the `num_tags` are left out, so an example may have none.

    A word outside the vocabulary has the id -2: it counts in the length that a bag of words is
    divided by and has no parameters, as in the program of Reddi et al. (Adaptive Federated
    Optimization, ICLR 2021). With `keep_unknown=False` it is left out, as in the baselines of
    TensorFlow Federated.

    Of a client the first examples in the file are used. With an index of the database on
    `client_id` only the wanted clients of a large file are read. A compressed file is decompressed
    once into `cache_dir`; later calls use that copy, as long as the path, size and time of the file
    are the same. No code in a file is run, and the type of every value is checked. The tag file may
    have 16 MiB, a line of the word file 1 KiB.

    Args:
        data_dir: folder of the three files.
        num_clients: clients drawn uniformly without replacement, numbered in the order of their
            ids; all of them by default.
        seed: 0..2**32-1, of that draw and nothing else.
        max_examples: most examples of a training client.
        min_examples: clients with fewer in the split `train` are left out before the draw.
        max_test: most test examples, of the split `test`, client by client in one random order of
            clients, the same for every seed, as the order of ids may have a meaning.
        vocabulary: number of words.
        num_tags: number of tags.
        max_words: L, the most ids of a text.
        keep_unknown: whether words outside the vocabulary count.
        cache_dir: folder for decompressed files.

    Returns:
        train, test: "x" int32 [N, L], word ids and then -1; "y" int32 [N, T], tags and then -1, T
        the most of an example of this part; "client" int32 [N], in train ascending from 0 to
        num_clients-1, in test the number of the client in train, or -1 if it is not in train.
        counts: "clients" of the split `train` and how many of them are "too_small"; "words",
        "unknown_words", "cut_texts" and "untagged" examples among the training examples read.

    Raises:
        FileNotFoundError: a file is missing; the message has the possible names.
        ValueError: an argument is not as described, there are fewer clients, words or tags than the
            arguments say, or a file is damaged, of another format or not of this corpus (examples
            and `client_metadata` disagree, no word or tag is known). The message names the file.
        MemoryError: the examples do not fit.
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
    with open_database(plain, source, _COLUMNS) as db:
        train_rows, counts = _draw_train(db, num_clients, min_examples, max_examples, seed)
        test_rows = _draw_test(db, max_test)
        train, facts = _encode(db, train_rows, words, tags, max_words, keep_unknown)
        test, _ = _encode(db, test_rows, words, tags, max_words, keep_unknown)
        for name, file in (("x", word_file), ("y", tag_file)):
            if max(train[name].max(), test[name].max()) < 0:
                raise ValueError(f"expected examples with something that is in {file}, found none")
    number = {client: k for k, client in enumerate(train_rows.clients)}
    own = [number.get(client, -1) for client in test_rows.clients]
    train["client"] = np.repeat(np.arange(len(number), dtype=np.int32), train_rows.rows)
    test["client"] = np.repeat(np.array(own, np.int32), test_rows.rows)
    return train, test, {**counts, **facts}


def _find(data_dir: str | Path, names: list[str]) -> Path:
    paths = (Path(data_dir) / name for name in names)
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise FileNotFoundError(f"Stack Overflow: {data_dir} must hold one of {', '.join(names)}")
    return found


def _clients(db: sqlite3.Connection, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The ids of a split's clients, ascending, and how many examples each has, int64."""
    query = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?"
    sizes = {}
    for client, size in db.execute(query, (split,)):
        if not isinstance(client, str) or not isinstance(size, int) or size < 0:
            raise ValueError(
                "client_metadata: expected rows of a text, the split and a count, found "
                f"{shortened((client, split, size))}"
            )
        if client in sizes:
            raise ValueError(
                f"client_metadata: expected one row of a client in the split {split}, found two of "
                f"{shortened(client)}"
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


def _draw_train(
    db: sqlite3.Connection, num_clients: int | None, least: int, most: int, seed: int
) -> tuple[_Wanted, dict[str, int]]:
    """The examples to read of the split `train`, and its counts of clients."""
    ids, sizes = _clients(db, "train")
    chosen = np.flatnonzero(sizes >= least)
    counts = {"clients": len(ids), "too_small": len(ids) - chosen.size}
    if chosen.size < (num_clients or 1):
        raise ValueError(
            f"expected at least num_clients={num_clients or 1} clients with {least} training "
            f"examples or more, found {chosen.size}, and {counts['too_small']} with fewer"
        )
    if num_clients is not None:
        rng = np.random.default_rng([seed, _STREAM])
        chosen = np.sort(rng.choice(chosen, num_clients, replace=False))
    sizes = sizes[chosen]
    return _Wanted("train", ids[chosen].tolist(), sizes, np.minimum(sizes, most)), counts


def _draw_test(db: sqlite3.Connection, most: int) -> _Wanted:
    ids, sizes = _clients(db, "test")
    order = np.random.default_rng(_STREAM).permutation(len(ids))
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen = order[before < most]
    rows = np.minimum(sizes[chosen], most - before[before < most])
    return _Wanted("test", ids[chosen].tolist(), sizes[chosen], rows)


def _examples(db: sqlite3.Connection, wanted: _Wanted) -> Iterator[tuple[int, object]]:
    """Each wanted example with the place of its client, in the order of the file."""
    places = {client: place for place, client in enumerate(wanted.clients)}
    rows, found = wanted.rows.tolist(), [0] * len(places)
    for client, message in db.execute(_EXAMPLES, (wanted.split, json.dumps(wanted.clients))):
        place = places.get(client)  # a column may say that 'a' equals 'A'
        if place is None:
            raise ValueError(
                f"client_metadata: expected {shortened(client)} in the split {wanted.split}, found "
                "other clients"
            )
        if found[place] < rows[place]:
            yield place, message
        found[place] += 1
    for client, size, count in zip(wanted.clients, wanted.sizes.tolist(), found, strict=True):
        if count != size:
            raise ValueError(
                f"client {shortened(client)} of the split {wanted.split}: expected {size} "
                f"examples, as client_metadata says, found {count}"
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
    x = np.empty((int(wanted.rows.sum()), max_words), np.int32)
    next_row = (np.cumsum(wanted.rows) - wanted.rows).tolist()
    tag_rows, tag_places, tag_ids = array("q"), array("i"), array("i")
    facts: dict[str, int] = dict.fromkeys(("words", "unknown_words", "cut_texts", "untagged"), 0)
    for place, message in _examples(db, wanted):
        try:
            text, names = _text_and_tags(message)
        except ValueError as error:
            client = shortened(wanted.clients[place])
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
        raise ValueError(f"expected an example as a blob, found {type(message).__name__}")
    features = decode_example(message, _FEATURES)
    for name in _FEATURES:
        values = features.get(name, [])
        if len(values) != 1 or not isinstance(values[0], bytes):
            raise ValueError(f"expected one text {name} in an example, found {shortened(values)}")
    title, body, tags = (features[name][0] for name in _FEATURES)
    return title.split() + body.split(), tags.split(b"|")
