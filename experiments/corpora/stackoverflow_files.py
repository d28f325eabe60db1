"""A corpus in the three files of the federated Stack Overflow release."""

import contextlib
import json
import lzma
import shutil
import sqlite3
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from ccfl_jax.data.readers.tf_example import encode_example

OUTPUT = ("corpus.sqlite.xz", "word_count", "tag_count")
_TABLES = """
    CREATE TABLE examples (
        split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL);
    CREATE TABLE client_metadata (
        client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);
"""


class Example(NamedTuple):
    """One example: its split, its client's number, its texts as tokens, its tags."""

    split: str
    client: int
    title: list[str]
    body: list[str]
    tags: list[str]


def write(folder: Path, examples: list[Example]) -> str:
    """Writes the three files of the corpus; returns a line on them."""
    folder.mkdir(parents=True, exist_ok=True)
    words, tags = defaultdict(set), defaultdict(set)
    for example in examples:
        if example.split == "train":
            for word in example.body:
                words[word].add(example.client)
            for tag in example.tags:
                tags[tag].add(example.client)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        workshop = Path(temporary)
        _write_database(workshop / "corpus.sqlite", examples)
        with (
            (workshop / "corpus.sqlite").open("rb") as plain,
            lzma.open(workshop / OUTPUT[0], "wb") as packed,
        ):
            shutil.copyfileobj(plain, packed, 1 << 20)
        ordered = sorted(words, key=lambda word: (-len(words[word]), word))
        lines = "".join(f"{word} {len(words[word])}\n" for word in ordered)
        (workshop / OUTPUT[1]).write_text(lines)
        counts = {tag: len(tags[tag]) for tag in sorted(tags)}
        (workshop / OUTPUT[2]).write_text(json.dumps(counts, indent=0) + "\n")
        for name in OUTPUT:
            (workshop / name).replace(folder / name)
    sizes = Counter(example.split for example in examples)
    splits = ", ".join(f"{split} {sizes[split]}" for split in ("train", "test", "heldout"))
    clients = len({example.client for example in examples})
    short = sum(not example.body for example in examples)
    return (
        f"{folder}: {clients} clients, {len(examples)} examples ({splits}), {len(tags)} tags and "
        f"{len(words)} words in train, {short} examples without a body,"
    )


def _write_database(path: Path, examples: list[Example]) -> None:
    # By client, so that reading one touches few pages.
    ordered = sorted(examples, key=lambda example: (example.split, example.client))
    sizes = Counter((f"{e.client:06d}", e.split) for e in ordered)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.executescript(_TABLES)
        rows = ((e.split, f"{e.client:06d}", _message(e)) for e in ordered)
        db.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
        counts = [(client, split, size) for (client, split), size in sorted(sizes.items())]
        db.executemany("INSERT INTO client_metadata VALUES (?, ?, ?)", counts)
        db.execute("CREATE INDEX examples_by_client ON examples (split_name, client_id)")


def _message(example: Example) -> bytes:
    """The example as a serialised tf.train.Example."""
    texts = {
        "creation_date": "1970-01-01 00:00:00 UTC",
        "tags": "|".join(example.tags),
        "title": " ".join(example.title),
        "tokens": " ".join(example.body),
        "type": "question",
    }
    return encode_example({"score": [0], **{name: [text.encode()] for name, text in texts.items()}})
