"""experiments/debian_corpus.py: a corpus from apt's package lists."""

import contextlib
import gzip
import itertools
import json
import lzma
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ccfl_jax.data.readers.stackoverflow import load_stackoverflow
from ccfl_jax.data.readers.tf_example import decode_example
from experiments import debian_corpus
from experiments.corpora import apt_lists, debian, stackoverflow_files

SHARED = Path(__file__).parents[4] / "shared" / "data" / "debian_tags"
LISTS = sorted(apt_lists.LISTS.glob("*bookworm_main_binary-*_Packages*"))
ANN, BOB = "Ann A <ann@example.org>", "Bob <bob@example.org>"


def record(name, maintainer=ANN, tags="role::program", short=None, md5=True, **others):
    fields = {"Package": name, "Version": "1", "Maintainer": maintainer}
    fields |= {"Description": short or f"{name.upper()} tool"}
    fields |= {"Description-md5": f"md5-{name}"} if md5 else {}
    fields |= {"Tag": tags} if tags else {}
    return "".join(f"{field}: {text}\n" for field, text in (fields | others).items()) + "\n"


def translation(name, body, short=None):
    lines = "".join(f" {line or '.'}\n" for line in body.split("\n"))
    head = f"Package: {name}\nDescription-md5: md5-{name}\n"
    return f"{head}Description-en: {short or f'{name.upper()} tool'}\n{lines}\n"


SHORT = "APT's front-end (C++)"
PACKAGES = (
    record("zip", BOB, "role::program, use::storing,\n works-with::archive")
    + record("apt", short=SHORT)
    + record("untagged", tags=None)
    + record("zip", ANN, "role::data")
    + record("bat", tags="use::checking")
    + record("inline", md5=False, short="short one\n Long  one;\n .\n  verbatim.")
    + record("ubuntu", "Ubuntu Developers <u@example.org>", **{"Original-Maintainer": BOB})
)
TRANSLATIONS = (
    translation("apt", "Naïve e-mail's 1.5%.\n\nMore <b>", SHORT)
    + translation("bat", "cats and bats")
    + translation("zip", "zip, zip")
    + translation("ubuntu", "the circle")
    + translation("absent", "nobody's")
)


def write(folder, packages=PACKAGES, translations=TRANSLATIONS):
    folder.mkdir(exist_ok=True)
    paths = [folder / "debian_Packages", folder / "debian_Translation-en"]
    for path, text in zip(paths, (packages, translations), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def line(out, *arguments):
    return ["debian_corpus", f"--out_dir={out}", *map(str, arguments)]


def run(out, *arguments):
    return debian_corpus.main(line(out, *arguments))


def rows(out, table):
    with lzma.open(out / "corpus.sqlite.xz") as packed:
        (out / "plain.sqlite").write_bytes(packed.read())
    with contextlib.closing(sqlite3.connect(out / "plain.sqlite")) as db:
        return db.execute(f"SELECT * FROM {table}").fetchall()


def test_examples_are_the_tagged_packages_by_name(tmp_path):
    examples = debian.read_examples(write(tmp_path))
    program, zipped = ["role::program"], ["role::program", "use::storing", "works-with::archive"]
    assert [(e.client, e.title[0], e.tags, " ".join(e.body)) for e in examples] == [
        (0, "apt's", program, "nave e-mail's 1 . 5 % . more < b >"),
        (0, "bat", ["use::checking"], "cats and bats"),
        (0, "short", program, "long one ; verbatim ."),
        (1, "ubuntu", program, "the circle"),
        (1, "zip", zipped, "zip , zip"),
    ]
    assert " ".join(examples[0].title) == "apt's front-end ( c + + )"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's a State-of-the-Art, (free) tool!", "it's a state-of-the-art , ( free ) tool !"),
        ("See https://a.org/x_y?q=1, or <ftp://b.c/d>.", "see <URL> , or < <URL> > ."),
        ("vb.net c# 3/4\n\ttab  ", "vb . net c # 3 / 4 tab"),
        ("Ünï © x", "n x"),
        ("", ""),
    ],
)
def test_texts_are_treated_as_in_the_release(text, expected):
    assert " ".join(debian.tokens(text)) == expected


def test_the_files_have_the_release_s_form(tmp_path, capsys):
    out = tmp_path / "out"
    many = "".join(record(f"p{k:02d}", BOB, f"t::{k % 3}") for k in range(12))
    long = "".join(translation(f"p{k:02d}", f"word{k % 2} all") for k in range(12))
    assert run(out, *write(tmp_path, PACKAGES + many, TRANSLATIONS + long)) == 0
    said = capsys.readouterr().out
    # Client 0 is held out; Bob's are p00..p11, ubuntu and zip: the 5th and 10th are p04 and p09.
    assert "2 clients, 17 examples (train 12, test 2, heldout 3), 6 tags" in said
    assert "0 examples without a body, from 2 lists" in said
    assert sorted(path.name for path in out.iterdir()) == sorted(stackoverflow_files.OUTPUT)
    stored = rows(out, "examples")
    counts = {(split, client): count for client, split, count in rows(out, "client_metadata")}
    assert Counter(row[:2] for row in stored) == counts
    names = {"creation_date", "score", "tags", "title", "tokens", "type"}
    decoded = [decode_example(row[2], names) for row in stored]
    assert all(set(features) == names for features in decoded)
    tested = [f["title"][0] for f, row in zip(decoded, stored, strict=True) if row[0] == "test"]
    assert tested == [b"p04 tool", b"p09 tool"]
    (zipped,) = [f for f in decoded if f["title"] == [b"zip tool"]]
    assert zipped["tags"] == [b"role::program|use::storing|works-with::archive"]
    assert zipped["tokens"] == [b"zip , zip"] and zipped["score"] == [0]
    words = [",", "all", "circle", "the", "word0", "word1", "zip"]
    assert (out / "word_count").read_text() == "".join(f"{word} 1\n" for word in words)
    tags = ["role::program", "t::0", "t::1", "t::2", "use::storing", "works-with::archive"]
    assert json.loads((out / "tag_count").read_text()) == dict.fromkeys(tags, 1)


def test_the_reader_reads_it(tmp_path):
    packages = translations = ""
    for client, k in itertools.product(range(1, 13), range(5)):
        name, tag = f"p{client:02d}{k}", "common::tag" if k else "rare::tag"
        packages += record(name, f"m{client}", tag)
        translations += translation(name, f"shared own{client}")
    assert run(tmp_path / "out", *write(tmp_path, packages, translations)) == 0
    limits = {"vocabulary": 11, "num_tags": 2, "max_words": 5, "cache_dir": tmp_path / "cache"}
    train, test, counts = load_stackoverflow(tmp_path / "out", **limits)
    # m1 and m11 are the clients 0 and 10, held out; 10 of 12 are left, "shared" is the first word.
    assert counts["clients"] == 10
    assert np.bincount(train["client"]).tolist() == [4] * 10
    assert len(test["x"]) == 10 and sorted(test["client"]) == list(range(10))
    # The title's two words are not counted, as in the release: bodies make the vocabulary.
    assert (train["x"][:, :3] == [-2, -2, 0]).all() and (train["x"][:, 4] == -1).all()
    assert (np.sort(np.unique(train["x"][:, 3])) == np.arange(1, 11)).all()
    # Ten clients use either tag: of equals the first in the alphabet is 0.
    assert train["y"].reshape(10, 4).tolist() == [[1, 0, 0, 0]] * 10


def test_the_same_lists_give_the_same_bytes(tmp_path):
    files = write(tmp_path)
    zipped, packed = tmp_path / "debian_Packages.gz", tmp_path / "debian_Translation-en.xz"
    zipped.write_bytes(gzip.compress(files[0].read_bytes()))
    packed.write_bytes(lzma.compress(files[1].read_bytes()))
    a, b = tmp_path / "a", tmp_path / "b"
    assert [run(a, *files), run(b, packed, zipped)] == [0, 0]
    assert all((a / n).read_bytes() == (b / n).read_bytes() for n in stackoverflow_files.OUTPUT)


_HELPED = shutil.which("lz4") and Path(apt_lists._APT_HELPER).exists()


@pytest.mark.skipif(not _HELPED, reason="needs lz4 and apt-helper")
def test_lists_that_apt_has_compressed(tmp_path, capsys):
    files = write(tmp_path)
    packed = files[0].with_name("debian_Packages.lz4")
    apt_lists.subprocess.run(["lz4", "-q", str(files[0]), str(packed)], check=True)
    assert debian.read_examples([packed, files[1]]) == debian.read_examples(files)
    packed.write_bytes(packed.read_bytes()[:-30])
    assert run(tmp_path / "out", packed) == 2
    assert f"{packed}: " in capsys.readouterr().err


def test_the_machine_s_own_lists_are_the_default(tmp_path, monkeypatch, capsys, refuses):
    lists = write(tmp_path / "lists")[0].parent
    for other in ("debian_Translation-de", "debian_Sources", "debian_InRelease"):
        (lists / other).write_text("x")
    monkeypatch.setattr(apt_lists, "LISTS", lists)
    assert run(tmp_path / "out") == 0
    assert "5 examples" in capsys.readouterr().out
    (lists / "debian_Translation-en").unlink()
    message = f"{lists}: expected at least one Translation-en file (or --fetch), found none"
    refuses(message, debian_corpus.main, *line(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


_NO_TAGS = "lists: expected packages with the field Tag..., found none"
_TAG = "package 'a': expected names and commas as Tag, found "


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        ("", _NO_TAGS),
        (record("a", tags=None), _NO_TAGS),
        (record("a", tags="{b,c}"), _TAG + "'{b,c}'"),
        (record("a", tags="b::c,"), _TAG + "'b::c,'"),
        (record("a", maintainer=""), "package 'a': expected a field Maintainer, found none"),
        (record("a")[:-3], "{}: line 6: expected a whole line, found no newline"),
        (record("a") + " more\n", "{}: line 8: expected FIELD: TEXT, found ' more\\n'"),
        (record("a") + "nonsense\n", "{}: line 8: expected FIELD: TEXT, found 'nonsense\\n'"),
        (record("b"), "lists: expected long descriptions ..., found none"),
    ],
)
def test_lists_that_are_no_lists_are_refused(tmp_path, refuses, packages, message):
    files = write(tmp_path, packages, translation("a", "text"))
    message = message.replace("{}", str(files[0]))
    refuses(message, debian_corpus.main, *line(tmp_path / "out", *files))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [("none", None), ("cut.gz", gzip.compress(b"a: b", mtime=0)[:-9]), ("latin", b"a: \xff\n")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, refuses, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    refuses(f"...{path}...", debian_corpus.main, *line(tmp_path / "out", path))


def test_a_suite_and_a_folder_that_cannot_be_used_are_refused(tmp_path, refuses):
    suite = "--fetch: expected a Debian suite such as ..., found 'a b'"
    refuses(suite, debian_corpus.main, *line(tmp_path / "out", "--fetch=a b"))
    (tmp_path / "tag_count").write_text("mine")
    kept = "--out_dir: expected a folder without earlier output, found tag_count"
    refuses(kept, debian_corpus.main, *line(tmp_path, *write(tmp_path)))
    assert (tmp_path / "tag_count").read_text() == "mine"


@pytest.mark.skipif(not (SHARED.is_dir() and LISTS), reason=f"needs {SHARED} and apt's lists")
def test_this_machine_s_lists_give_about_the_known_corpus(monkeypatch):
    # The known corpus leaves out what security updates have replaced, which are untagged.
    monkeypatch.setattr(debian, "tokens", lambda text: ["word"])
    examples = debian.read_examples(LISTS)
    assert len(examples) == pytest.approx(29_770, rel=0.03)
    assert len({e.client for e in examples}) == pytest.approx(1_810, rel=0.03)
    counts = json.loads((SHARED / "tag_count").read_text())
    pairs = {(tag, e.client) for e in examples if e.split == "train" for tag in e.tags}
    users = Counter(tag for tag, _ in pairs)
    assert len(users) == pytest.approx(len(counts), rel=0.03)
    common = sorted(counts, key=lambda tag: -counts[tag])[:50]
    assert [users[tag] for tag in common] == pytest.approx([counts[t] for t in common], rel=0.15)
