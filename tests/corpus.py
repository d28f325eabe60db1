"""Small corpora in the form of the Stack Overflow release, for the tests of what reads it."""

import contextlib
import json
import lzma
import sqlite3
from collections import Counter
from functools import partial

import jax
import numpy as np

from ccfl_jax.data.readers.stackoverflow import load_stackoverflow
from ccfl_jax.data.readers.tf_example import encode_example


def post(title, tokens, tags, **others):
    texts = {"title": title, "tokens": tokens, "tags": tags, "type": "question", **others}
    return encode_example({"score": [3], **{name: [text.encode()] for name, text in texts.items()}})


WORDS = {"the": 9, "a": 9, "in": 4, "loop": 2, "<URL>": 1}
TAGS = {"java": 5, "vb . net": 7, "c++": 5, "rare": 1}
SMALL = {"vocabulary": 5, "num_tags": 3, "max_words": 6}
# Interleaved, with ids that sort as texts.
ROWS = [
    ("train", "10", post("a loop", "in the loop", "java|rare")),
    ("train", "9", post("the the", "", "vb . net|c++|vb . net")),
    ("test", "9", post("Loop <URL>", "a\tb  c", "c++")),
    ("train", "10", post("", "the unknown in unknown", "rare")),
    ("heldout", "20", post("in", "in", "java")),
    ("test", "7", post("a", "a", "java")),
    ("train", "8", post("in in in", "in a the loop a", "java|c++|vb . net")),
    ("train", "10", post("a", "a", "c++")),
]
INDEX = "CREATE INDEX of_client ON examples (split_name, client_id)"


def write(folder, rows=ROWS, words=WORDS, tags=TAGS, metadata=None, index=INDEX, name="corpus"):
    """The three files; returns the database's path."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.sqlite"
    if metadata is None:
        counts = Counter((client, split) for split, client, _ in rows)
        metadata = [(*key, count) for key, count in counts.items()]
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE examples (split_name, client_id, serialized_example_proto)")
        db.execute("CREATE TABLE client_metadata (client_id, split_name, num_examples)")
        db.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
        db.executemany("INSERT INTO client_metadata VALUES (?, ?, ?)", metadata)
        if index:
            db.execute(index)
    (folder / "word_count").write_text("".join(f"{w} {count}\n" for w, count in words.items()))
    (folder / "tag_count").write_text(json.dumps(tags))
    return path


def load(folder, *args, **kwargs):
    return load_stackoverflow(folder, *args, **{**SMALL, "cache_dir": folder / "cache", **kwargs})


def packed(path, suffix):
    kind = lzma.FORMAT_XZ if suffix == ".xz" else lzma.FORMAT_ALONE
    path.write_bytes(lzma.compress(path.read_bytes(), kind))
    return path.rename(path.with_name(path.name + suffix))


def equal(first, second):
    jax.tree.map(partial(np.testing.assert_array_equal, strict=True), first, second)


def many(clients=40, seed=0):
    """Rows of clients with 1 to 5 examples each, in any order; words tell them apart."""
    rng = np.random.default_rng(seed)
    rows = []
    for client in range(clients):
        for split, most in (("train", 6), ("test", 3)):
            for k in range(rng.integers(1, most)):
                words = " ".join(f"w{digit}" for digit in f"{client:02d}{k}")
                rows.append((split, str(client), post(words, f"{split}", f"t{k}|t{client % 7}")))
    words = {f"w{digit}": 1 for digit in range(10)} | {"train": 1, "test": 1}
    rows = [rows[k] for k in rng.permutation(len(rows))]
    return {"rows": rows, "words": words, "tags": {f"t{k}": 1 for k in range(7)}}


MANY = {"vocabulary": 12, "num_tags": 7}
