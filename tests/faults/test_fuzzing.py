"""The fuzzing itself: it catches a reader that does what it must not."""

import fuzzing
import pytest
from fuzzing import MEMORY, Reader, attempt


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
    monkeypatch.setattr(fuzzing, "SECONDS", 1)
    with pytest.raises(error):
        attempt(Reader({"one.x": b"old"}, read), tmp_path, "one.x", b"other")


def test_a_reader_that_names_its_file_is_not(tmp_path):
    reader = Reader({"one.x": b"old"}, lambda folder: complain("one.x: found 1"))
    attempt(reader, tmp_path, "one.x", b"other")
    assert (tmp_path / "one.x").read_bytes() == b"old"
