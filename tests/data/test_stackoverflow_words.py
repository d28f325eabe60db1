"""readers/stackoverflow_words.py: sentences of a small corpus, and of the real one."""

from pathlib import Path

import corpus
import numpy as np
import pytest
from refusal import refused

from ccfl_jax.data import load_dataset, load_stackoverflow, load_stackoverflow_nwp
from ccfl_jax.data.readers.stackoverflow_words import special_ids
from ccfl_jax.data.readers.tf_example import encode_example

DEBIAN = Path(__file__).parents[3] / "shared" / "data" / "debian_tags"
UNKNOWN, BEGIN, END = 6, 7, 8  # after the 0 of padding and the five words


def load(folder, *args, **kwargs):
    kwargs = {"vocabulary": 5, "max_words": 4, "cache_dir": folder / "cache", **kwargs}
    return load_stackoverflow_nwp(folder, *args, **kwargs)


def test_a_small_corpus_comes_out_as_written(tmp_path):
    """the 1, a 2, in 3, loop 4, <URL> 5; clients 10, 8, 9 in the order of texts. A sentence of four
    words or more has no end."""
    corpus.write(tmp_path)
    train, test, counts = load(tmp_path)
    whole = [
        [BEGIN, 3, 1, 4, END], [BEGIN, 1, UNKNOWN, 3, UNKNOWN], [BEGIN, 2, END, 0, 0],
        [BEGIN, 3, 2, 1, 4], [BEGIN, END, 0, 0, 0],
    ]  # fmt: skip
    assert train["x"].tolist() == [row[:-1] for row in whole]
    assert train["y"].tolist() == [row[1:] for row in whole]
    assert train["client"].tolist() == [0, 0, 0, 1, 2]
    order = test["client"].tolist()
    assert test["y"][order.index(2)].tolist() == [2, UNKNOWN, UNKNOWN, END]
    assert test["x"][order.index(-1)].tolist() == [BEGIN, 2, END, 0]
    assert counts == {
        "clients": 3, "too_small": 0, "words": 3 + 4 + 1 + 5, "unknown_words": 2, "cut_texts": 1,
    }  # fmt: skip
    assert all(a.dtype == np.int32 for part in (train, test) for a in part.values())
    assert special_ids(5) == (UNKNOWN, BEGIN, END)


def test_its_clients_and_examples_are_those_of_the_tags(tmp_path):
    """Each example has words of its own in the title and the same body, of split and word."""
    rows = corpus.many()["rows"]
    corpus.write(tmp_path, **corpus.many())
    limits = {"max_examples": 3, "min_examples": 2, "max_test": 30}
    for seed in (0, 1):
        own = load(tmp_path, 10, seed, **limits, vocabulary=12)
        tags = corpus.load(tmp_path, 10, seed, **limits, **corpus.MANY)
        for part, other in zip(own[:2], tags[:2], strict=True):
            np.testing.assert_array_equal(part["client"], other["client"])
        assert own[2]["too_small"] == tags[2]["too_small"] > 0
    assert len(rows) > 100


@pytest.mark.parametrize(("words", "message"), [
    ({"vocabulary": 0}, "vocabulary: expected an integer >= 1, found 0"),
    ({"max_words": 0}, "max_words: expected an integer >= 1, found 0"),
    ({"max_test": 0}, "max_test: expected an integer >= 1, found 0"),
    ({"num_clients": 4}, "...corpus.sqlite: expected at least num_clients=4 ..., found 3, ..."),
    ({"vocabulary": 6}, "...word_count: expected at least vocabulary=6 words, found 5"),
])  # fmt: skip
def test_what_is_refused(tmp_path, words, message):
    corpus.write(tmp_path)
    refused(message, lambda: load(tmp_path, **words))


def test_damage_is_named_with_file_and_client(tmp_path):
    two = encode_example({"tokens": [b"a", b"b"]})
    path = corpus.write(tmp_path / "two", [("train", "bob", two), ("test", "bob", two)])
    message = f"{path}: client 'bob': expected one text tokens in an example, found 2 values"
    refused(message, load, path.parent)
    foreign = [(split, "bob", corpus.post("", "no such", "")) for split in ("train", "test")]
    path = corpus.write(tmp_path / "other", foreign)
    message = f"...expected something that is in {path.parent}/word_count, found nothing in ..."
    refused(message, load, path.parent)
    refused("data_dir: expected the folder of the files of stackoverflow_nwp, found none",
            load_dataset, "stackoverflow_nwp")  # fmt: skip
    message = (
        "Stack Overflow: expected one of stackoverflow.word_count, word_count in ..., found none"
    )
    refused(message, load, tmp_path, kind=FileNotFoundError)


@pytest.mark.skipif(not DEBIAN.is_dir(), reason=f"no corpus in {DEBIAN}")
def test_the_real_corpus(tmp_path):
    """Its clients and their examples are those of tag prediction, and most of its words known."""
    limits = {"max_examples": 5, "max_test": 50}
    train, test, counts = load_stackoverflow_nwp(DEBIAN, 20, 0, **limits)
    tags, _, _ = load_stackoverflow(DEBIAN, 20, 0, **limits)
    np.testing.assert_array_equal(train["client"], tags["client"])
    assert train["x"].shape == (len(train["y"]), 20) and len(test["x"]) == 50
    np.testing.assert_array_equal(train["x"][:, 1:], train["y"][:, :-1])
    assert (train["x"][:, 0] == special_ids(10_000).begin).all()
    assert counts["unknown_words"] < 0.2 * counts["words"]
