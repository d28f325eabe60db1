"""tf.train.Example messages, read and written without TensorFlow."""

from collections.abc import Collection, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

# The messages of tensorflow/core/example: example.proto and feature.proto.
_SCHEMA = """
name: "tf_example.proto" syntax: "proto3"
message_type { name: "BytesList"
    field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
    field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
    field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
    field { name: "bytes_list" number: 1 type_name: "BytesList" oneof_index: 0 }
    field { name: "float_list" number: 2 type_name: "FloatList" oneof_index: 0 }
    field { name: "int64_list" number: 3 type_name: "Int64List" oneof_index: 0 } }
message_type { name: "Features"
    field { name: "feature" number: 1 label: LABEL_REPEATED type_name: "FeatureEntry" }
    nested_type { name: "FeatureEntry" options { map_entry: true }
        field { name: "key" number: 1 type: TYPE_STRING }
        field { name: "value" number: 2 type_name: "Feature" } } }
message_type { name: "Example" field { name: "features" number: 1 type_name: "Features" } }
"""
# In its own pool: TensorFlow has the same names in the common one.
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
_Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("Example"))
_LISTS = {bytes: "bytes_list", float: "float_list", int: "int64_list"}


def decode_example(message: bytes, names: Collection[str]) -> dict[str, list]:
    """Decodes features of a serialised tf.train.Example.

    Returns:
        name -> list of bytes, of floats or of ints, for those of `names` that the message has;
        empty for a feature without a kind.

    Raises:
        ValueError: in one line, the message is cut short or is not of this form.
    """
    try:
        features = _Example.FromString(message).features.feature
    except DecodeError as error:
        raise ValueError(
            f"example: expected a serialised tf.train.Example, found {error}"
        ) from None
    return {name: _values(features[name]) for name in names if name in features}


def _values(feature: Any) -> list:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def encode_example(features: Mapping[str, list]) -> bytes:
    """Serialises a tf.train.Example: name -> a list of bytes, of floats or of ints, not empty.

    The same features in another order give the same bytes.
    """
    example = _Example()
    for name, values in features.items():
        getattr(example.features.feature[name], _LISTS[type(values[0])]).value.extend(values)
    return example.SerializeToString(deterministic=True)
