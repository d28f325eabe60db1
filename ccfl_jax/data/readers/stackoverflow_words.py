"""Next-word prediction on Stack Overflow, from the federated SQLite release."""

import sqlite3
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ccfl_jax.data.readers.federated_sqlite import Wanted, decoded
from ccfl_jax.data.readers.stackoverflow import Limits, check_known, check_sizes, files, read
from ccfl_jax.data.readers.vocabulary import read_word_ids

PADDING = 0


class Special(NamedTuple):
    """The ids that follow those of the words."""

    unknown: int
    begin: int
    end: int


def special_ids(vocabulary: int) -> Special:
    """The ids beside those of so many words, 1 to `vocabulary`, and `PADDING`."""
    return Special(*range(vocabulary + 1, vocabulary + 4))


def load_stackoverflow_nwp(
    data_dir: str | Path,
    num_clients: int | None = None,
    seed: int = 0,
    *,
    max_examples: int = 500,
    min_examples: int = 1,
    max_test: int = 10_000,
    vocabulary: int = 10_000,
    max_words: int = 20,
    cache_dir: str | Path = "~/.cache/ccfl_jax/sqlite",
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, int]]:
    """Loads sentences, and the same one word later, from the federated Stack Overflow release.

    Of the files of `load_stackoverflow`, the database and the word file; examples, trust and the
    draw of clients are as there, so the same arguments choose the same examples. A sentence is the
    text `tokens`, split at white space. The first `vocabulary` words of the word file have the ids
    1, 2, ..., another word `unknown`. "begin" stands before the first `max_words` words, and "end"
    after them where they are fewer, then 0, the padding. x is all but the last of these ids, y all
    but the first. `special_ids` has the three others, those after the words'.

    Args:
        data_dir: folder of the files.
        num_clients, seed, max_examples, min_examples, max_test: as in `load_stackoverflow`.
        vocabulary: number of words.
        max_words: L, the most words of a sentence; the rest is cut off.
        cache_dir: folder for decompressed files.

    Returns:
        train, test: "x", "y" int32 [N, L], ids 0..vocabulary + 3; "client" int32 [N], as in
        `load_stackoverflow`.
        counts: "clients" and "too_small", as there; "words", "unknown_words" and "cut_texts" of the
        training examples read.

    Raises:
        As `load_stackoverflow`.

    Source: the word prediction of Reddi et al., Adaptive Federated Optimization (ICLR 2021), with
    the ids of TensorFlow Federated, one of them for all unknown words.

    Examples:
        Of a folder with a corpus of a few words:

        >>> train, test, counts = ccfl.data.load_stackoverflow_nwp(
        ...     "stackoverflow", vocabulary=5, max_words=4
        ... )
        >>> print(train["x"][0], train["y"][0])  # "begin in the loop", and one word later
        [7 3 1 4] [3 1 4 8]
    """
    limits = Limits(num_clients, seed, min_examples, max_examples, max_test)
    check_sizes(limits, vocabulary=vocabulary, max_words=max_words)
    source, word_file = files(data_dir, "word_count")
    words = {word: 1 + place for word, place in read_word_ids(word_file, vocabulary).items()}

    def encode(db: sqlite3.Connection, wanted: Wanted) -> tuple[dict, dict]:
        return _encode(db, wanted, words, max_words)

    def check(train: dict[str, np.ndarray], test: dict[str, np.ndarray]) -> None:
        targets = np.concatenate([train["y"].ravel(), test["y"].ravel()])
        check_known(word_file, ((targets > PADDING) & (targets <= vocabulary)).any())

    return read(source, cache_dir, limits, encode, check)


def _encode(
    db: sqlite3.Connection, wanted: Wanted, words: dict[bytes, int], max_words: int
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The arrays "x" and "y" of the wanted examples, client by client, and counts."""
    unknown, begin, end = special_ids(len(words))
    ids = np.full((int(wanted.rows.sum()), max_words + 1), PADDING, np.int32)
    next_row = (np.cumsum(wanted.rows) - wanted.rows).tolist()
    facts: dict[str, int] = dict.fromkeys(("words", "unknown_words", "cut_texts"), 0)
    for place, text in decoded(db, wanted, ("tokens",), _sentence):
        row, next_row[place] = next_row[place], next_row[place] + 1
        own = [words.get(word, unknown) for word in text]
        facts["words"] += len(own)
        facts["unknown_words"] += own.count(unknown)
        facts["cut_texts"] += len(own) > max_words
        whole = [begin, *own, end][: max_words + 1]
        ids[row, : len(whole)] = whole
    return {"x": ids[:, :-1], "y": ids[:, 1:]}, facts


def _sentence(features: dict[str, list]) -> list[bytes]:
    values = features.get("tokens", [])
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise ValueError(f"expected one text tokens in an example, found {len(values)} values")
    return values[0].split()
