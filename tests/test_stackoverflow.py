"""The reader of the Stack Overflow release, and of tf.train.Example messages."""

import contextlib
import json
import lzma
import shutil
import sqlite3
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfl_jax.data import partition_natural, sqlite, stackoverflow
from ccfl_jax.data.protos import decode_example
from ccfl_jax.data.stackoverflow import load_stackoverflow

DEBIAN = Path(__file__).parents[2] / "shared" / "data" / "debian_tags"


def varint(number):
    number &= 2**64 - 1  # negative numbers in two's complement
    digits = []
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values, packed=True):
    """A Feature: of bytes, of floats or of ints, by the type of its first value."""
    kind = type(values[0])
    if kind is bytes:
        return field(1, b"".join(field(1, value) for value in values))
    if kind is float:
        items, number, key = [struct.pack("<f", v) for v in values], 2, b"\x0d"
    else:
        items, number, key = [varint(v) for v in values], 3, b"\x08"
    content = field(1, b"".join(items)) if packed else b"".join(key + item for item in items)
    return field(number, content)


def entry(name, content):
    return field(1, field(1, name.encode()) + field(2, content))


def example(features, packed=True):
    entries = (entry(name, feature(values, packed)) for name, values in features.items())
    return field(1, b"".join(entries))


FLOATS = st.floats(width=32, allow_nan=False)
FEATURES = st.dictionaries(
    st.text(max_size=5),
    st.one_of(
        st.lists(st.binary(max_size=200), min_size=1, max_size=4),
        st.lists(FLOATS, min_size=1, max_size=4),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
    ),
    max_size=4,
)


def same(decoded, features):
    assert decoded.keys() == features.keys()
    for name, values in features.items():
        kind = type(values[0])
        if kind is bytes:
            assert decoded[name] == values
        else:
            assert decoded[name].dtype == (np.float32 if kind is float else np.int64)
            assert decoded[name].tolist() == values


def test_a_message_written_out_by_hand():
    # Int64List {value: 150}, 150 = 0x96 0x01 in base 128, stands in Feature, entry "a", Features.
    numbers = b"\x08\x96\x01"
    one = b"\x1a\x03" + numbers
    features = b"\x0a\x0a" + b"\x0a\x01a" + b"\x12\x05" + one
    decoded = decode_example(b"\x0a\x0c" + features)
    assert decoded["a"].tolist() == [150] and len(decoded) == 1
    assert decode_example(b"") == decode_example(b"\x0a\x00") == {}


@given(FEATURES, st.booleans())
def test_what_was_encoded_comes_back(features, packed):
    same(decode_example(example(features, packed)), features)


@given(FEATURES, st.lists(st.text(max_size=5), max_size=3))
def test_only_the_names_asked_for(features, others):
    wanted = [*list(features)[::2], *others]
    kept = {name: values for name, values in features.items() if name in wanted}
    same(decode_example(example(features), wanted), kept)


def test_what_the_format_leaves_open():
    unknown = field(9, b"junk") + b"\x58\x01" + b"\x61" + bytes(8) + b"\x6d" + bytes(4)
    texts, numbers = feature([b"a", b"b"]), feature([7, -1])
    assert decode_example(unknown + example({"x": [b"a"]}) + unknown) == {"x": [b"a"]}
    one = decode_example(field(1, unknown + entry("x", unknown + texts)))
    assert one == {"x": [b"a", b"b"]}
    # Two lists of a kind are joined; of two kinds, and of two entries, the later counts.
    assert decode_example(field(1, entry("x", texts + texts))) == {"x": [b"a", b"b"] * 2}
    later = decode_example(field(1, entry("x", texts + numbers)))
    assert later["x"].tolist() == [7, -1]
    twice = entry("x", numbers) + entry("x", texts)
    assert decode_example(field(1, twice)) == {"x": [b"a", b"b"]}
    assert decode_example(field(1, entry("x", numbers)) + field(1, entry("x", texts))) == one
    # An entry without a name, a feature without a kind, and a known field of another wire type.
    assert decode_example(field(1, field(1, field(2, texts)))) == {"": [b"a", b"b"]}
    assert decode_example(field(1, entry("x", b""))) == {"x": []}
    assert decode_example(b"\x08\x05") == {}


@given(FEATURES.filter(bool), st.booleans())
def test_every_cut_is_refused(features, packed):
    message = example(features, packed)
    for end in range(1, len(message)):
        with pytest.raises(ValueError):
            decode_example(message[:end])


@given(st.binary(max_size=60), FEATURES, st.integers(0), st.integers(0, 255))
def test_other_bytes_are_decoded_or_refused(noise, features, place, byte):
    message = bytearray(example(features))
    message[place % len(message)] = byte
    for damaged in (noise, field(1, noise), field(1, entry("x", noise)), bytes(message)):
        with contextlib.suppress(ValueError):
            decode_example(damaged)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (b"\x0b", "field 1 at byte 1 has the wire type 3"),
        (b"\x02\x00", "field number 0"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "number at byte 1 is cut short or has more than 64"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "field 1 at byte 11 is cut short"),
        (field(1, entry("x", field(2, field(1, b"12345")))), "packed floats of 5 bytes"),
        (field(1, field(1, field(1, b"\xff") + field(2, b""))), "utf-8"),
    ],
)
def test_what_is_no_message_is_refused(message, complaint):
    with pytest.raises(ValueError, match=complaint):
        decode_example(message)


def post(title, tokens, tags, **others):
    texts = {"title": title, "tokens": tokens, "tags": tags, "type": "question", **others}
    return example({"score": [3], **{name: [text.encode()] for name, text in texts.items()}})


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
    lines = "".join(f"{word} {count}\n" for word, count in words.items())
    (folder / "word_count").write_text(lines)
    (folder / "tag_count").write_text(json.dumps(tags))
    return path


def load(folder, *args, **kwargs):
    return load_stackoverflow(folder, *args, **{**SMALL, "cache_dir": folder / "cache", **kwargs})


def packed(path, suffix):
    kind = lzma.FORMAT_XZ if suffix == ".xz" else lzma.FORMAT_ALONE
    target = path.with_name(path.name + suffix)
    target.write_bytes(lzma.compress(path.read_bytes(), kind))
    path.unlink()
    return target


def equal(first, second):
    for one, other in zip(first[:2], second[:2], strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype == np.int32
            np.testing.assert_array_equal(one[name], other[name])
    assert first[2] == second[2]


def refused(error, message, folder, *args, **kwargs):
    with pytest.raises(error) as caught:
        load(folder, *args, **kwargs)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def test_a_small_corpus_comes_out_as_written(tmp_path):
    write(tmp_path)
    train, test, counts = load(tmp_path)
    # the 0, a 1, in 2, loop 3, <URL> 4; vb . net 0, then by the alphabet c++ 1, java 2.
    # Clients 10, 8, 9 in the order of texts; what is unknown is -2.
    assert train["x"].tolist() == [
        [1, 3, 2, 0, 3, -1],
        [0, -2, 2, -2, -1, -1],
        [1, 1, -1, -1, -1, -1],
        [2, 2, 2, 2, 1, 0],
        [0, 0, -1, -1, -1, -1],
    ]
    assert train["y"].tolist() == [[2, -1, -1], [-1] * 3, [1, -1, -1], [2, 1, 0], [0, 1, -1]]
    assert train["client"].tolist() == [0, 0, 0, 1, 2]
    assert [rows.tolist() for rows in partition_natural(train["client"])] == [[0, 1, 2], [3], [4]]
    order = test["client"].tolist()
    assert sorted(order) == [-1, 2]  # client 7 is not in train
    assert test["x"][order.index(2)].tolist() == [-2, 4, 1, -2, -2, -1]
    assert test["x"][order.index(-1)].tolist() == [1, 1, -1, -1, -1, -1]
    assert test["y"][order.index(2)].tolist() == [1]
    assert counts == {
        "clients": 3,
        "too_small": 0,
        "words": 5 + 4 + 2 + 8 + 2,
        "unknown_words": 2,
        "cut_texts": 1,
        "untagged": 1,
    }
    assert all(a.dtype == np.int32 for part in (train, test) for a in part.values())


def test_unknown_words_may_be_left_out(tmp_path):
    write(tmp_path)
    train, test, counts = load(tmp_path, keep_unknown=False)
    assert train["x"][1].tolist() == [0, 2, -1, -1, -1, -1]
    assert sorted(test["x"].tolist()) == [[1, 1, -1, -1, -1, -1], [4, 1, -1, -1, -1, -1]]
    assert counts["unknown_words"] == 2


def test_a_client_has_its_first_examples_in_the_file(tmp_path):
    write(tmp_path)
    train, _, counts = load(tmp_path, max_examples=2)
    assert train["client"].tolist() == [0, 0, 1, 2]
    assert train["x"][:2, 0].tolist() == [1, 0]
    assert counts["words"] == 5 + 4 + 8 + 2
    train, _, counts = load(tmp_path, min_examples=2)
    assert train["client"].tolist() == [0, 0, 0]
    assert (counts["clients"], counts["too_small"]) == (3, 2)


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


def by_client(part):
    groups = {}
    for x, y, client in zip(*(part[name].tolist() for name in ("x", "y", "client")), strict=True):
        groups.setdefault(client, []).append((x, y))
    return groups


def test_a_draw_is_of_whole_clients_and_depends_on_the_seed_alone(tmp_path):
    write(tmp_path / "a", **many())
    everyone = by_client(load(tmp_path / "a", **MANY)[0])
    train, test, counts = load(tmp_path / "a", 10, 3, **MANY)
    assert counts["clients"] == 40
    drawn = by_client(train)
    assert list(drawn) == list(range(10))
    assert train["client"].tolist() == sorted(train["client"])
    places = [next(k for k, own in everyone.items() if own == one) for one in drawn.values()]
    assert places == sorted(places) and len(set(places)) == 10
    equal(load(tmp_path / "a", 10, 3, **MANY), (train, test, counts))
    other, same_test, _ = load(tmp_path / "a", 10, 4, **MANY)
    assert by_client(other) != drawn
    np.testing.assert_array_equal(same_test["x"], test["x"])
    # A test client has the number that it has in train: both have its words w<tens> w<ones>.
    assert {-1, *range(10)} == set(test["client"].tolist())
    for client, own in by_client(test).items():
        if client >= 0:
            assert {tuple(x[:2]) for x, _ in own} == {tuple(drawn[client][0][0][:2])}


def test_draws_are_uniform(tmp_path):
    write(tmp_path, **many(clients=4))
    first = []
    everyone = list(by_client(load(tmp_path, **MANY)[0]).values())
    for seed in range(300):
        (own,) = by_client(load(tmp_path, 1, seed, max_test=1, **MANY)[0]).values()
        first.append(everyone.index(own))
    counts = np.bincount(first, minlength=4)
    # Each is binomial(300, 1/4), standard deviation 7.5; the draws are fixed by the seeds.
    assert (np.abs(counts - 75) < 4 * 7.5).all()


@pytest.mark.parametrize(
    "index",
    [
        INDEX,
        None,
        "CREATE INDEX i ON examples (client_id)",
        "CREATE INDEX i ON examples (split_name)",
    ],
)
@pytest.mark.parametrize("limits", [{}, {"max_examples": 2, "max_test": 7}])
def test_the_index_is_a_matter_of_speed_only(tmp_path, index, limits):
    write(tmp_path / "a", **many())
    write(tmp_path / "b", **many(), index=index)
    for clients in (5, 30, None):
        kwargs = {**MANY, **limits}
        equal(load(tmp_path / "a", clients, **kwargs), load(tmp_path / "b", clients, **kwargs))


@pytest.mark.parametrize("columns", ["split_name, client_id", "client_id, split_name", "client_id"])
def test_clients_are_searched_by_any_index_on_them(tmp_path, columns):
    path = write(tmp_path, **many(), index=f"CREATE INDEX i ON examples ({columns})")
    with contextlib.closing(sqlite3.connect(path)) as db:
        plan = db.execute(f"EXPLAIN QUERY PLAN {stackoverflow._OF_ONE}", ("", "", 1)).fetchall()
        (step,) = [row[-1] for row in plan]
    assert "USING INDEX i" in step and "client_id=?" in step and "SCAN" not in step


def bytes_read():
    text = Path("/proc/self/io").read_text()
    return int(dict(line.split(": ") for line in text.splitlines())["rchar"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="no count of bytes read here")
def test_a_few_clients_of_a_large_file_do_not_read_it_all(tmp_path):
    long = "the in " * 300
    rows = [(s, f"{c}", post("a", long, "java")) for c in range(400) for s in ("train", "test") * 4]
    path = write(tmp_path, rows=rows)
    assert path.stat().st_size > 6_000_000
    before = bytes_read()
    train, test, _ = load(tmp_path, 5, max_test=10)
    some = bytes_read() - before
    assert train["x"].shape == (20, 6) and test["x"].shape == (10, 6)
    before = bytes_read()
    load(tmp_path)
    assert some < 500_000 < 6_000_000 < bytes_read() - before


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["train", "test"]),
            st.sampled_from("abcde"),
            st.lists(st.sampled_from(["the", "a", "in", "loop", "zzz"]), max_size=8),
            st.lists(st.sampled_from(["java", "c++", "rare", "odd"]), max_size=3),
        ),
        max_size=12,
    ),
    st.integers(1, 3),
    st.integers(1, 4),
    st.booleans(),
)
def test_any_corpus_is_as_a_plain_loop_reads_it(tmp_path_factory, posts, most, most_test, index):
    folder = tmp_path_factory.mktemp("corpus")
    posts = [("train", "a", ["the"], ["java"]), ("test", "a", ["the"], []), *posts]
    write(
        folder,
        [(s, c, post("", " ".join(words), "|".join(tags))) for s, c, words, tags in posts],
        index=INDEX if index else None,
    )
    train, test, _ = load(folder, max_examples=most, max_test=most_test)
    ids, tag_ids = ["the", "a", "in", "loop"], ["vb . net", "c++", "java"]

    def rows(split, client):
        for of, who, words, tags in posts:
            if (of, who) == (split, client):
                x = [ids.index(w) if w in ids else -2 for w in words][:6]
                y = [tag_ids.index(t) for t in dict.fromkeys(tags) if t in tag_ids]
                yield x + [-1] * (6 - len(x)), y

    clients = sorted({client for split, client, *_ in posts if split == "train"})
    expected = [row for client in clients for row in list(rows("train", client))[:most]]
    assert train["x"].tolist() == [x for x, _ in expected]
    assert [[t for t in y if t >= 0] for y in train["y"].tolist()] == [y for _, y in expected]
    testers = {client for split, client, *_ in posts if split == "test"}
    everyone = {client: [x for x, _ in rows("test", client)] for client in testers}
    left, seen = test["x"].tolist(), set()
    assert len(left) == min(most_test, sum(map(len, everyone.values())))
    while left:  # whole clients in some order, the last cut
        fits = [c for c in testers - seen if everyone[c][: len(left)] == left[: len(everyone[c])]]
        assert fits
        seen.add(min(fits))
        left = left[len(everyone[min(fits)]) :]


@pytest.mark.parametrize("suffix", [".xz", ".lzma"])
def test_a_compressed_file_is_decompressed_once(tmp_path, monkeypatch, suffix):
    expected = load(write(tmp_path / "plain").parent)
    source = packed(write(tmp_path / "packed", name="stackoverflow"), suffix)
    equal(load(tmp_path / "packed"), expected)
    (kept,) = (tmp_path / "packed" / "cache").iterdir()
    assert kept.name.startswith("stackoverflow-") and kept.suffix == ".sqlite"
    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "_unpacked", None)
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


def test_without_room_nothing_is_decompressed(tmp_path, monkeypatch):
    source = packed(write(tmp_path), ".xz")
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    message = refused(OSError, "which has 100 left", tmp_path)
    assert message.startswith(f"{source}: needs ")
    assert not list((tmp_path / "cache").iterdir())


def xz_of(change):
    return lambda content: lzma.compress(change(content))


def with_header(start, replacement):
    return lambda c: c[:start] + replacement + c[start + len(replacement) :]


@pytest.mark.parametrize(
    ("suffix", "damage", "message"),
    [
        ("", lambda c: b"", "is no SQLite database"),
        ("", lambda c: b"word 1\n" * 50, "is no SQLite database"),
        ("", lambda c: c[:99], "is no SQLite database"),
        ("", lambda c: c[:-1], "bytes, its header says"),
        ("", lambda c: c + b"\0", "bytes, its header says"),
        ("", with_header(28, bytes(4)), "its header says 0"),
        ("", with_header(92, b"\xff\xff\xff\xff"), "does not give its size"),
        ("", lambda c: c[:4096] + b"\xff" * (len(c) - 4096), "malformed"),
        ("", lambda c: c[:108] + b"\xee" * 3000 + c[3108:], ""),
        (".xz", lambda c: b"", "end-of-stream"),
        (".xz", lambda c: lzma.compress(c)[:-20], "end-of-stream"),
        (".xz", lambda c: lzma.compress(c)[:300] + b"\0" * 200, ""),
        (".xz", lambda c: c, "format not supported"),
        (".xz", xz_of(lambda c: b"text"), "is no SQLite database"),
        (".xz", xz_of(lambda c: c[:5000]), "holds 5000 bytes or more, its header says"),
        (".xz", xz_of(lambda c: c + bytes(9)), "or more, its header says"),
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
    if suffix:
        assert not list((tmp_path / "cache").iterdir())


def test_a_bomb_writes_no_more_than_its_header_says(tmp_path, monkeypatch):
    path = write(tmp_path)
    size = path.stat().st_size
    source = path.with_name(path.name + ".xz")
    source.write_bytes(lzma.compress(path.read_bytes() + bytes(50_000_000)))
    path.unlink()
    monkeypatch.setattr(sqlite, "_CHUNK", 1000)
    refused(ValueError, f"its header says {size}", tmp_path)
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("suffix", [".xz", ".lzma"])
def test_a_header_that_claims_too_much_for_its_file_is_refused_at_once(tmp_path, suffix):
    """64 MiB and a page, of a file of a few hundred bytes that holds nothing like it."""
    path = write(tmp_path)
    content = bytearray(path.read_bytes())
    content[28:32] = ((1 << 14) + 1).to_bytes(4, "big")
    path.write_bytes(content)
    source = packed(path, suffix)
    message = refused(ValueError, "found a header of 67112960 bytes, legal: 67108864", tmp_path)
    assert message.startswith(f"{source}: ")
    assert not list((tmp_path / "cache").iterdir())


def test_a_decoder_is_not_given_the_memory_that_a_file_asks_for(tmp_path):
    source = packed(write(tmp_path), ".lzma")
    content = bytearray(source.read_bytes())
    content[1:5] = (1 << 30).to_bytes(4, "little")  # its dictionary
    source.write_bytes(content)
    refused(ValueError, "Memory usage limit exceeded", tmp_path)


def test_several_streams_are_one_file_and_nothing_may_follow_them(tmp_path):
    expected = load(write(tmp_path / "plain").parent)
    path = write(tmp_path / "a")
    content = path.read_bytes()
    path.unlink()
    source = path.with_name(path.name + ".xz")
    streams = lzma.compress(content[:70]) + bytes(4 << 18) + lzma.compress(content[70:])
    source.write_bytes(streams)
    equal(load(tmp_path / "a"), expected)
    source.write_bytes(streams + b"and more than that")
    refused(ValueError, "format not supported", tmp_path / "a")


def endless(path, table, depth=6, width=100):
    """Makes `width` to the power of `depth` rows of a table's: pages whose children are one page.

    An interior page of a table: the kind 5, its number of cells, the last child; a cell is the
    child's number and a key, here 1.
    """
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        (size,) = db.execute("PRAGMA page_size").fetchone()
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        (root,) = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
        ).fetchone()
        db.execute("PRAGMA writable_schema = ON")
        query = "UPDATE sqlite_master SET rootpage = ? WHERE name = ?"
        db.execute(query, (pages + depth, table))
    content = bytearray(path.read_bytes())
    content[28:32] = (pages + depth).to_bytes(4, "big")
    child = root
    for number in range(pages + 1, pages + depth + 1):
        cell = child.to_bytes(4, "big") + b"\x01"
        start = size - width * len(cell)
        head = b"\x05\0\0" + width.to_bytes(2, "big") + start.to_bytes(2, "big") + b"\0"
        places = b"".join((start + k * 5).to_bytes(2, "big") for k in range(width))
        page = (head + child.to_bytes(4, "big") + places).ljust(start, b"\0") + cell * width
        content += page
        child = number
    path.write_bytes(content)


@pytest.mark.parametrize("table", ["client_metadata", "examples"])
def test_rows_without_end_are_given_up(tmp_path, table):
    path = write(tmp_path)
    endless(path, table)
    text = refused(ValueError, "found no end of rows, legal: as many as its size", tmp_path)
    assert text.startswith(f"{path}: ")


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
            "UPDATE client_metadata SET num_examples = 3000 WHERE split_name = 'test'",
            "says 6000 examples in the split test, legal: 1 to 1365, for which the file has room",
        ),
        ("UPDATE client_metadata SET client_id = CAST(x'0a62ff' AS TEXT)", "decode to UTF-8"),
        ("UPDATE client_metadata SET client_id = client_id || x'0a'", "lacks '10' of the split tr"),
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
        ("DELETE FROM client_metadata WHERE client_id = '8'", "lacks '8' of the split train"),
        ("DELETE FROM examples WHERE client_id = '10'", "'10' of the split train has 0 examples"),
        ("UPDATE examples SET serialized_example_proto = 'text'", "of the type str, legal: a blob"),
        ("UPDATE examples SET serialized_example_proto = NULL", "of the type NoneType"),
        (
            "UPDATE examples SET serialized_example_proto = x'0a05'",
            "': field 1 at byte 2 is cut sh",
        ),
        ("UPDATE examples SET serialized_example_proto = x''", "not just one text title"),
        ("UPDATE examples SET serialized_example_proto = zeroblob(5000000)", "too big"),
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
def test_the_index_path_compares_with_the_metadata_too(tmp_path, said):
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
        message = example({**title, "tokens": [b"a"], "tags": [b"java"]})
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
        (b"", "found 0 words, legal: vocabulary, 5, or more"),
        (b"a 2\nb 1\n", "found 2 words, legal: vocabulary, 5, or more"),
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
        (b'{"a": 1, "b": 2}', "found 2 tags, legal: num_tags, 3, or more"),
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
    monkeypatch.setattr(stackoverflow, "_LARGEST_JSON", 10)
    refused(ValueError, "bytes, legal: up to 10", tmp_path)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    path = write(tmp_path / "a", words={f"x{k}": 1 for k in range(5)})
    text = refused(ValueError, "nothing that is in", tmp_path / "a")
    assert str(path) in text and str(tmp_path / "a" / "word_count") in text
    path = write(tmp_path / "b", tags={f"x{k}": 1 for k in range(5)})
    text = refused(ValueError, "nothing that is in", tmp_path / "b")
    assert str(path) in text and str(tmp_path / "b" / "tag_count") in text


@pytest.mark.parametrize("missing", ["corpus.sqlite", "word_count", "tag_count"])
def test_missing_files_are_named_and_the_release_s_names_are_known(tmp_path, missing):
    write(tmp_path)
    expected = load(tmp_path)
    (tmp_path / missing).rename(tmp_path / "away")
    refused(FileNotFoundError, f"{tmp_path} must hold one of stackoverflow.", tmp_path)
    name = "sqlite" if missing == "corpus.sqlite" else missing
    (tmp_path / "away").rename(tmp_path / f"stackoverflow.{name}")
    equal(load(tmp_path), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_clients": 0}, "num_clients: found 0, legal: a whole number from 1 on"),
        ({"max_examples": 0}, "max_examples: found 0, legal"),
        ({"min_examples": 0}, "min_examples: found 0, legal"),
        ({"max_test": 0}, "max_test: found 0, legal"),
        ({"vocabulary": 2.0}, "vocabulary: found 2.0, legal"),
        ({"num_tags": None}, "num_tags: found None, legal"),
        ({"max_words": True}, "max_words: found True, legal"),
        ({"seed": -1}, "seed: found -1, legal"),
        (
            {"num_clients": 4},
            "found 3 clients with 1 training examples or more, and 0 with fewer, legal",
        ),
        (
            {"num_clients": 2, "min_examples": 3},
            "found 1 clients with 3 training examples or more, ",
        ),
        ({"min_examples": 4}, "and 3 with fewer, legal: num_clients, 1, or more"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, change, message):
    write(tmp_path)
    refused(ValueError, message, tmp_path, **change)


@pytest.mark.skipif(not DEBIAN.is_dir(), reason=f"no corpus in {DEBIAN}")
def test_the_debian_corpus_is_read_whole(tmp_path):
    train, test, counts = load_stackoverflow(DEBIAN, max_examples=3000, cache_dir=tmp_path)
    # 29,770 examples of 1,810 clients, of which every tenth from 0 on, with 2,356, is held out.
    assert counts["clients"] == 1810 - 181
    assert len(train["x"]) + len(test["x"]) + 2356 == 29770
    assert train["x"].max() == 9999 and train["y"].max() == 499
    assert train["client"].max() == counts["clients"] - 1
    assert test["client"].min() >= 0  # every test client is in train
    few, same_test, _ = load_stackoverflow(DEBIAN, 100, min_examples=20, cache_dir=tmp_path)
    np.testing.assert_array_equal(same_test["x"], test["x"])
    sizes = np.bincount(few["client"])
    assert len(sizes) == 100 and sizes.min() >= 20 and sizes.max() == 500
