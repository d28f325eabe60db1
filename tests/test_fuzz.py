"""Every reader of files and every parser of words, fed with damaged, hostile and random input.

What holds for any input: a result that keeps the reader's own promises, or an error that it
documents, ValueError or OSError, in one line that names the file; no other error, no hang, no
memory beyond a bound, and nothing written. Where a damaged byte is a value's and not the form's,
the result is another legal one, and that is no fault.

CI has a fixed set of inputs. A longer run, of N times as many and of others each time:

    CCFL_FUZZ=20 python -m pytest -n 2 tests/test_fuzz.py

A new reader is a line in READERS: its valid files, and a function of their folder that reads them
and asserts what it promises.
"""

import contextlib
import dataclasses
import gzip
import io
import json
import lzma
import os
import resource
import shutil
import signal
import sqlite3
import string
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import corpus
import numpy as np
import pytest
import test_cifar
import test_sources
from absl import flags as absl_flags
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ccfl_jax import Schedule, config_file, record
from ccfl_jax import data as fd
from ccfl_jax.data.protos import decode_example
from experiments import debian_corpus, flags, paper, plot, records, reproduce, sweep_flags, table

TIMES = int(os.environ.get("CCFL_FUZZ", "1"))
MEMORY = 512 * 2**20
SECONDS = 60


def fuzz(examples):
    return settings(
        max_examples=examples * TIMES,
        deadline=None,
        derandomize=TIMES == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def bounded():
    """Inside it too much memory is a MemoryError and too much time an AssertionError."""

    def too_long(*_):
        raise AssertionError(f"no answer in {SECONDS} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


class Reader(NamedTuple):
    """Something that reads files.

    Attributes:
        files: name -> the bytes that are damaged, of files that are legal together.
        read: reads them in a folder, and asserts what is promised of the result.
        pack: name -> what makes the file of those bytes, where they are not all of it.
        named: what an error names: the file, the folder or nothing.
        examples: inputs in CI.
    """

    files: dict[str, bytes]
    read: Callable[[Path], None]
    pack: dict[str, Callable[[bytes], bytes]] | None = None
    named: str = "file"
    examples: int = 500

    def write(self, folder, name, content):
        (folder / name).write_bytes((self.pack or {}).get(name, bytes)(content))


# What is legal, and what is promised.


def written(write):
    """The files that `write` puts in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def read_idx(folder):
    (path,) = folder.iterdir()
    array = fd.read_idx(path)
    assert array.dtype == np.uint8 and array.size and 1 <= array.ndim <= 8


def read_images(name, shape):
    def read(folder):
        for part in fd.load_dataset(name, folder):
            assert part["x"].dtype == np.uint8 and part["x"].shape[1:] == shape
            assert part["y"].dtype == np.int32 and part["y"].shape == part["x"].shape[:1]
            assert 0 <= part["y"].min() <= part["y"].max() < fd.NUM_CLASSES[name]

    return read


def read_stackoverflow(**arguments):
    def read(folder):
        train, test, counts = corpus.load(folder, **arguments)
        for part in (train, test):
            assert len({len(array) for array in part.values()}) == 1
            assert all(array.dtype == np.int32 for array in part.values())
            assert part["x"].shape[1] == corpus.SMALL["max_words"] and part["y"].shape[1] >= 1
            assert -2 <= part["x"].min() <= part["x"].max() < corpus.SMALL["vocabulary"]
            assert -1 <= part["y"].min() <= part["y"].max() < corpus.SMALL["num_tags"]
        assert (np.diff(train["client"]) >= 0).all() and (np.diff(train["client"]) <= 1).all()
        assert train["client"][0] == 0 and test["client"].max() <= train["client"].max()
        assert counts["clients"] >= counts["too_small"] >= 0

    return read


def database_of(message):
    """The corpus with `message` as one of its examples."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(CORPUS["corpus.sqlite"])
        with db:
            db.execute(
                "UPDATE examples SET serialized_example_proto = ? WHERE rowid = 1", (message,)
            )
        return db.serialize()


def behind_header(pages):
    """A database of these bytes behind a header that is right about their number."""
    head = bytearray(CORPUS["corpus.sqlite"][:100])
    size = int.from_bytes(head[16:18], "big")
    count = max(1, -(-(len(pages) + 100) // size))
    head[28:32] = count.to_bytes(4, "big")
    return (bytes(head) + pages).ljust(count * size, b"\0")


def read_message(folder):
    for name, values in decode_example((folder / "message").read_bytes()).items():
        assert isinstance(name, str)
        if isinstance(values, list):
            assert all(isinstance(value, bytes) for value in values)
        else:
            assert values.ndim == 1 and values.dtype in (np.float32, np.int64)


SCHEDULE = Schedule(
    np.array([[0, 1], [2, 2], [1, 0]], np.int32),
    np.array([[0, 0], [1, 0], [2, 1]], np.int32),
    np.array([[2, 4], [1, 3], [1, 1]], np.int32),
    np.array([[True, True], [True, False], [False, True]]),
    np.array([0.5, 1.0, 4.0]),
)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped_beside(name):
    """Puts a damaged array into an otherwise legal file."""

    def pack(content):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
            for field in ("client", "staleness", "work", "present", "time"):
                whole = npy(getattr(SCHEDULE, field))
                made.writestr(f"{field}.npy", content if field == name else whole)
        return file.getvalue()

    return pack


def read_schedule(folder):
    found = Schedule.load(folder / "schedule.npz")
    dtypes = (np.int32, np.int32, np.int32, np.bool_)
    for array, dtype in zip(found, dtypes, strict=False):
        assert array.dtype == dtype and array.shape == found.client.shape
        assert array.size == 0 or 0 <= array.min() <= array.max()
    assert found.present.sum() == np.count_nonzero(found.present)
    if found.time is not None:
        assert found.time.dtype == np.float64 and found.time.shape == found.client.shape[:1]
    found.check()


CONFIG = flags.parse(["x", "--server_lr=0.5"])
ROWS = [
    {
        "round": 10 * k,
        "train_loss": 0.25 if k else None,
        "train_accuracy": 0.5 if k else None,
        "test_loss": 0.75,
        "test_accuracy": 0.5,
        "rejected_clients": {"3": 1},
        "client_updates": 50 * k,
        "samples": 1000 * k,
        "seconds": 2.0 * k,
        "diverged": False,
    }
    for k in range(3)
]
RUN = {
    config_file.CONFIG: json.dumps(
        {**dataclasses.asdict(CONFIG), "environment": {"devices": 2, "device": "cpu"}}
    ).encode(),
    record.METRICS: b"".join(json.dumps(row).encode() + b"\n" for row in ROWS),
}
TRIAL = json.dumps(records.made("server_lr=0.5", CONFIG, ROWS)).encode()


def read_rows(folder):
    for row in record.read_rows(folder):
        assert isinstance(row, dict) and type(row["round"]) is int


def check_config(folder):
    config_file.check(folder, dataclasses.asdict(CONFIG), ("out_dir",))


def read_trial(folder):
    path = folder / records.TRIALS / "server_lr=0.5.json"
    path.parent.mkdir()
    (folder / "server_lr=0.5.json").rename(path)
    try:
        for name, one in records.read(folder, {"server_lr=0.5": CONFIG}).items():
            assert name == one["name"] and one["status"] in ("finished", "diverged")
            # What a sweep and a reproduction do with it.
            assert records.line(one) and records.choices([one]) and records.finals([one])
    finally:
        path.rename(folder / path.name)
        path.parent.rmdir()


def read_table(folder):
    cells = table.row(folder)
    assert len(cells) == 7 and all(isinstance(cell, str) for cell in cells)


def read_curves(folder):
    ((rows,),) = plot._of_run(folder, "seconds").values()
    for name in ("seconds", "round", "train_accuracy", "test_accuracy"):
        if name in rows[0]:
            assert np.isfinite(plot._column(rows, name)[~np.isnan(plot._column(rows, name))]).all()


def draw_curves(folder):
    ((rows,),) = plot._of_run(folder, "seconds").values()
    plot.draw_methods({"a": [rows]}, [folder / "drawn.png"], "", "seconds")


def read_flag_file(folder):
    legal_config(flags.parse(["x", f"--flagfile={folder / 'a.flags'}"]))


def legal_config(config):
    for field in dataclasses.fields(config):
        value, flag = getattr(config, field.name), flags.FLAGS[field.name]
        assert value is None or flag.domain.holds(value)


def read_presets(folder):
    before = paper._FILE
    paper._FILE = folder / "paper.toml"
    try:
        for name in paper.names():
            if name == "fig3_beta":
                paper.trial(paper.preset(name, {}), {"server": "cc_fedadam", "server_lr": 1.0})
    finally:
        paper._FILE = before


PACKAGES = b"""Package: a
Maintainer: A <a@b>
Tag: role::x, use::y
Description-md5: 1
Description: short

Package: b
Maintainer: B <a@b>
Tag: role::x
Description: short b
 long text of b
 .
 more
"""
LONG = b"Package: a\nDescription-md5: 1\nDescription-en: short\n long text\n .\n end\n\n"


def read_lists(folder):
    for example in debian_corpus.read_examples(sorted(folder.iterdir())):
        assert example.split in ("train", "test", "heldout") and example.client >= 0
        assert all(isinstance(word, str) for word in example.title + example.body + example.tags)


IDX = test_sources.idx_bytes(np.arange(24).reshape(2, 3, 4))
FASHION = written(lambda folder: test_sources.write_fashion(folder))
CORPUS = written(lambda folder: corpus.write(folder))
PACKED = {**CORPUS, "corpus.sqlite.xz": lzma.compress(CORPUS["corpus.sqlite"])}
del PACKED["corpus.sqlite"]
INSIDE = {**PACKED, "corpus.sqlite.xz": CORPUS["corpus.sqlite"]}
MESSAGE = corpus.post("a loop", "in the loop", "java|rare")
XZ = {"corpus.sqlite.xz": lzma.compress}
LZMA = {"corpus.sqlite.xz": lambda data: lzma.compress(data, lzma.FORMAT_ALONE)}
NPZ = written(lambda folder: SCHEDULE.save(folder / "schedule.npz"))
PRESETS = (Path(paper.__file__).parent / "presets").resolve()

READERS = {
    "IDX": Reader({"numbers.idx": IDX}, read_idx),
    "IDX packed": Reader({"numbers.gz": gzip.compress(IDX, mtime=0)}, read_idx),
    "IDX in gzip": Reader({"numbers.gz": IDX}, read_idx, {"numbers.gz": gzip.compress}),
    "Fashion-MNIST": Reader(FASHION, read_images("fashion_mnist", (28, 28, 1))),
    **{
        name: Reader(
            written(lambda folder, name=name: test_cifar.write(folder, name, 1)),
            read_images(name, (32, 32, 3)),
            examples=240,
        )
        for name in ("cifar10", "cifar100")
    },
    "Stack Overflow": Reader(CORPUS, read_stackoverflow(), examples=800),
    "Stack Overflow by index": Reader(CORPUS, read_stackoverflow(num_clients=1, max_test=1)),
    "Stack Overflow's pages": Reader(
        {**CORPUS, "corpus.sqlite": CORPUS["corpus.sqlite"][100:]},
        read_stackoverflow(),
        {"corpus.sqlite": behind_header},
        examples=800,
    ),
    "Stack Overflow packed": Reader(PACKED, read_stackoverflow()),
    "Stack Overflow in xz": Reader(INSIDE, read_stackoverflow(), XZ),
    "Stack Overflow in lzma": Reader(INSIDE, read_stackoverflow(), LZMA, examples=200),
    "example in SQLite": Reader(
        {**CORPUS, "corpus.sqlite": MESSAGE}, read_stackoverflow(), {"corpus.sqlite": database_of}
    ),
    "example": Reader({"message": MESSAGE}, read_message, named="nothing", examples=800),
    "schedule": Reader(NPZ, read_schedule, examples=800),
    **{
        f"schedule's {name}": Reader(
            {"schedule.npz": npy(getattr(SCHEDULE, name))},
            read_schedule,
            {"schedule.npz": zipped_beside(name)},
            examples=240,
        )
        for name in ("client", "present", "time")
    },
    "rows": Reader({record.METRICS: RUN[record.METRICS]}, read_rows),
    "settings": Reader({config_file.CONFIG: RUN[config_file.CONFIG]}, check_config, named="folder"),
    "trial": Reader({"server_lr=0.5.json": TRIAL}, read_trial, examples=800),
    "table": Reader(RUN, read_table),
    "curves": Reader({record.METRICS: RUN[record.METRICS]}, read_curves),
    "drawn curves": Reader({record.METRICS: RUN[record.METRICS]}, draw_curves, examples=20),
    "flag file": Reader(
        {"a.flags": (PRESETS / "digits.flags").read_bytes()}, read_flag_file, named="nothing"
    ),
    "presets": Reader(
        {"paper.toml": (PRESETS / "paper.toml").read_bytes()}, read_presets, named="nothing"
    ),
    "package lists": Reader(
        {"Packages": PACKAGES, "Translation-en": LONG}, read_lists, named="nothing"
    ),
}


# How files are damaged.

NUMBERS = [0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(NUMBERS)
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["a\nb", "\x1b[2J", "../x", "round", "finished", "nan", "9" * 5000]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


# Strategies that are drawn from often are made once: that halves the time.
EDITS = ["cut", "flip", "number", "insert", "remove", "zero", "repeat", "swap", "noise"]
EDIT, PLACE = st.sampled_from(EDITS), st.sampled_from(["any", "head", "some"])
COUNT, LENGTH = st.sampled_from([1, 1, 1, 2, 4]), st.sampled_from([1, 2, 4, 16, 100])
NUMBER, SIZE = st.sampled_from(NUMBERS), st.sampled_from([1, 2, 4, 8])
ORDER, TIMES_OVER = st.sampled_from(["little", "big"]), st.sampled_from([2, 3, 500])
SHORT, LONG_NOISE = st.binary(max_size=8), st.binary(max_size=200)


def place(draw, data):
    """Anywhere, near the beginning, where headers are, or at a byte that is no zero, as few are."""
    some = np.flatnonzero(np.frombuffer(data, np.uint8))
    kind = draw(PLACE)
    if kind == "some" and some.size:
        return int(some[draw(st.integers(0, some.size - 1))])
    return draw(st.integers(0, min(100, len(data)) if kind == "head" else len(data)))


@st.composite
def damaged(draw, data):
    """Up to four edits of `data`, one of which may put bytes of no form behind its beginning."""
    for _ in range(draw(COUNT)):
        at = place(draw, data)
        to = min(at + draw(LENGTH), len(data))
        data = edited(draw, data[:at], data[at:to], data[to:])
    return data


def edited(draw, before, part, after):
    """`before + part + after` with one edit of `part`."""
    kind = draw(EDIT)
    if kind == "cut":
        return before
    if kind == "noise":
        return before + draw(LONG_NOISE)
    if kind == "insert":
        return before + draw(SHORT) + part + after
    if kind == "remove":
        return before + after
    if kind == "zero":
        return before + bytes(len(part)) + after
    if kind == "repeat":
        return before + part * draw(TIMES_OVER) + after
    if kind == "number":
        number, size, order = draw(NUMBER), draw(SIZE), draw(ORDER)
        new = (number % 2 ** (8 * size)).to_bytes(size, order)
        return before + new + (part + after)[size:]
    if kind == "swap":
        start = draw(st.integers(0, len(after)))
        other, rest = after[start : start + len(part)], after[start + len(part) :]
        return before + other + after[:start] + part + rest
    bit = draw(st.integers(0, 7))
    return before + bytes(byte ^ 1 << bit for byte in part[:1]) + part[1:] + after


@st.composite
def rewritten(draw, data):
    """JSON, or lines of it, with values replaced, left out and added."""
    lines = data.decode().splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    tree = json.loads(lines[number])
    for _ in range(draw(st.integers(1, 2))):
        parent, key, inner = None, None, tree
        while isinstance(inner, dict | list) and inner and draw(st.integers(0, 6)):
            keys = list(inner) if isinstance(inner, dict) else range(len(inner))
            parent, key = inner, draw(st.sampled_from(keys))
            inner = parent[key]
        if parent is None:
            tree = draw(JSON)
        elif draw(st.booleans()):
            parent[key] = draw(JSON)
        elif draw(st.booleans()):
            del parent[key]
        elif isinstance(parent, dict):
            parent[draw(st.text(max_size=5) | st.sampled_from(["a\nb", "\x1b"]))] = draw(JSON)
        if not isinstance(tree, dict | list):
            break
    lines[number] = json.dumps(tree)
    return "\n".join(lines).encode() + b"\n"


def is_json(data):
    try:
        return all(isinstance(json.loads(line), dict) for line in data.splitlines())
    except ValueError:
        return False


def damage(data):
    return damaged(data) | rewritten(data) if is_json(data) else damaged(data)


def one_line(error):
    text = str(error)
    assert text and len(text.splitlines()) == 1 and len(text) < 20_000, repr(text)


def content(folder):
    """All that is in a folder, but for the whole databases in the cache."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    kept = [path for path in files if path.parent == folder / "cache" and path.suffix == ".sqlite"]
    return {path: path.read_bytes() for path in files if path not in kept}


def attempt(reader, folder, file, data):
    """Reads with `data` in one of the files, which is put back, and judges what comes of it."""
    reader.write(folder, file, data)
    before = content(folder)
    try:
        with bounded():
            reader.read(folder)
    except (ValueError, OSError) as error:
        one_line(error)
        places = {"file": [*reader.files], "folder": [str(folder)], "nothing": [""]}
        assert any(place in str(error) for place in places[reader.named]), str(error)
        # What a file says must not write to a terminal; words are one's own.
        assert reader.named == "nothing" or str(error).isprintable(), repr(str(error))
    finally:
        assert content(folder) == before
        shutil.rmtree(folder / "cache", ignore_errors=True)
        reader.write(folder, file, reader.files[file])


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused(tmp_path, name):
    reader = READERS[name]
    for file, data in reader.files.items():
        reader.write(tmp_path, file, data)
    reader.read(tmp_path)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    files = sorted(reader.files, key=lambda file: len(reader.files[file]))
    files = st.sampled_from([*files, *[files[-1]] * len(files)])

    @fuzz(reader.examples)
    @given(files.flatmap(lambda file: st.tuples(st.just(file), damage(reader.files[file]))))
    def check(case):
        attempt(reader, tmp_path, *case)

    check()


def complain(text):
    raise ValueError(text)


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda folder: {}["x"], KeyError),
        (lambda folder: bytes(2 * MEMORY), MemoryError),
        (lambda folder: [None for _ in iter(int, 1)], AssertionError),
        (lambda folder: complain("one.x: one line\nand another"), AssertionError),
        (lambda folder: complain("found nothing legal"), AssertionError),
        (lambda folder: complain("one.x: found \x1b[2J"), AssertionError),
        (lambda folder: complain(""), AssertionError),
        (lambda folder: (folder / "two.x").write_bytes(b"new"), AssertionError),
        (lambda folder: (folder / "one.x").write_bytes(b"new"), AssertionError),
    ],
)
def test_a_reader_that_does_otherwise_is_caught(tmp_path, monkeypatch, read, error):
    monkeypatch.setitem(globals(), "SECONDS", 1)
    with pytest.raises(error):
        attempt(Reader({"one.x": b"old"}, read), tmp_path, "one.x", b"other")


def test_a_reader_that_names_its_file_is_not(tmp_path):
    attempt(
        Reader({"one.x": b"old"}, lambda folder: complain("one.x: found 1")),
        tmp_path,
        "one.x",
        b"other",
    )
    assert (tmp_path / "one.x").read_bytes() == b"old"


# Words of a command line.

WORDS = """0 -1 1 2 0.5 1e400 1e-320 nan inf -inf 0x10 1_000 true false None , = - -- / ../../x % '
    cc_fedams cc_fedavg cc_fedsgd digits fashion_mnist stackoverflow synthetic mlp cnn natural iid
    dirichlet steps epochs none 4294967295 4294967296 2147483647 2147483648 0.1,1 1,1 auto a:1
    fig1_alpha3 fig3_beta fig9 coarse fine"""
VALUES = st.one_of(
    st.sampled_from(WORDS.split()),
    st.sampled_from(["", " ", "1 2", "a\nb", "\x00", "\ud800", "\x1b[2J", "\uff19", "9" * 5000]),
    st.text(max_size=6),
)


def plausible(name):
    """A flag as it may well be meant."""
    domain = flags.FLAGS[name].domain
    if domain.define is absl_flags.DEFINE_boolean:
        return st.sampled_from([f"--{name}", f"--no{name}"])
    own = {absl_flags.DEFINE_integer: "0 1 2 3 5", absl_flags.DEFINE_float: "0 0.1 0.5 1 2 1e-3"}
    values = own.get(domain.define, "a b/c").split()
    if domain.define is absl_flags.DEFINE_string and domain is not flags.PATH:
        values = domain.legal.split(", ")
    return st.sampled_from(values).map(lambda value: f"--{name}={value}")


def word(names):
    flag = st.sampled_from(sorted(names)) | st.text(string.ascii_letters + "_-", max_size=8)
    return st.one_of(
        st.builds("--{}={}".format, flag, VALUES),
        st.builds("{}{}".format, st.sampled_from(["--", "-", "--no", ""]), flag),
        VALUES,
    )


@st.composite
def words(draw, names, always):
    """A command line: first what it needs, then flags that may be meant, and sometimes others."""
    meant = st.sampled_from(sorted(flags.FLAGS)).flatmap(plausible)
    made = draw(st.lists(meant, max_size=4)) + draw(st.lists(word(names), max_size=1))
    return (always if draw(st.integers(0, 5)) else []) + draw(st.permutations(made))


@fuzz(1400)
@given(words(flags.FLAGS, ["--server_lr=1"]))
def test_any_words_are_a_config_or_refused(argv):
    try:
        with bounded():
            config = flags.parse(["x", *argv])
    except ValueError as error:
        one_line(error)
    else:
        legal_config(config)


def varied(name):
    pools = {"server": ["cc_fedams", "cc_fedadam"], "seed": ["1", "2", "3"]}
    values = st.sampled_from(pools.get(name, ["0.1", "0.2", "0.3"]))
    listed = st.lists(values, min_size=1, max_size=3, unique=True) | st.lists(VALUES, max_size=2)
    return listed.map(lambda values: f"{name}={','.join(values)}")


SWEEP = ["--server_lr=1", "--out_dir=x"]
NAMES = st.sampled_from(sweep_flags.VARIABLE)
VARY = st.lists(NAMES, max_size=3, unique=True).flatmap(
    lambda names: st.tuples(*map(varied, names)).map(" ".join)
)


@fuzz(400)
@given(VARY | VALUES, st.just(SWEEP) | words(flags.FLAGS, SWEEP))
def test_any_words_are_a_sweep_or_refused(vary, argv):
    try:
        with bounded():
            sweep = sweep_flags.parse_sweep(["x", f"--vary={vary}", *argv])
    except ValueError as error:
        one_line(error)
    else:
        assert sweep.trials and sweep.out_dir.strip()
        for name, config in sweep.trials.items():
            legal_config(config)
            assert records._path("x", name).parent == Path("x") / records.TRIALS


OF_REPRODUCE = ["rounds", "grid_rounds", "grid", "seeds", "normalise", "out_dir", "help"]


@fuzz(120)
@given(words([*OF_REPRODUCE, *flags.FLAGS], ["fig3_beta", "--grid=coarse"]))
def test_any_words_are_a_reproduction_or_refused(argv):
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said), bounded():
        patch.setattr(reproduce, "_run", lambda *_: 0)
        try:
            code = reproduce.main(["reproduce", *argv])
        except SystemExit as asked:  # --help
            assert asked.code == 0
            return
    assert code in (0, 2) and len(said.getvalue().splitlines()) == (1 if code else 0)
