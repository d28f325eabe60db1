"""The reader of the Stack Overflow release: packed, damaged and foreign files."""

import contextlib
import errno
import lzma
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from corpus import (
    MANY,
    ROWS,
    equal,
    load,
    many,
    packed,
    post,
    refused,
    write,
)

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
    assert refused(OSError, "", tmp_path) == f"{source}: No space left on device"
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("suffix", "damage", "message"),
    [
        ("", lambda c: b"", "has no table examples"),
        ("", lambda c: b"word 1\n" * 50, "file is not a database"),
        ("", lambda c: c[:99], "malformed"),
        ("", lambda c: c[:-1], "bytes, its header says"),
        ("", lambda c: c[:-4096], "malformed"),
        ("", lambda c: c + b"\0", "bytes, its header says"),
        ("", lambda c: c[:4096] + b"\xff" * (len(c) - 4096), "malformed"),
        ("", lambda c: c[:108] + b"\xee" * 3000 + c[3108:], ""),
        (".xz", lambda c: b"", "end-of-stream"),
        (".xz", lambda c: lzma.compress(c)[:-20], "end-of-stream"),
        (".xz", lambda c: lzma.compress(c)[:300] + b"\0" * 200, ""),
        (".xz", lambda c: c, "format not supported"),
        (".xz", lambda c: lzma.compress(b"text"), "file is not a database"),
        (".xz", lambda c: lzma.compress(c[:5000]), "malformed"),
        (".lzma", lambda c: lzma.compress(c, lzma.FORMAT_ALONE)[:-20], "end-of-stream"),
    ],
)
def test_damaged_databases_are_refused_every_time(tmp_path, suffix, damage, message):
    path = write(tmp_path)
    content = path.read_bytes()
    path.unlink()
    source = path.with_name(path.name + suffix)
    source.write_bytes(damage(content))
    for _ in range(2):
        assert refused(ValueError, message, tmp_path).startswith(f"{source}: ")
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
    refused(ValueError, "has no table examples", tmp_path)


def test_a_message_quotes_no_more_than_a_little_of_a_file(tmp_path):
    path = write(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE client_metadata SET client_id = ?", ("a" * 1_000_000,))
    assert len(refused(ValueError, "has two rows of 'aaa", tmp_path)) < 500


def test_a_message_writes_nothing_to_a_terminal(tmp_path):
    path = write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"of_client", b"o\x1b[2J\nclt"))
    assert "malformed database schema (o\\x1b[2J\\nclt)" in refused(ValueError, "", tmp_path)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP TABLE client_metadata", "has no table client_metadata"),
        (
            "ALTER TABLE examples RENAME COLUMN serialized_example_proto TO proto; "
            "ALTER TABLE examples ADD COLUMN serialized_example_proto AS (zeroblob(9)) VIRTUAL",
            "its table examples has no column serialized_example_proto",
        ),
        (
            "UPDATE client_metadata SET num_examples = 30000 WHERE split_name = 'test'",
            "says 60000 examples in the split test, legal: 1 to 16384, the bytes of the file",
        ),
        ("UPDATE client_metadata SET client_id = CAST(x'0a62ff' AS TEXT)", "decode to UTF-8"),
        ("UPDATE client_metadata SET client_id = client_id || x'0a'", "client '10\\n' of the"),
        ("ALTER TABLE examples RENAME TO other", "has no table examples"),
        (
            "ALTER TABLE examples RENAME COLUMN serialized_example_proto TO proto",
            "its table examples has no column serialized_example_proto",
        ),
        (
            "ALTER TABLE client_metadata RENAME TO m; "
            "CREATE VIEW client_metadata AS SELECT client_id, split_name, num_examples FROM m",
            "has no table client_metadata",
        ),
        (
            "UPDATE client_metadata SET num_examples = 2 WHERE client_id = '8'",
            "client '8' of the sp",
        ),
        ("UPDATE client_metadata SET num_examples = 'two'", "client_metadata has the row"),
        ("UPDATE client_metadata SET num_examples = -1", "client_metadata has the row"),
        ("UPDATE client_metadata SET num_examples = 0", "says 0 examples in the split train"),
        (
            "UPDATE client_metadata SET num_examples = 9223372036854775807",
            "says 27670116110564327421 examples in the split train",
        ),
        ("UPDATE client_metadata SET client_id = 9", "client_metadata has the row"),
        ("UPDATE client_metadata SET client_id = '9'", "has two rows of '9' in the split train"),
        (
            "DELETE FROM client_metadata WHERE split_name = 'test'",
            "says 0 examples in the split te",
        ),
        ("DELETE FROM examples WHERE client_id = '10'", "'10' of the split train has 0 examples"),
        ("UPDATE examples SET serialized_example_proto = 'text'", "of the type str, legal: a blob"),
        ("UPDATE examples SET serialized_example_proto = NULL", "of the type NoneType"),
        (
            "UPDATE examples SET serialized_example_proto = x'0a05'",
            "client '10': example: found Error parsing",
        ),
        ("UPDATE examples SET serialized_example_proto = x''", "not just one text title"),
        (
            "ALTER TABLE examples RENAME TO e; CREATE TABLE examples (split_name, "
            "client_id COLLATE NOCASE, serialized_example_proto); "
            "INSERT INTO examples SELECT split_name, 'A', serialized_example_proto FROM e; "
            "UPDATE client_metadata SET client_id = 'a' WHERE client_id = '10'",
            "client_metadata lacks 'A' of the split train",
        ),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_databases_of_another_form_are_refused(tmp_path, statement, message, suffix):
    path = write(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(statement)
    source = packed(path, suffix) if suffix else path
    assert refused(ValueError, message, tmp_path).startswith(f"{source}: ")


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
            assert "client '0' of the split train has 2 examples" in str(error)
            assert str(error).endswith(f"client_metadata says {said}")
            drawn += 1
    assert 0 < drawn < 30


def test_an_example_needs_one_text_of_each_kind(tmp_path):
    for title in ({}, {"title": [b"a", b"b"]}, {"title": [1]}, {"title": [0.5]}):
        message = encode_example({**title, "tokens": [b"a"], "tags": [b"java"]})
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        path = write(folder, [("train", "1", message), *ROWS])
        text = refused(ValueError, "client '1': an example has not just one text title", folder)
        assert text.startswith(f"{path}: ")


def test_a_database_in_use_is_refused(tmp_path):
    path = write(tmp_path)
    for suffix in ("-wal", "-journal"):
        beside = Path(f"{path}{suffix}")
        beside.write_bytes(b"x")
        refused(ValueError, "somebody is writing to it", tmp_path)
        beside.unlink()
    load(tmp_path)


def test_a_path_may_hold_any_characters(tmp_path):
    write(tmp_path / "a?mode=rw#b %41")
    assert len(load(tmp_path / "a?mode=rw#b %41")[0]["x"]) == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected vocabulary, 5, or more, found 0 words"),
        (b"a 2\nb 1\n", "expected vocabulary, 5, or more, found 2 words"),
        (b"a 2\nb\nc 1\n", "b'b\\n' in line 2, legal: a new word and a"),
        (b"a 2\nb 3\n", "found b'b 3\\n' in line 2"),
        (b"a 2\na 2\n", "found b'a 2\\n' in line 2"),
        (b"a 2\nb -1\n", "line 2"),
        (b"a two\n", "line 1"),
        (b"a 1 2\n", "line 1"),
        (b"\n", "line 1"),
        (b"a" * 5000, "line 1"),
        (b"SQLite format 3\0", "line 1"),
    ],
)
def test_damaged_word_files_are_refused(tmp_path, content, message):
    write(tmp_path)
    (tmp_path / "word_count").write_bytes(content)
    assert refused(ValueError, message, tmp_path).startswith(f"{tmp_path / 'word_count'}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b'{"a": 1, "b": 2, "c"', "Expecting"),
        (b'{"a": 1, "b": 2}', "expected num_tags, 3, or more, found 2 tags"),
        (b"[1, 2, 3]", "is no JSON object of whole numbers"),
        (b'{"a": 1, "b": 2.5, "c": 1}', "whole numbers"),
        (b'{"a": 1, "b": true, "c": 1}', "whole numbers"),
        (b'{"a": 1, "b": 2, "\\ud800": 3}', "surrogates not allowed"),
        (b"\xff\xfe\xfd", "decode"),
        (b"[" * 200_000, "recursion"),
    ],
)
def test_damaged_tag_files_are_refused(tmp_path, content, message):
    write(tmp_path)
    (tmp_path / "tag_count").write_bytes(content)
    assert refused(ValueError, message, tmp_path).startswith(f"{tmp_path / 'tag_count'}: ")


def test_a_huge_tag_file_is_not_read(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(vocabulary, "_LARGEST_JSON", 10)
    refused(ValueError, "bytes, legal: up to 10", tmp_path)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    path = write(tmp_path / "a", words={f"x{k}": 1 for k in range(5)})
    text = refused(ValueError, "nothing that is in", tmp_path / "a")
    assert str(path) in text and str(tmp_path / "a" / "word_count") in text
    path = write(tmp_path / "b", tags={f"x{k}": 1 for k in range(5)})
    text = refused(ValueError, "nothing that is in", tmp_path / "b")
    assert str(path) in text and str(tmp_path / "b" / "tag_count") in text
