"""The reader of tf.train.Example messages."""

import contextlib

import numpy as np
import pytest
from corpus import entry, example, feature, field
from hypothesis import given
from hypothesis import strategies as st

from ccfl_jax.data.protos import decode_example

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
