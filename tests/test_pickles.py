"""Pickles: plain data is read as it was, and nothing else, whatever it would run or ask for."""

import os
import pickletools
import struct
from io import BytesIO
from pickle import dumps

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfl_jax import pickles

DEVICE = {"duration": 5, "inactive": [4, 9], "finish_time": 10.5, "active": [1, 7], "model": "a"}


def refusal(data):
    """What is said of such bytes, in one line."""
    with pytest.raises(ValueError) as refused:
        pickles.read_plain(data)
    text = str(refused.value)
    assert text.startswith("pickle: found ") and "\n" not in text and len(text) < 1000
    assert ", legal: dicts, lists, strings and numbers, as Python writes them in " in text
    return text.removeprefix("pickle: found ")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.text(), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), plain), st.integers(2, 5))
def test_plain_data_is_read_as_it_was(value, protocol):
    whole = {"a": [0.5] * 99, "b": value}  # a file is not of empty lists alone
    assert repr(pickles.read_plain(dumps(whole, protocol))) == repr(whole)  # a bool stays one


class Harm:
    def __init__(self, function, *args):
        self.reduced = function, args

    def __reduce__(self):
        return self.reduced


def harmful(marker):
    """Pickles that would run something, or reach for a name or an object outside of them."""
    run = f"open({os.fspath(marker)!r}, 'w')"
    objects = [Harm(os.system, f"touch {marker}"), Harm(eval, run), Harm(getattr, "", "join"), Harm]
    objects += [
        np.float64(1.0),
        np.arange(3),
        {1, 2},
        complex(1, 2),
        b"bytes",
        bytearray(3),
        (1, 2),
    ]
    for thing in objects:
        for value in (thing, {"a": thing}, {"a": {**DEVICE, "active": [thing]}}):
            yield from (dumps(value, protocol) for protocol in range(6))
    yield from (
        f"cos\nsystem\n(S'touch {marker}'\ntR.".encode(),
        f"(S'touch {marker}'\nios\nsystem\n.".encode(),
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"ccopyreg\n_reconstructor\n.",
        b"\x80\x02}Q.", b"Pid\n.", b"\x80\x02\x82\x01.", b"\x80\x02\x83\x01\x00.",
        b"\x80\x02\x84\x01\x00\x00\x00.", b"\x80\x05\x97.", b"\x80\x02}}b.", b"\x80\x02]\x81.",
    )  # fmt: skip


def test_what_would_run_something_is_refused(tmp_path):
    marker = tmp_path / "marker"
    said = [refusal(data) for data in harmful(marker)]
    assert len(said) > 200 and not marker.exists()


def test_behind_the_opcodes_nothing_is_looked_up_either(tmp_path):
    """The unpickler on its own: names and objects from outside are refused by it as well."""
    for data in harmful(tmp_path / "marker"):
        names = {op.name for op, _, _ in pickletools.genops(data)}
        if names & {"GLOBAL", "STACK_GLOBAL", "INST", "PERSID", "BINPERSID"}:
            with pytest.raises(pickles.UnpicklingError, match="^it names "):
                pickles._PlainUnpickler(BytesIO(data)).load()
    assert not (tmp_path / "marker").exists()


def huge():
    """A few bytes that ask for far more memory, or nest without end."""
    widths = {b"\x8d": "<Q", b"\x8e": "<Q", b"\x96": "<Q", b"B": "<I", b"X": "<I", b"\x8b": "<i"}
    for code, width in {**widths, b"T": "<i"}.items():
        yield b"\x80\x05" + code + struct.pack(width, 2 ** (8 * struct.calcsize(width) - 1) - 1)
        yield b"\x80\x05" + code + struct.pack(width, 10**8) + b"a."
    yield b"\x80\x05\x95" + struct.pack("<Q", 2**63 - 1) + b"}."
    yield b"\x80\x02}p4294967295\n."
    yield b"\x80\x02" + b"(" * 100_000 + b"."
    yield b"\x80\x02" + b"(l" * 10_000 + b"."
    yield b"\x80\x02" + b"]q\x00" + b"h\x00a" * 3 + b"]h\x00s."
    yield dumps({1: DEVICE}) + b"N."


def test_what_asks_for_too_much_is_refused():
    for data in huge():
        refusal(data)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\x80\x02}r\xff\xff\xff\xff.", "memo 4294967295 after 0 at byte 3"),
        (b"\x80\x02}q\x00]q\x02.", "memo 2 after 1 at byte 6"),
        (b"\x80\x02" + b"]" * 900 + b"a" * 899 + b".", "900 dicts and lists in 1802 bytes"),
        (b"\x80\x02" + b"}" * 900 + b".", "900 dicts and lists in 903 bytes"),
        (b"\x80\x02}.N", "its end at byte 4 of 5"),
    ],
)
def test_what_could_take_memory_is_refused_before_it_is_loaded(data, found):
    assert refusal(data).startswith(f"{found}, legal: ")
