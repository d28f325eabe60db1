"""The reader of the Stack Overflow release: packed, damaged and foreign files."""

import contextlib
import errno
import lzma
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from corpus import MANY, ROWS, equal, load, many, packed, post, write
from refusal import refused

from ccfl_jax.data.readers import vocabulary
from ccfl_jax.data.readers.tf_example import encode_example


@pytest.mark.parametrize("suffix", [".xz", ".lzma"])
def test_a_compressed_file_is_decompressed_once(tmp_path, monkeypatch, suffix):
    expected = load(write(tmp_path / "plain").parent)
    source = packed(write(tmp_path / "packed", name="stackoverflow"), suffix)
    equal(load(tmp_path / "packed"), expected)
    (kept,) = (tmp_path / "packed" / "cache").iterdir()
    assert kept.name.startswith("stackoverflow-") and kept.suffix == ".sqlite"
    with monkeypatch.context() as patch:
        patch.setattr(lzma, "open", None)
        equal(load(tmp_path / "packed"), expected)
    # Another file under the name is not taken for the first.
    other = write(tmp_path / "other", ROWS[:3], name="stackoverflow")
    shutil.move(packed(other, suffix), source)
    assert len(load(tmp_path / "packed")[0]["x"]) == 2
    assert len(list((tmp_path / "packed" / "cache").iterdir())) == 2


def test_the_plain_file_comes_before_the_compressed_one_and_nothing_is_written(tmp_path):
    path = write(tmp_path)
    content = path.read_bytes()
    packed(path, ".xz").write_bytes(b"")
    path.write_bytes(content)
    before = sorted(tmp_path.iterdir())
    load(tmp_path)
    assert sorted(tmp_path.iterdir()) == before and path.read_bytes() == content


def test_without_room_nothing_is_kept(tmp_path, monkeypatch):
    source = packed(write(tmp_path), ".xz")

    def fill(packed, plain, size):
        plain.write(packed.read(size)[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fill)
    refused(f"{source}: No space left on device", load, tmp_path, kind=OSError)
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("suffix", "damage", "message"),
    [
        ("", lambda c: b"", "expected a table examples, found none"),
        ("", lambda c: b"word 1\n" * 50, "file is not a database"),
        ("", lambda c: c[:99], "...malformed..."),
        ("", lambda c: c[:-1], "expected ... bytes, as its header says, found ..."),
        ("", lambda c: c[:-4096], "...malformed..."),
        ("", lambda c: c + b"\0", "expected ... bytes, as its header says, found ..."),
        ("", lambda c: c[:4096] + b"\xff" * (len(c) - 4096), "...malformed..."),
        ("", lambda c: c[:108] + b"\xee" * 3000 + c[3108:], "..."),
        (".xz", lambda c: b"", "...end-of-stream..."),
        (".xz", lambda c: lzma.compress(c)[:-20], "...end-of-stream..."),
        (".xz", lambda c: lzma.compress(c)[:300] + b"\0" * 200, "..."),
        (".xz", lambda c: c, "...format not supported..."),
        (".xz", lambda c: lzma.compress(b"text"), "file is not a database"),
        (".xz", lambda c: lzma.compress(c[:5000]), "...malformed..."),
        (".lzma", lambda c: lzma.compress(c, lzma.FORMAT_ALONE)[:-20], "...end-of-stream..."),
    ],
)
def test_damaged_databases_are_refused_every_time(tmp_path, suffix, damage, message):
    path = write(tmp_path)
    content = path.read_bytes()
    path.unlink()
    source = path.with_name(path.name + suffix)
    source.write_bytes(damage(content))
    for _ in range(2):
        refused(f"{source}: {message}", load, tmp_path)
    if "end-of-stream" in message:
        assert not list((tmp_path / "cache").iterdir())


def test_several_streams_are_one_file(tmp_path):
    expected = load(write(tmp_path / "plain").parent)
    path = write(tmp_path / "a")
    content = path.read_bytes()
    path.unlink()
    streams = lzma.compress(content[:70]) + lzma.compress(content[70:])
    path.with_name(path.name + ".xz").write_bytes(streams)
    equal(load(tmp_path / "a"), expected)


def test_what_the_schema_says_is_a_table_is_none(tmp_path):
    path = write(tmp_path, index=None)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        columns = "split_name, client_id, serialized_example_proto"
        virtual = f"CREATE VIRTUAL TABLE examples USING fts4({columns})"
        db.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'examples'", (virtual,))
    refused(f"{path}: expected a table examples, found none", load, tmp_path)


def test_a_message_quotes_no_more_than_a_little_of_a_file(tmp_path):
    path = write(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE client_metadata SET client_id = ?", ("a" * 1_000_000,))
    assert len(refused("...expected one row ..., found two of 'aaa...", load, tmp_path)) < 500


def test_a_message_writes_nothing_to_a_terminal(tmp_path):
    path = write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"of_client", b"o\x1b[2J\nclt"))
    refused("...malformed database schema (o\\x1b[2J\\nclt)...", load, tmp_path)


MESSAGE = "serialized_example_proto"
ROW = "client_metadata: expected rows of a text, the split and a count, found (...)"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP TABLE client_metadata", "expected a table client_metadata, found none"),
        (f"ALTER TABLE examples RENAME COLUMN {MESSAGE} TO proto; "
         f"ALTER TABLE examples ADD COLUMN {MESSAGE} AS (zeroblob(9)) VIRTUAL",
         f"table examples: expected a column {MESSAGE}, found none"),
        ("ALTER TABLE examples RENAME TO other", "expected a table examples, found none"),
        (f"ALTER TABLE examples RENAME COLUMN {MESSAGE} TO proto",
         f"table examples: expected a column {MESSAGE}, found none"),
        ("ALTER TABLE client_metadata RENAME TO m; "
         "CREATE VIEW client_metadata AS SELECT client_id, split_name, num_examples FROM m",
         "expected a table client_metadata, found none"),
        ("UPDATE client_metadata SET client_id = CAST(x'0a62ff' AS TEXT)", "...decode to UTF-8..."),
        ("UPDATE client_metadata SET client_id = client_id || x'0a'", "client '10\\n' of the ..."),
        ("UPDATE client_metadata SET num_examples = 2 WHERE client_id = '8'",
         "client '8' of the split ...: expected 2 examples, as client_metadata says, found 1"),
        ("UPDATE client_metadata SET num_examples = 'two'", ROW),
        ("UPDATE client_metadata SET num_examples = -1", ROW),
        ("UPDATE client_metadata SET client_id = 9", ROW),
        ("UPDATE client_metadata SET client_id = '9'",
         "client_metadata: expected one row of a client in the split train, found two of '9'"),
        ("UPDATE client_metadata SET num_examples = 0",
         "client_metadata: expected 1 to 16384 examples in the split train ..., found 0"),
        ("UPDATE client_metadata SET num_examples = 30000 WHERE split_name = 'test'",
         "client_metadata: expected 1 to 16384 examples in the split test ..., found 60000"),
        ("UPDATE client_metadata SET num_examples = 9223372036854775807",
         "client_metadata: expected 1 to ..., found 27670116110564327421"),
        ("DELETE FROM client_metadata WHERE split_name = 'test'",
         "client_metadata: expected 1 to ... examples in the split test ..., found 0"),
        ("DELETE FROM examples WHERE client_id = '10'",
         "client '10' of the split train: expected 3 examples, as client_metadata says, found 0"),
        (f"UPDATE examples SET {MESSAGE} = 'text'",
         "client '10': expected an example as a blob, found str"),
        (f"UPDATE examples SET {MESSAGE} = NULL",
         "client '10': expected an example as a blob, found NoneType"),
        (f"UPDATE examples SET {MESSAGE} = x'0a05'",
         "client '10': example: expected a serialised tf.train.Example, found Error parsing..."),
        (f"UPDATE examples SET {MESSAGE} = x''",
         "client '10': expected one text title in an example, found []"),
        ("ALTER TABLE examples RENAME TO e; CREATE TABLE examples (split_name, "
         f"client_id COLLATE NOCASE, {MESSAGE}); "
         f"INSERT INTO examples SELECT split_name, 'A', {MESSAGE} FROM e; "
         "UPDATE client_metadata SET client_id = 'a' WHERE client_id = '10'",
         "client_metadata: expected 'A' in the split train, found other clients"),
    ],
)  # fmt: skip
def test_databases_of_another_form_are_refused(tmp_path, statement, message):
    path = write(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(statement)
    refused(f"{path}: {message}", load, tmp_path)
    source = packed(path, ".xz")
    refused(f"{source}: {message}", load, tmp_path)


@pytest.mark.parametrize("said", [1, 3])
def test_drawn_clients_are_compared_with_the_metadata(tmp_path, said):
    made = many()
    made["rows"] = [row for row in made["rows"] if row[1] != "0"]
    made["rows"] += [("train", "0", post("w0", "train", "t0"))] * 2
    counts = Counter((client, split) for split, client, _ in made["rows"])
    counts["0", "train"] = said
    write(tmp_path, **made, metadata=[(*key, count) for key, count in counts.items()])
    drawn = 0
    for seed in range(30):
        try:
            load(tmp_path, 5, seed, max_test=1, **MANY)
        except ValueError as error:
            text = f"split train: expected {said} examples, as client_metadata says, found 2"
            assert str(error).endswith(f"client '0' of the {text}")
            drawn += 1
    assert 0 < drawn < 30


def test_an_example_needs_one_text_of_each_kind(tmp_path):
    for title in ({}, {"title": [b"a", b"b"]}, {"title": [1]}, {"title": [0.5]}):
        message = encode_example({**title, "tokens": [b"a"], "tags": [b"java"]})
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        path = write(folder, [("train", "1", message), *ROWS])
        refused(f"{path}: client '1': expected one text title ..., found [...", load, folder)


def test_a_database_in_use_is_refused(tmp_path):
    path = write(tmp_path)
    for suffix in ("-wal", "-journal"):
        beside = Path(f"{path}{suffix}")
        beside.write_bytes(b"x")
        refused(
            f"{path}: expected a database at rest, found a -wal or -journal file beside it",
            load,
            tmp_path,
        )
        beside.unlink()
    load(tmp_path)


def test_a_path_may_hold_any_characters(tmp_path):
    write(tmp_path / "a?mode=rw#b %41")
    assert len(load(tmp_path / "a?mode=rw#b %41")[0]["x"]) == 5


WORD = "expected a new word and a count not above the one before, found "


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("word_count", b"", "expected at least vocabulary=5 words, found 0"),
        ("word_count", b"a 2\nb 1\n", "expected at least vocabulary=5 words, found 2"),
        ("word_count", b"a 2\nb\nc 1\n", WORD + "b'b\\n' in line 2"),
        ("word_count", b"a 2\nb 3\n", WORD + "b'b 3\\n' in line 2"),
        ("word_count", b"a 2\na 2\n", WORD + "b'a 2\\n' in line 2"),
        ("word_count", b"a 2\nb -1\n", WORD + "b'b -1\\n' in line 2"),
        ("word_count", b"a two\n", WORD + "b'a two\\n' in line 1"),
        ("word_count", b"a 1 2\n", WORD + "b'a 1 2\\n' in line 1"),
        ("word_count", b"\n", WORD + "b'\\n' in line 1"),
        ("word_count", b"a" * 5000, WORD + f"b'{'a' * 40}' in line 1"),
        ("word_count", b"SQLite format 3\0", WORD + "b'SQLite format 3\\x00' in line 1"),
        ("tag_count", b"", "...Expecting value..."),
        ("tag_count", b'{"a": 1, "b": 2, "c"', "...Expecting..."),
        ("tag_count", b'{"a": 1, "b": 2}', "expected at least num_tags=3 tags, found 2"),
        ("tag_count", b"[1, 2, 3]", "expected a JSON object of integers, found other JSON"),
        ("tag_count", b'{"a": 1, "b": 2.5, "c": 1}', "expected a JSON object of integers, ..."),
        ("tag_count", b'{"a": 1, "b": true, "c": 1}', "expected a JSON object of integers, ..."),
        ("tag_count", b'{"a": 1, "b": 2, "\\ud800": 3}', "...surrogates not allowed..."),
        ("tag_count", b"\xff\xfe\xfd", "...decode..."),
        ("tag_count", b"[" * 200_000, "...recursion..."),
    ],
)
def test_damaged_counts_are_refused(tmp_path, name, content, message):
    write(tmp_path)
    (tmp_path / name).write_bytes(content)
    refused(f"{tmp_path / name}: {message}", load, tmp_path)


def test_a_huge_tag_file_is_not_read(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(vocabulary, "_LARGEST_JSON", 10)
    refused(f"{tmp_path / 'tag_count'}: expected at most 10 bytes, found 47", load, tmp_path)


@pytest.mark.parametrize(("file", "given"), [("word_count", "words"), ("tag_count", "tags")])
def test_files_that_do_not_belong_together_are_refused(tmp_path, file, given):
    path = write(tmp_path, **{given: {f"x{k}": 1 for k in range(5)}})
    refused(
        f"{path}: expected ... something that is in {tmp_path / file}, found none", load, tmp_path
    )
