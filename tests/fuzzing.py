"""Readers of files and parsers of words, fed with damaged, hostile and random input.

What holds for any input: a result that keeps the reader's own promises, or an error that it
documents, ValueError or OSError, in one line that names the file; no other error, no hang, no
memory beyond a bound, and nothing written. Where a damaged byte is a value's and not the form's,
the result is another legal one, and that is no fault.

The suite feeds a fixed set of inputs, a twentieth of what the slow tests do. Those, with N times
as many and others each time:

    CCFL_FUZZ=N python -m pytest -n 2 -m slow tests/faults/test_fuzz*.py
"""

import contextlib
import dataclasses
import json
import math
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.config.run_flags import RUN

TIMES = int(os.environ.get("CCFL_FUZZ", "1"))
# What a fuzz test is parametrised with: the share of its examples that it makes.
SHARES = [pytest.param(0.05, id="short"), pytest.param(TIMES, id="long", marks=pytest.mark.slow)]
MEMORY = 512 * 2**20
SECONDS = 60


def feed(check, examples, share, cases):
    """Calls `check` with a share of so many examples, drawn from `cases`."""
    own = {"max_examples": math.ceil(examples * share), "derandomize": share <= 1}
    how = settings(**own, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    how(given(cases)(check))()


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
        examples: inputs of the long test.
    """

    files: dict[str, bytes]
    read: Callable[[Path], None]
    pack: dict[str, Callable[[bytes], bytes]] | None = None
    named: str = "file"
    examples: int = 500

    def write(self, folder, name, content):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((self.pack or {}).get(name, bytes)(content))


def written(write):
    """The files that `write` puts in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def legal_config(config):
    for field in dataclasses.fields(config):
        value, flag = getattr(config, field.name), RUN[field.name]
        assert value is None or flag.domain.holds(value)


# How files are damaged.

NUMBERS = [0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
TEXT = st.text(max_size=5)
LEAF = st.one_of(
    st.none(), st.booleans(), st.floats(), TEXT, st.integers(-(10**400), 10**400),
    st.sampled_from(["a\nb", "\x1b[2J", "../x", "round", "finished", "nan", "9" * 5000, *NUMBERS]),
)  # fmt: skip
JSON = st.recursive(
    LEAF, lambda x: st.lists(x, max_size=3) | st.dictionaries(TEXT, x, max_size=3), max_leaves=4
)
# Strategies that are drawn from often are made once: that halves the time.
PLACE, COUNT = st.sampled_from(["any", "head", "some"]), st.sampled_from([1, 1, 1, 2, 4])
LENGTH, TIMES_OVER = st.sampled_from([1, 2, 4, 16, 100]), st.sampled_from([2, 3, 500])
SHORT, LONG_NOISE, BIT = st.binary(max_size=8), st.binary(max_size=200), st.integers(0, 7)
NUMBER = st.builds(
    lambda number, size, order: (number % 2 ** (8 * size)).to_bytes(size, order),
    st.sampled_from(NUMBERS), st.sampled_from([1, 2, 4, 8]), st.sampled_from(["little", "big"]),
)  # fmt: skip


def swapped(part, after, start):
    return after[start : start + len(part)] + after[:start] + part + after[start + len(part) :]


# What stands instead of `a + b + c` once its part `b` is edited.
EDITS = {
    "cut": lambda draw, a, b, c: a,
    "flip": lambda draw, a, b, c: a + bytes(x ^ 1 << draw(BIT) for x in b[:1]) + b[1:] + c,
    "number": lambda draw, a, b, c: a + (new := draw(NUMBER)) + (b + c)[len(new) :],
    "insert": lambda draw, a, b, c: a + draw(SHORT) + b + c,
    "remove": lambda draw, a, b, c: a + c,
    "zero": lambda draw, a, b, c: a + bytes(len(b)) + c,
    "repeat": lambda draw, a, b, c: a + b * draw(TIMES_OVER) + c,
    "swap": lambda draw, a, b, c: a + swapped(b, c, draw(st.integers(0, len(c)))),
    "noise": lambda draw, a, b, c: a + draw(LONG_NOISE),
}
EDIT = st.sampled_from([*EDITS.values()])


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
        data = draw(EDIT)(draw, data[:at], data[at:to], data[to:])
    return data


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
            parent[draw(TEXT | st.sampled_from(["a\nb", "\x1b"]))] = draw(JSON)
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


def check_reader(reader, folder, share):
    """Reads the legal files, and then many with damage in one of them."""
    for file, data in reader.files.items():
        reader.write(folder, file, data)
    reader.read(folder)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    files = sorted(reader.files, key=lambda file: len(reader.files[file]))
    files = st.sampled_from([*files, *[files[-1]] * len(files)])
    cases = files.flatmap(lambda file: st.tuples(st.just(file), damage(reader.files[file])))
    feed(lambda case: attempt(reader, folder, *case), reader.examples, share, cases)
