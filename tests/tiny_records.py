"""Numbered records that `tf.train.Example` wrote, value by value."""

import itertools

import tensorflow as tf

from albert_tf.data import records

TOKENS, SLOTS = 8, 2
COUNTS = {"train": (30, 0, 23, 40), "eval": (5, 6)}


def example(number, tokens=TOKENS, slots=SLOTS):
    """Serialise an example whose first id is its number."""

    def ints(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    weights = tf.train.FloatList(value=[1.0] + [0.0] * (slots - 1))
    feature = {
        "input_ids": ints([number] + [7] * (tokens - 1)),
        "input_mask": ints([1] * tokens),
        "segment_ids": ints([0, 1] * (tokens // 2)),
        "token_boundary": ints([1] * tokens),
        "masked_lm_positions": ints([1] * slots),
        "masked_lm_ids": ints([9] * slots),
        "masked_lm_weights": tf.train.Feature(float_list=weights),
        "next_sentence_labels": ints([number % 2]),
    }
    features = tf.train.Features(feature=feature)
    return tf.train.Example(features=features).SerializeToString()


def first_file(folder, split="train"):
    """Return the path of a split's first file."""
    return f"{folder}/{split}-00000-of-{len(COUNTS[split]):05d}.tfrecord"


def write_records(folder):
    """Write files of examples, numbered through, and their metadata."""
    numbering, splits = itertools.count(), {}
    for split, counts in COUNTS.items():
        splits[split] = []
        for i, count in enumerate(counts):
            name = f"{split}-{i:05d}-of-{len(counts):05d}.tfrecord"
            with tf.io.TFRecordWriter(str(folder / name)) as writer:
                for number in itertools.islice(numbering, count):
                    writer.write(example(number))
            size = (folder / name).stat().st_size
            splits[split].append(records.RecordFile(name, count, size))
    splits = {split: tuple(entries) for split, entries in splits.items()}
    metadata = records.Metadata(TOKENS, SLOTS, 50, "", splits)
    metadata.write(str(folder))
