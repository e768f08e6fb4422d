"""The values of a `tf.train.Example`, without TensorFlow."""

import functools
from collections import defaultdict
from collections.abc import Sequence

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

# tensorflow/core/example/example.proto and feature.proto, as their bytes are:
# a map is a list of entries.
MESSAGES = {
    "BytesList": ["repeated bytes value = 1"],
    "FloatList": ["repeated float value = 1"],
    "Int64List": ["repeated int64 value = 1"],
    "Feature": [
        "BytesList bytes_list = 1",
        "FloatList float_list = 2",
        "Int64List int64_list = 3",
    ],
    "Entry": ["string key = 1", "Feature value = 2"],
    "Features": ["repeated Entry feature = 1"],
    "Example": ["Features features = 1"],
}

Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "bytes": Field.TYPE_BYTES,
    "float": Field.TYPE_FLOAT,
    "int64": Field.TYPE_INT64,
    "string": Field.TYPE_STRING,
}


def _field(text: str) -> descriptor_pb2.FieldDescriptorProto:
    """Return the description of one line of `MESSAGES`."""
    *repeated, kind, name, _, number = text.split()
    field = Field(name=name, number=int(number), label=Field.LABEL_OPTIONAL)
    if repeated:
        field.label = Field.LABEL_REPEATED
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type_name = kind
    return field


@functools.cache
def _example_class() -> type:
    """Return the class of `Example`, known to no other library."""
    file = descriptor_pb2.FileDescriptorProto(name="example", syntax="proto3")
    for name, lines in MESSAGES.items():
        file.message_type.add(name=name, field=map(_field, lines))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("Example")
    )


def parse(serialized: bytes) -> defaultdict[str, Sequence]:
    """Return the values of each feature of an example, by name.

    A feature that is not there has none.

    Raises:
      ValueError: the bytes are no example.
    """
    try:
        example = _example_class().FromString(serialized)
    except DecodeError as error:
        raise ValueError(f"no tf.train.Example: {error}") from None
    features: defaultdict[str, Sequence] = defaultdict(tuple)
    for entry in example.features.feature:
        for _, values in entry.value.ListFields():
            features[entry.key] = values.value
    return features
