"""Numbered records, written with `tf.train.Example`."""

import itertools

import tensorflow as tf

from albert_tf.data.records.metadata import Metadata, RecordFile

TOKENS, SLOTS = 8, 2
COUNTS = {"train": (30, 0, 23, 40), "eval": (5, 6)}


KINDS = {
    int: ("int64_list", tf.train.Int64List),
    float: ("float_list", tf.train.FloatList),
    bytes: ("bytes_list", tf.train.BytesList),
}


def serialized(**features):
    """Serialize an example with integer, float, bytes or text features."""
    example = tf.train.Example()
    for key, values in features.items():
        values = [x.encode() if isinstance(x, str) else x for x in values]
        name, kind = KINDS[type(values[0]) if values else bytes]
        feature = tf.train.Feature(**{name: kind(value=values)})
        example.features.feature[key].CopyFrom(feature)
    return example.SerializeToString()


def example(number, tokens=TOKENS, slots=SLOTS, without=()):
    """Serialize an example whose first id is the given number."""
    features = {
        "input_ids": [number] + [7] * (tokens - 1),
        "input_mask": [1] * tokens,
        "segment_ids": [0, 1] * (tokens // 2),
        "token_boundary": [1] * tokens,
        "masked_lm_positions": [1] * slots,
        "masked_lm_ids": [9] * slots,
        "masked_lm_weights": [1.0] + [0.0] * (slots - 1),
        "next_sentence_labels": [number % 2],
    }
    for name in without:
        del features[name]
    return serialized(**features)


def write(path, content):
    """Write serialized records to a file."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in content:
            writer.write(record)


def first_file(folder, split="train"):
    """Return the path of a split's first file."""
    return f"{folder}/{split}-00000-of-{len(COUNTS[split]):05d}.tfrecord"


def write_records(folder):
    """Write files of examples numbered consecutively, and their metadata."""
    numbering, splits = itertools.count(), {}
    for split, counts in COUNTS.items():
        splits[split] = []
        for i, count in enumerate(counts):
            name = f"{split}-{i:05d}-of-{len(counts):05d}.tfrecord"
            write(
                folder / name, map(example, itertools.islice(numbering, count))
            )
            size = (folder / name).stat().st_size
            splits[split].append(RecordFile(name, count, size))
    splits = {split: tuple(entries) for split, entries in splits.items()}
    metadata = Metadata(TOKENS, SLOTS, 128, "", splits)
    metadata.write(str(folder))
