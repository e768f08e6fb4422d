"""Batches read without TensorFlow equal those of the input pipeline."""

import dataclasses
import itertools

import numpy as np
import pytest
from tiny_records import serialized

from albert_tf.base.errors import InputError
from albert_tf.data.records import input_pipeline, record_stream
from albert_tf.data.records.metadata import TRAIN, read_metadata
from albert_tf.data.records.record_stream import RecordStream

SIZE, SEED = 12, 3


def assert_same(ours, theirs):
    """Assert that batches are equal, including the types of arrays."""
    for found, expected in zip(ours, theirs, strict=True):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, name, strict=True)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("masking", ["dynamic", "static"])
def test_batches_are_those_of_the_pipeline(kinds, masking, monkeypatch):
    """From any start, batches equal those of the pipeline.

    The batches extend over several epochs and blocks.
    """
    for module in input_pipeline, record_stream:
        monkeypatch.setattr(module, "SHUFFLE_BLOCK", 16)
    folder = str(kinds / masking)
    metadata = read_metadata(folder)
    count = metadata.count(TRAIN)
    stream = RecordStream(folder, metadata, SEED)
    for start in 0, 2 * count + 37:
        theirs = input_pipeline.train_batches(
            folder, metadata, batch_size=SIZE, seed=SEED, start=start
        )
        number = count // SIZE + 3
        ours = itertools.islice(stream.train(start, SIZE), number)
        ours = (stream.batch(*records) for records in ours)
        assert_same(ours, theirs.take(number).as_numpy_iterator())


def test_held_out_batches_are_those_of_the_pipeline(kinds):
    """Held-out batches equal those of the pipeline.

    The records come once and in order, and the last batch is padded.
    """
    folder = str(kinds / "dynamic")
    metadata = read_metadata(folder)
    theirs = input_pipeline.eval_batches(folder, metadata, batch_size=SIZE)
    ours = RecordStream(folder, metadata, SEED).held_out(SIZE)
    assert_same(ours, theirs.as_numpy_iterator())


def test_ids_of_a_large_vocabulary(kinds):
    """With more than 65,536 pieces, ids in dynamic records have four bytes."""
    folder = str(kinds / "dynamic")
    metadata = read_metadata(folder)
    stream = RecordStream(folder, metadata, SEED)
    stream.metadata = dataclasses.replace(metadata, vocab_size=(1 << 16) + 1)
    stream.mask = lambda positions, ids, starts, sizes: [ids] * 6
    tokens = [1 << 16, 5, 7]
    record = serialized(
        token_ids=[np.array(tokens, "<i4").tobytes()],
        word_starts=[b"\xe0"],
        segment_lengths=[2, 1],
        next_sentence_labels=[0],
    )
    ids = stream.batch([record], 0)["input_ids"][0]
    assert ids[:3].tolist() == tokens and not ids[3:].any()


def test_other_records_are_an_error(kinds):
    """The error for a malformed or incomplete record names the folder.

    For static records, the folder need not have a tokenizer.
    """
    metadata = read_metadata(str(kinds / "static"))
    stream = RecordStream("no tokenizer", metadata, SEED)
    for record in b"\xff", b"":
        with pytest.raises(InputError, match="data_dir=no tokenizer$"):
            stream.batch([record], 0)
