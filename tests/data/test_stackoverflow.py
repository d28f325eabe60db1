"""The reader of the Stack Overflow release: what comes out, of which clients."""

import contextlib
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from corpus import INDEX, MANY, equal, load, many, post, write
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

from ccfl_jax.data import partition_natural
from ccfl_jax.data.readers import federated_sqlite
from ccfl_jax.data.readers.stackoverflow import load_stackoverflow

DEBIAN = Path(__file__).parents[3] / "shared" / "data" / "debian_tags"


def test_a_small_corpus_comes_out_as_written(tmp_path):
    write(tmp_path)
    train, test, counts = load(tmp_path)
    # the 0, a 1, in 2, loop 3, <URL> 4; vb . net 0, then by the alphabet c++ 1, java 2.
    # Clients 10, 8, 9 in the order of texts; what is unknown is -2.
    assert train["x"].tolist() == [
        [1, 3, 2, 0, 3, -1], [0, -2, 2, -2, -1, -1], [1, 1, -1, -1, -1, -1],
        [2, 2, 2, 2, 1, 0], [0, 0, -1, -1, -1, -1],
    ]  # fmt: skip
    assert train["y"].tolist() == [[2, -1, -1], [-1] * 3, [1, -1, -1], [2, 1, 0], [0, 1, -1]]
    assert train["client"].tolist() == [0, 0, 0, 1, 2]
    assert [rows.tolist() for rows in partition_natural(train["client"])] == [[0, 1, 2], [3], [4]]
    order = test["client"].tolist()
    assert sorted(order) == [-1, 2]  # client 7 is not in train
    assert test["x"][order.index(2)].tolist() == [-2, 4, 1, -2, -2, -1]
    assert test["x"][order.index(-1)].tolist() == [1, 1, -1, -1, -1, -1]
    assert test["y"][order.index(2)].tolist() == [1]
    assert counts == {
        "clients": 3, "too_small": 0, "words": 5 + 4 + 2 + 8 + 2,
        "unknown_words": 2, "cut_texts": 1, "untagged": 1,
    }  # fmt: skip
    assert all(a.dtype == np.int32 for part in (train, test) for a in part.values())
    train, test, others = load(tmp_path, keep_unknown=False)
    assert train["x"][1].tolist() == [0, 2, -1, -1, -1, -1] and others == counts
    assert sorted(test["x"].tolist()) == [[1, 1, -1, -1, -1, -1], [4, 1, -1, -1, -1, -1]]
    train, _, counts = load(tmp_path, min_examples=2)  # clients with fewer are left out
    assert train["client"].tolist() == [0, 0, 0]
    assert (counts["clients"], counts["too_small"]) == (3, 2)


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
    places = [list(everyone.values()).index(own) for own in drawn.values()]
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
    everyone = list(by_client(load(tmp_path, **MANY)[0]).values())
    drawn = [by_client(load(tmp_path, 1, s, max_test=1, **MANY)[0])[0] for s in range(200)]
    counts = np.bincount([everyone.index(own) for own in drawn], minlength=4)
    # Each is binomial(200, 1/4), standard deviation 6.1; the draws are fixed by the seeds.
    assert (np.abs(counts - 50) < 4 * 6.1).all()


@pytest.mark.parametrize("columns", [None, "split_name", "client_id", "split_name, client_id"])
def test_clients_are_searched_by_any_index_on_them_with_the_same_result(tmp_path, columns):
    write(tmp_path / "a", **many())
    index = columns and f"CREATE INDEX i ON examples ({columns})"
    path = write(tmp_path / "b", **many(), index=index)
    for clients, limits in ((5, {}), (30, {"max_examples": 2, "max_test": 7}), (None, {})):
        plain, indexed = (load(tmp_path / name, clients, **MANY, **limits) for name in "ab")
        equal(plain, indexed)
    if columns and "client_id" in columns:
        with contextlib.closing(sqlite3.connect(path)) as db:
            plan = db.execute(f"EXPLAIN QUERY PLAN {federated_sqlite.EXAMPLES}", ("", "[]"))
            search, *others = [row[-1] for row in plan]
        assert "SEARCH examples USING INDEX i" in search and "client_id=?" in search
        assert not any("ORDER BY" in step for step in others)  # nothing is sorted


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
    between = bytes_read()
    load(tmp_path)
    assert between - before < 500_000 < 6_000_000 < bytes_read() - between
    assert train["x"].shape == (20, 6) and test["x"].shape == (10, 6)


some_words = st.lists(st.sampled_from(["the", "a", "in", "loop", "zzz"]), max_size=8)
some_tags = st.lists(st.sampled_from(["java", "c++", "rare", "odd"]), max_size=3)
splits = st.sampled_from(["train", "test"])
a_post = st.tuples(splits, st.sampled_from("abcde"), some_words, some_tags)


@given(st.lists(a_post, max_size=12), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_any_corpus_is_as_a_plain_loop_reads_it(tmp_path_factory, posts, most, most_test, index):
    folder = tmp_path_factory.mktemp("corpus")
    posts = [("train", "a", ["the"], ["java"]), ("test", "a", ["the"], []), *posts]
    examples = [(s, c, post("", " ".join(words), "|".join(tags))) for s, c, words, tags in posts]
    write(folder, examples, index=INDEX if index else None)
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


@pytest.mark.parametrize("missing", ["corpus.sqlite", "word_count", "tag_count"])
def test_missing_files_are_named_and_the_release_s_names_are_known(tmp_path, missing):
    write(tmp_path)
    expected = load(tmp_path)
    (tmp_path / missing).rename(tmp_path / "away")
    name = "sqlite" if missing == "corpus.sqlite" else missing
    message = f"Stack Overflow: expected one of stackoverflow.{name}, ... in {tmp_path}, found none"
    refused(message, load, tmp_path, kind=FileNotFoundError)
    (tmp_path / "away").rename(tmp_path / f"stackoverflow.{name}")
    equal(load(tmp_path), expected)


LIMITS = ["num_clients", "max_examples", "min_examples", "max_test", "vocabulary", "max_words"]


@pytest.mark.parametrize(("change", "message"), [
    *(({name: 0}, f"{name}: expected an integer >= 1, found 0") for name in LIMITS),
    ({"num_tags": None}, "num_tags: expected an integer >= 1, found None"),
    ({"seed": -1}, "seed: expected an integer from 0 to 4294967295, found -1"),
    ({"num_clients": 2, "min_examples": 3}, "...: expected at least num_clients=2 clients with "
     "3 training examples or more, found 1, and 2 with fewer"),
    ({"min_examples": 4}, "...: expected ... num_clients=1 ... 4 ..., found 0, and 3 with fewer"),
])  # fmt: skip
def test_bad_arguments_are_refused(tmp_path, change, message):
    write(tmp_path)
    refused(message, load, tmp_path, **change)


@pytest.mark.slow
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
