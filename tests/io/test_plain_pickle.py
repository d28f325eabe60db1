"""Pickles: plain data is read as it was, and nothing else, whatever it would run or ask for."""

import os
import struct
from pickle import dumps  # noqa: S403, which only writes

import numpy as np
import pytest
from fuzzing import bounded
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

from ccfl_jax.io.plain_pickle import read_plain

DEVICE = {"duration": 5, "inactive": [4, 9], "finish_time": 10.5, "active": [1, 7], "model": "a"}


def refusal(data):
    """What is found in such bytes, as the one line says."""
    expected = "pickle: expected dicts, lists, strings and numbers, found "
    with bounded():
        text = refused(f"{expected}...", read_plain, data)
    assert len(text) < 1000
    return text.removeprefix(expected)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.text(), inner),
    max_leaves=12,
)


@given(plain, st.integers(0, 5))
def test_plain_data_is_read_as_it_was(value, protocol):
    assert repr(read_plain(dumps(value, protocol))) == repr(value)  # a bool stays one


def test_a_part_in_several_places_is_looked_at_once():
    """Ten of ten, thirty deep, would be 10^30 to look at; a list in itself has no end."""
    value = DEVICE
    for _ in range(30):
        value = [value] * 10
    value.append(value)
    with bounded():
        found = read_plain(dumps(value))
    assert found[0] is found[9] and found[10] is found


class Harm:
    def __init__(self, function, *args):
        self.reduced = function, args

    def __reduce__(self):
        return self.reduced


OTHERS = [np.float64(1.0), np.arange(3), {1, 2}, complex(1, 2), b"bytes", bytearray(3), (1, 2)]


def harmful(marker):
    """Pickles that would run something, or hold or name an object of another kind."""
    run = f"open({os.fspath(marker)!r}, 'w')"
    objects = [Harm(os.system, f"touch {marker}"), Harm(eval, run), Harm(getattr, "", "join"), Harm]
    for thing in (*objects, *OTHERS):
        for value in (thing, {"a": thing}, {"a": {**DEVICE, "active": [thing]}}):
            yield from (dumps(value, protocol) for protocol in range(6))
    touch = f"'touch {marker}'\n".encode()
    yield from (
        b"cos\nsystem\n(S" + touch + b"tR.", b"(S" + touch + b"ios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.", b"ccopyreg\n_reconstructor\n.",
        b"\x80\x02}Q.", b"Pid\n.", b"\x80\x02\x82\x01.", b"\x80\x02\x83\x01\x00.",
        b"\x80\x02\x84\x01\x00\x00\x00.", b"\x80\x05\x97.", b"\x80\x02}}b.", b"\x80\x02]\x81.",
    )  # fmt: skip


def test_what_would_run_something_is_refused(tmp_path):
    marker = tmp_path / "marker"
    said = [refusal(data) for data in harmful(marker)]
    assert len(said) > 200 and not marker.exists()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "Ran out of input"),
        (b"text", "could not find MARK"),
        (dumps(os.system), "the name posix.system"),
        (b"\x80\x02}Q.", "a name of an object outside of it"),
        (dumps({"a": [(1, 2)]}), "a tuple"),
    ],
)
def test_what_is_said(data, found):
    assert refusal(data) == found


def test_cut_pickles_are_refused():
    for protocol in range(6):
        data = dumps({1: DEVICE}, protocol)
        for end in range(len(data)):
            refusal(data[:end])


def huge():
    """A few bytes that ask for far more memory, or nest without end."""
    widths = {b"\x8d": "<Q", b"\x8e": "<Q", b"\x96": "<Q", b"B": "<I", b"X": "<I", b"\x8b": "<i"}
    for code, width in {**widths, b"T": "<i"}.items():
        yield b"\x80\x05" + code + struct.pack(width, 2 ** (8 * struct.calcsize(width) - 1) - 1)
        yield b"\x80\x05" + code + struct.pack(width, 10**8) + b"a."
    yield b"\x80\x05\x95" + struct.pack("<Q", 2**63 - 1) + b"}."
    yield b"\x80\x02}r\xff\xff\xff\xff."
    yield b"\x80\x02" + b"(" * 100_000 + b"."


def test_what_asks_for_too_much_is_refused():
    for data in huge():
        refusal(data)
