"""TensorBoard's event files, read without TensorBoard."""

import struct

import numpy as np


def events(folder):
    """(tag, step, value) of the event files: records of a length, a checksum, bytes, a checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in folder.iterdir():
        text = path.read_bytes()
        while text:
            (size,) = struct.unpack("<Q", text[:8])
            event, text = Event.FromString(text[12 : 12 + size]), text[16 + size :]
            found += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
    return found


def numbers_of(rows):
    """The same of rows: every number of each, as float32."""
    tags = {
        name: "/".join(name.split("_", 1)) if name.startswith(("train_", "test_")) else name
        for name in rows[-1]
    }
    return [
        (tags[name], row["round"], float(np.float32(value)))
        for row in rows
        for name, value in row.items()
        if type(value) in (int, float, bool) and name != "round"
    ]
