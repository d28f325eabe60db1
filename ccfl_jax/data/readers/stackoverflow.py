"""Tag prediction on Stack Overflow: reader of the federated SQLite release."""

import sqlite3
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ccfl_jax.checks import check_seed, check_whole
from ccfl_jax.data.readers.federated_sqlite import (
    COLUMNS,
    STREAM,
    Wanted,
    clients,
    databases,
    decoded,
    draw_train,
    find,
    numbers_in_train,
)
from ccfl_jax.data.readers.sqlite import decompressed, open_database
from ccfl_jax.data.readers.vocabulary import read_tag_ids, read_word_ids

_TITLE = "Stack Overflow"
_FEATURES = ("title", "tokens", "tags")
_PADDING, _UNKNOWN = -1, -2


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
        min_examples: clients with fewer in the split ``train`` are left out before the draw.
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
        counts: "clients" of the split ``train`` and how many of them are "too_small"; "words",
        "unknown_words", "cut_texts" and "untagged" examples among the training examples read.

    Raises:
        FileNotFoundError: a file is missing; the message has the possible names.
        ValueError: an argument is not as described, there are fewer clients, words or tags than the
            arguments say, or a file is damaged, of another format or not of this corpus (examples
            and `client_metadata` disagree, no word or tag is known). The message names the file.
        MemoryError: the examples do not fit.
        OSError: a file cannot be read, or `cache_dir` has no room for the decompressed one.

    Examples:
        Of a folder with a corpus of a few words:

        >>> train, test, counts = ccfl.load_stackoverflow(
        ...     "stackoverflow", num_clients=2, vocabulary=5, num_tags=3, max_words=4
        ... )
        >>> print(train["x"])  # ids of words, -2 of unknown ones, then -1
        [[ 1  3  2  0]
         [ 0 -2  2 -2]
         [ 1  1 -1 -1]
         [ 2  2  2  2]]
        >>> counts["clients"], counts["unknown_words"]
        (3, 2)
    """
    limits = Limits(num_clients, seed, min_examples, max_examples, max_test)
    check_sizes(limits, vocabulary=vocabulary, num_tags=num_tags, max_words=max_words)
    source, word_file, tag_file = files(data_dir, "word_count", "tag_count")
    words, tags = read_word_ids(word_file, vocabulary), read_tag_ids(tag_file, num_tags)

    def encode(db: sqlite3.Connection, wanted: Wanted) -> tuple[dict, dict]:
        return _encode(db, wanted, words, tags, max_words, keep_unknown)

    def check(train: dict[str, np.ndarray], test: dict[str, np.ndarray]) -> None:
        for name, file in (("x", word_file), ("y", tag_file)):
            check_known(file, max(train[name].max(), test[name].max()) >= 0)

    return read(source, cache_dir, limits, encode, check)


class Limits(NamedTuple):
    """Which clients and examples of a corpus are read, as in `load_stackoverflow`."""

    num_clients: int | None
    seed: int
    min_examples: int
    max_examples: int
    max_test: int


def check_sizes(limits: Limits, **sizes: int) -> None:
    """Raises ValueError for a limit or size that is not as described."""
    for name, value in {**limits._asdict(), **sizes}.items():
        if name != "seed" and (name != "num_clients" or value is not None):
            check_whole(name, value, 1)
    check_seed(limits.seed)


def files(data_dir: str | Path, *names: str) -> list[Path]:
    """The database in the folder, and the files of these names."""
    own = [find(_TITLE, data_dir, [f"stackoverflow.{name}", name]) for name in names]
    return [find(_TITLE, data_dir, databases("stackoverflow", "corpus")), *own]


def check_known(file: Path, known: bool | np.bool_) -> None:
    """Raises ValueError where no chosen example has anything of the file."""
    if not known:
        raise ValueError(
            f"expected something that is in {file}, found nothing in the chosen examples"
        )


def read(
    source: Path,
    cache_dir: str | Path,
    limits: Limits,
    encode: Callable[[sqlite3.Connection, Wanted], tuple[dict, dict]],
    check: Callable[[dict, dict], None],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, int]]:
    """The parts, with "client", and the counts of `load_stackoverflow`.

    Args:
        source: the database.
        cache_dir: folder for decompressed files.
        limits: what is read.
        encode: the arrays of a part, and counts.
        check: raises ValueError for parts of another corpus.
    """
    plain = decompressed(source, Path(cache_dir))
    with open_database(plain, source, COLUMNS) as db:
        train_rows, counts = draw_train(db, "train", *limits[:4])
        test_rows = _draw_test(db, limits.max_test)
        train, facts = encode(db, train_rows)
        test, _ = encode(db, test_rows)
        check(train, test)
    for part, rows in ((train, train_rows), (test, test_rows)):
        part["client"] = np.repeat(numbers_in_train(train_rows, rows), rows.rows)
    return train, test, {**counts, **facts}


def _draw_test(db: sqlite3.Connection, most: int) -> Wanted:
    ids, sizes = clients(db, "test")
    order = np.random.default_rng(STREAM).permutation(len(ids))
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen = order[before < most]
    rows = np.minimum(sizes[chosen], most - before[before < most])
    return Wanted("test", ids[chosen].tolist(), sizes[chosen], rows)


def _encode(
    db: sqlite3.Connection,
    wanted: Wanted,
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
    for place, (text, names) in decoded(db, wanted, _FEATURES, _text_and_tags):
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


def _text_and_tags(features: dict[str, list]) -> tuple[list[bytes], list[bytes]]:
    for name in _FEATURES:
        values = features.get(name, [])
        if len(values) != 1 or not isinstance(values[0], bytes):
            raise ValueError(f"expected one text {name} in an example, found {len(values)} values")
    title, body, tags = (features[name][0] for name in _FEATURES)
    return title.split() + body.split(), tags.split(b"|")
