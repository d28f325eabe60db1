"""The reader of the Stack Overflow release: packed, damaged and foreign files."""

import contextlib
import errno
import lzma
import shutil
import sqlite3
from pathlib import Path

import pytest
from corpus import ROWS, equal, load, packed, write
from refusal import refused

from ccfl_jax.data.readers import vocabulary
from ccfl_jax.data.readers.tf_example import encode_example


@pytest.mark.parametrize("suffix", [".xz", ".lzma"])
def test_a_compressed_file_is_decompressed_once(tmp_path, monkeypatch, suffix):
    expected = load(write(tmp_path / "plain").parent)
    source = packed(write(tmp_path / "packed", name="stackoverflow"), suffix)
    if suffix == ".xz":  # which may be several streams
        content = lzma.decompress(source.read_bytes())
        source.write_bytes(lzma.compress(content[:70]) + lzma.compress(content[70:]))
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


NO_DB, NO_XZ = "expected a SQLite database, found ", "expected a whole xz file, found "


@pytest.mark.parametrize(("suffix", "damage", "message"), [
    ("", lambda c: b"", "expected a table examples, found none"),
    ("", lambda c: b"word 1\n" * 50, NO_DB + "file is not a database"),
    ("", lambda c: c[:-1], "expected 16384 bytes by its header, found 16383"),
    ("", lambda c: c[:-4096], NO_DB + "...malformed..."),
    ("", lambda c: c[:4096] + b"\xff" * (len(c) - 4096), NO_DB + "...malformed..."),
    # What is quoted writes nothing to a terminal.
    ("", lambda c: c.replace(b"of_client", b"o\x1b[2J\nclt"), NO_DB + "... (o\\x1b[2J\\nclt)..."),
    (".xz", lambda c: b"", NO_XZ + "...end-of-stream..."),
    (".xz", lambda c: lzma.compress(c)[:-20], NO_XZ + "...end-of-stream..."),
    (".xz", lambda c: c, NO_XZ + "...format not supported..."),
    (".xz", lambda c: lzma.compress(b"text"), NO_DB + "file is not a database"),
    (".lzma", lambda c: lzma.compress(c, lzma.FORMAT_ALONE)[:-20], NO_XZ + "...end-of-stream..."),
])  # fmt: skip
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


MESSAGE = "serialized_example_proto"
SET = "UPDATE client_metadata SET "
ROW = "client_metadata: expected a text and an integer >= 0, found "


@pytest.mark.parametrize(("statement", "message"), [
    ("DROP TABLE client_metadata", "expected a table client_metadata, found none"),
    (f"ALTER TABLE examples RENAME COLUMN {MESSAGE} TO proto; "
     f"ALTER TABLE examples ADD COLUMN {MESSAGE} AS (zeroblob(9)) VIRTUAL",
     f"table examples: expected columns client_id, ..., found no {MESSAGE}"),
    ("DROP INDEX of_client; PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = "
     f"'CREATE VIRTUAL TABLE examples USING fts4(split_name, client_id, {MESSAGE})' "
     "WHERE name = 'examples'", "expected a table examples, found none"),
    ("ALTER TABLE client_metadata RENAME TO m; CREATE VIEW client_metadata AS SELECT * FROM m",
     "expected a table client_metadata, found none"),
    (SET + "client_id = CAST(x'0a62ff' AS TEXT)", "...decode to UTF-8..."),
    (SET + "client_id = client_id || x'0a'", "client '10\\n' of the ..."),
    (SET + "num_examples = 2 WHERE client_id = '8'", "client '8' ...: expected 2 ..., found 1"),
    (SET + "num_examples = 1 WHERE client_id = '10'", "client '10' ...: expected 1 ..., found 3"),
    (SET + "num_examples = 'two'", ROW + "('10', 'two') in the split train"),
    (SET + "num_examples = -1", ROW + "('10', -1) in the split train"),
    (SET + "client_id = 9", ROW + "(9, 3) in the split train"),
    (SET + "client_id = '9'", "...: expected one row ..., found two of '9' in the split train"),
    (SET + "client_id = printf('%.*c', 1000000, 'a')", "...: expected ..., found two of 'aaa..."),
    (SET + "num_examples = 0", "client_metadata: expected 1 to 16384 ... train ..., found 0"),
    (SET + "num_examples = 9223372036854775807", "...: expected ..., found 27670116110564327421"),
    ("DELETE FROM examples WHERE client_id = '10'",
     "client '10' of the split train: expected 3 examples, as in client_metadata, found 0"),
    (f"UPDATE examples SET {MESSAGE} = 'text'", "client '10': expected ... a blob, found str"),
    (f"UPDATE examples SET {MESSAGE} = x'0a05'",
     "client '10': example: expected a serialised tf.train.Example, found Error parsing..."),
    ("ALTER TABLE examples RENAME TO e; CREATE TABLE examples (split_name, "
     f"client_id COLLATE NOCASE, {MESSAGE}); "
     f"INSERT INTO examples SELECT split_name, 'A', {MESSAGE} FROM e; "
     "UPDATE client_metadata SET client_id = 'a' WHERE client_id = '10'",
     "client_metadata: expected every client of the split train, found no 'A'"),
])  # fmt: skip
def test_databases_of_another_form_are_refused(tmp_path, statement, message):
    path = write(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(statement)
    assert len(refused(f"{path}: {message}", load, tmp_path)) < 500  # quotes little of a file
    refused(f"{packed(path, '.xz')}: {message}", load, tmp_path)


def test_an_example_needs_one_text_of_each_kind(tmp_path):
    for count, title in ((0, {}), (2, {"title": [b"a", b"b"]}), (1, {"title": [1]})):
        example = encode_example({**title, "tokens": [b"a"], "tags": [b"java"]})
        path = write(tmp_path / str(count), [("train", "1", example), *ROWS])
        expected = f"{path}: client '1': expected one text title in an example"
        refused(f"{expected}, found {count} values", load, path.parent)


def test_a_database_in_use_is_refused(tmp_path):
    path = write(tmp_path)
    for suffix in ("-wal", "-journal"):
        beside = Path(f"{path}{suffix}")
        beside.write_bytes(b"x")
        refused(f"{path}: expected no other writer, found a -wal or -journal ...", load, tmp_path)
        beside.unlink()
    load(tmp_path)


def test_a_path_may_hold_any_characters(tmp_path):
    write(tmp_path / "a?mode=rw#b %41")
    assert len(load(tmp_path / "a?mode=rw#b %41")[0]["x"]) == 5


WORD = "expected a new word and a count not above the one before, found "


@pytest.mark.parametrize(("name", "content", "message"), [
    ("word_count", b"a 2\nb 1\n", "expected at least vocabulary=5 words, found 2"),
    ("word_count", b"a 2\nb\nc 1\n", WORD + "b'b\\n' in line 2"),
    ("word_count", b"a 2\nb 3\n", WORD + "b'b 3\\n' in line 2"),
    ("word_count", b"a 2\na 2\n", WORD + "b'a 2\\n' in line 2"),
    ("word_count", b"a 2\nb -1\n", WORD + "b'b -1\\n' in line 2"),
    ("word_count", b"a 1 2\n", WORD + "b'a 1 2\\n' in line 1"),
    ("word_count", b"a" * 5000, WORD + f"b'{'a' * 40}' in line 1"),
    ("tag_count", b'{"a": 1, "b": 2, "c"', "...Expecting..."),
    ("tag_count", b'{"a": 1, "b": 2}', "expected at least num_tags=3 tags, found 2"),
    ("tag_count", b"[1, 2, 3]", "expected a JSON object of integers, found other JSON"),
    ("tag_count", b'{"a": 1, "b": true, "c": 1}', "expected a JSON object of integers, ..."),
    ("tag_count", b'{"a": 1, "b": 2, "\\ud800": 3}', "...surrogates not allowed..."),
    ("tag_count", b"\xff\xfe\xfd", "...decode..."),
    ("tag_count", b"[" * 200_000, "...recursion..."),
])  # fmt: skip
def test_damaged_counts_are_refused(tmp_path, name, content, message):
    write(tmp_path)
    (tmp_path / name).write_bytes(content)
    refused(f"{tmp_path / name}: {message}", load, tmp_path)


def test_a_huge_tag_file_is_not_read(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(vocabulary, "_LARGEST_JSON", 10)
    refused(f"{tmp_path / 'tag_count'}: expected at most 10 bytes, found 47", load, tmp_path)


@pytest.mark.parametrize("given", ["word", "tag"])
def test_files_that_do_not_belong_together_are_refused(tmp_path, given):
    path = write(tmp_path, **{f"{given}s": {f"x{k}": 1 for k in range(5)}})
    message = f"{path}: expected something that is in {tmp_path}/{given}_count, found nothing ..."
    refused(message, load, tmp_path)
