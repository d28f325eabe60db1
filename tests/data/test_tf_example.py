"""tf.train.Example messages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

from ccfl_jax.data.readers.tf_example import decode_example, encode_example

FLOATS = st.floats(width=32, allow_nan=False)
KINDS = st.binary(max_size=200), FLOATS, st.integers(-(2**63), 2**63 - 1)
LISTS = st.one_of([st.lists(kind, min_size=1, max_size=4) for kind in KINDS])
FEATURES = st.dictionaries(st.text(max_size=5), LISTS, max_size=4)


def field(number, content):
    """A length-delimited field of fewer than 128 bytes: its number and wire type 2, its length."""
    return bytes([number << 3 | 2, len(content)]) + content


def entry(name, feature):
    """An Example with one feature: Example, Features, the map's entry, its key and its value."""
    return field(1, field(1, field(1, name) + field(2, feature)))


# Int64List {value: 150}, 150 = 0x96 0x01 in base 128: in a field of its own (wire type 0), packed.
BARE = entry(b"a", field(3, b"\x08\x96\x01"))
PACKED = entry(b"a", field(3, field(1, b"\x96\x01")))
HALF = np.float32(0.5).tobytes()


@pytest.mark.parametrize(("message", "features"), [
    (BARE, {"a": [150]}),
    (PACKED, {"a": [150]}),
    (entry(b"a", field(2, field(1, HALF * 2))), {"a": [0.5, 0.5]}),
    (entry(b"a", field(1, field(1, b"x") + field(1, b""))), {"a": [b"x", b""]}),
    (entry(b"a", b""), {"a": []}),
    (entry(b"b", b"") + BARE, {"a": [150]}),
    (BARE + field(9, b"unknown"), {"a": [150]}),
    (b"", {}),
])  # fmt: skip
def test_messages_written_out_by_hand(message, features):
    assert decode_example(message, ["a", "c"]) == features


def test_it_is_written_packed():
    assert encode_example({"a": [150]}) == PACKED


@given(FEATURES, st.lists(st.text(max_size=5), max_size=3))
def test_what_was_encoded_comes_back_where_it_is_asked_for(features, others):
    wanted = [*list(features)[::2], *others]
    message = encode_example(features)
    kept = {name: values for name, values in features.items() if name in wanted}
    assert decode_example(message, wanted) == kept
    assert encode_example(dict(reversed(features.items()))) == message


@given(FEATURES.filter(bool))
def test_every_cut_is_refused_in_a_line(features):
    whole = encode_example(features)
    message = "example: expected a serialised tf.train.Example, found ..."
    for end in range(1, len(whole)):
        refused(message, decode_example, whole[:end], features)
