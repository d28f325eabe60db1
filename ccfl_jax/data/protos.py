"""Reader of serialised tf.train.Example messages that needs neither TensorFlow nor protobuf."""

from collections.abc import Collection, Iterator

import numpy as np

_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_Value = list[bytes] | np.ndarray


def decode_example(message: bytes, names: Collection[str] | None = None) -> dict[str, _Value]:
    """Decodes a tf.train.Example, a map from names to lists of one kind each.

    The messages, in the notation of the Protocol Buffers language:

        Example { Features features = 1; }
        Features { map<string, Feature> feature = 1; }
        Feature { oneof { BytesList bytes_list = 1; FloatList float_list = 2;
                          Int64List int64_list = 3; } }
        BytesList, FloatList, Int64List { repeated bytes, float, int64 value = 1; }

    Numbers may be packed or not. As the format demands, unknown fields are skipped; of a name that
    occurs twice, and of two kinds in one feature, the later counts; two lists of one kind in a
    feature are joined. Groups, which the format has given up, are refused. The result is at most a
    fixed multiple of the message.

    Args:
        message: the serialised message.
        names: the features to decode, all by default; the values of others are skipped unread.

    Returns:
        name -> list of bytes, float32 array [n] or int64 array [n]; an empty list for a feature
        without a kind. A name that the message does not have is not there.

    Raises:
        ValueError: the message is cut short or is not of this form.
    """
    wanted = None if names is None else {name.encode() for name in names}
    found: dict[bytes, list[tuple[int, int]]] = {}
    for start, stop in _submessages(message, 0, len(message), 1):
        for entry in _submessages(message, start, stop, 1):
            name, value = _entry(message, *entry)
            if wanted is None or name in wanted:
                found[name] = value
    return {name.decode(): _feature(message, spans) for name, spans in found.items()}


def _entry(message: bytes, start: int, stop: int) -> tuple[bytes, list[tuple[int, int]]]:
    """The name of an entry of the map, and where its value stands."""
    name, value = b"", []
    for number, wire, at, end in _fields(message, start, stop):
        if wire == _DELIMITED and number == 1:
            name = message[at:end]
        elif wire == _DELIMITED and number == 2:
            value.append((at, end))
    return name, value


def _feature(message: bytes, spans: list[tuple[int, int]]) -> _Value:
    """The list of a feature whose message is the bytes of all `spans`."""
    kind, lists = None, []
    for start, stop in spans:
        for number, wire, at, end in _fields(message, start, stop):
            if wire != _DELIMITED or not _BYTES_LIST <= number <= _INT64_LIST:
                continue
            if number != kind:
                kind, lists = number, []
            lists.append((at, end))
    if kind == _FLOAT_LIST:
        return np.frombuffer(b"".join(_floats(message, lists)), "<f4").astype(np.float32)
    if kind == _INT64_LIST:
        return np.array(list(_integers(message, lists)), np.uint64).astype(np.int64)
    return [message[at:end] for span in lists for at, end in _submessages(message, *span, 1)]


def _floats(message: bytes, lists: list[tuple[int, int]]) -> Iterator[bytes]:
    for start, stop in lists:
        for number, wire, at, end in _fields(message, start, stop):
            if number == 1 and wire in (_DELIMITED, _FOUR_BYTES):
                if (end - at) % 4:
                    raise ValueError(f"packed floats of {end - at} bytes, no multiple of 4")
                yield message[at:end]


def _integers(message: bytes, lists: list[tuple[int, int]]) -> Iterator[int]:
    for start, stop in lists:
        for number, wire, at, end in _fields(message, start, stop):
            if number == 1 and wire in (_DELIMITED, _VARINT):
                while at < end:
                    value, at = _varint(message, at, end)
                    yield value


def _submessages(message: bytes, start: int, stop: int, number: int) -> Iterator[tuple[int, int]]:
    """Where the length-delimited fields of this number stand."""
    for found, wire, at, end in _fields(message, start, stop):
        if found == number and wire == _DELIMITED:
            yield at, end


def _fields(message: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type and the place of the content of every field in `message[start:stop]`."""
    at = start
    while at < stop:
        key, at = _varint(message, at, stop)
        number, wire = key >> 3, key & 7
        if wire == _DELIMITED:
            length, at = _varint(message, at, stop)
            end = at + length
        elif wire == _VARINT:
            _, end = _varint(message, at, stop)
        elif wire in (_FOUR_BYTES, _EIGHT_BYTES):
            end = at + (4 if wire == _FOUR_BYTES else 8)
        else:
            raise ValueError(f"field {number} at byte {at} has the wire type {wire}")
        if not 1 <= number < 2**29:
            raise ValueError(f"field number {number} at byte {at}")
        if end > stop:
            raise ValueError(f"field {number} at byte {at} is cut short")
        yield number, wire, at, end
        at = end


def _varint(message: bytes, at: int, stop: int) -> tuple[int, int]:
    """The base-128 number that starts at `at`, and where it ends."""
    if at < stop and message[at] < 0x80:  # most numbers are lengths and keys of one byte
        return message[at], at + 1
    value = shift = 0
    for place in range(at, min(stop, at + 10)):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, place + 1
        shift += 7
    raise ValueError(f"number at byte {at} is cut short or has more than 64 bits")
