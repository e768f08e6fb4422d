"""Batches contain the values of records written with `tf.train.Example`."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tiny_records import SLOTS, TOKENS, write_records

from albert_tf.base.errors import InputError
from albert_tf.data.records import input_pipeline, metadata
from albert_tf.data.records.metadata import read_metadata


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    """Return a folder of numbered examples that is read in small blocks."""
    monkeypatch.setattr(input_pipeline, "SHUFFLE_BLOCK", 16)
    write_records(tmp_path)
    return str(tmp_path)


def numbers(data_dir, count, batch_size=1, seed=3, **kwargs):
    """Return the indices of the first `count` training examples."""
    metadata = read_metadata(data_dir)
    batches = input_pipeline.train_batches(
        data_dir, metadata, batch_size=batch_size, seed=seed, **kwargs
    )
    taken = batches.take(count // batch_size)
    return [n for batch in taken for n in batch["input_ids"][:, 0].numpy()]


def test_every_epoch_holds_every_record_once(data_dir):
    """Each epoch is a different permutation of the records."""
    stream = numbers(data_dir, 3 * 93)
    epochs = [stream[i : i + 93] for i in (0, 93, 186)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(93))
    assert epochs[0] != epochs[1] != epochs[2]
    assert numbers(data_dir, 93, seed=4) != epochs[0]


def test_blocks_are_shuffled_each_in_its_own_way(data_dir):
    """The records within each block are shuffled, differently in each block."""
    stream = np.array(numbers(data_dir, 80)).reshape(5, 16)
    orders = [tuple(np.argsort(b)) for b in stream if np.ptp(b) == 15]
    assert 2 <= len(orders) == len(set(orders))


def test_batches_have_static_shapes(data_dir):
    """The shapes of batches are static, as TPU compilation requires.

    The batch size is static, too. A strategy with several hosts creates the
    data set inside a graph.
    """
    metadata = read_metadata(data_dir)
    specs = []

    @tf.function(autograph=False)
    def trace():
        for read, seed in (("train", {"seed": 1}), ("eval", {})):
            batches = getattr(input_pipeline, f"{read}_batches")(
                data_dir, metadata, batch_size=6, **seed
            )
            specs.append(batches.element_spec)

    trace.get_concrete_function()
    expected = input_pipeline.batch_spec(6, TOKENS, SLOTS)
    assert {s.shape[0] for s in expected.values()} == {6}
    assert expected["input_ids"].shape == (6, TOKENS)
    assert specs == [expected, expected]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("start", [16, 37, 93, 93 * 2 + 17])
def test_stream_can_begin_anywhere(data_dir, start):
    """The example at a position does not depend on where reading starts."""
    whole = numbers(data_dir, start + 100)
    assert numbers(data_dir, 100, start=start) == whole[start:]


@pytest.mark.slow
def test_one_reader_keeps_its_order(data_dir, monkeypatch):
    """The order of records is as in version 1, so that old runs can resume.

    The expected indices come from version 1, which read files one after
    another.
    """
    expected = [61, 58, 53, 60, 67, 54, 55, 68], [90, 2, 92, 91, 89, 6, 3, 85]
    for limit in (input_pipeline.BYTES_AHEAD, 0):
        monkeypatch.setattr(input_pipeline, "BYTES_AHEAD", limit)
        read = numbers(data_dir, 8), numbers(data_dir, 8, start=37)
        assert read == expected


@pytest.mark.slow
def test_readers_share_each_epoch(data_dir):
    """In each epoch, exactly one of three readers reads each record.

    A reader may start at any position.
    """
    shares = [
        numbers(data_dir, 31 * 5, num_shards=3, shard=s) for s in range(3)
    ]
    for epoch in range(0, 31 * 5, 31):
        together = [n for share in shares for n in share[epoch : epoch + 31]]
        assert sorted(together) == list(range(93))
    for start in (0, 60, 93 * 4):
        for shard, share in enumerate(shares):
            again = numbers(
                data_dir, 20, start=start, num_shards=3, shard=shard
            )
            assert again == share[start // 3 :][:20]


@pytest.mark.slow
def test_a_reader_opens_the_files_of_its_share(data_dir):
    """A reader opens only files that contain records of its share."""
    shares = [numbers(data_dir, 31, num_shards=3, shard=s) for s in range(3)]
    first_ids = {"train-00000": range(30), "train-00002": range(30, 53)}
    for name, ids in first_ids.items():
        without = [s for s in range(3) if not set(shares[s]) & set(ids)]
        assert without
        (path,) = Path(data_dir).glob(f"{name}*")
        content = path.read_bytes()
        path.unlink()
        for shard in without:
            read = numbers(data_dir, 31, num_shards=3, shard=shard)
            assert read == shares[shard]
        path.write_bytes(content)


def test_batch(data_dir):
    """A batch has the documented keys, types and shapes, and correct values."""
    metadata = read_metadata(data_dir)
    batches = input_pipeline.train_batches(
        data_dir, metadata, batch_size=6, seed=1
    )
    batch = next(iter(batches))
    shapes = {name: (v.dtype, tuple(v.shape)) for name, v in batch.items()}
    tokens, slots = (tf.int32, (6, TOKENS)), (tf.int32, (6, SLOTS))
    assert shapes == {
        "input_ids": tokens,
        "input_mask": tokens,
        "segment_ids": tokens,
        "masked_lm_positions": slots,
        "masked_lm_ids": slots,
        "masked_lm_weights": (tf.float32, (6, SLOTS)),
        "sentence_order_labels": (tf.int32, (6,)),
        "example_weights": (tf.float32, (6,)),
    }
    np.testing.assert_array_equal(
        batch["sentence_order_labels"], batch["input_ids"][:, 0] % 2
    )
    assert (batch["masked_lm_ids"].numpy() == 9).all()
    assert batch["segment_ids"][0].numpy().tolist() == [0, 1] * 4


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("batch_size", [4, 11, 1, 30])
def test_eval_counts_every_example_once(data_dir, batch_size):
    """Held-out examples appear once, in order; padding rows have weight 0."""
    metadata = read_metadata(data_dir)
    seen = []
    for batch in input_pipeline.eval_batches(
        data_dir, metadata, batch_size=batch_size
    ):
        assert all(v.shape[0] == batch_size for v in batch.values())
        real = batch["example_weights"].numpy() == 1
        seen += batch["input_ids"].numpy()[real, 0].tolist()
        assert not batch["masked_lm_weights"].numpy()[~real].any()
        assert not batch["input_mask"].numpy()[~real].any()
    assert seen == list(range(93, 104))


def test_split_without_records(data_dir):
    """Reading an empty split raises an error instead of looping forever.

    Reading with more hosts than records also raises an error.
    """
    metadata = read_metadata(data_dir)
    splits = {"train": (), "eval": ()}
    metadata = dataclasses.replace(metadata, splits=splits)
    with pytest.raises(InputError, match="must contain eval records"):
        input_pipeline.eval_batches(data_dir, metadata, batch_size=2)
    with pytest.raises(InputError, match="must contain train records"):
        input_pipeline.train_batches(data_dir, metadata, batch_size=2, seed=0)
    metadata = read_metadata(data_dir)
    with pytest.raises(InputError, match="record for each host.*hosts=94"):
        input_pipeline.train_batches(
            data_dir, metadata, batch_size=2, seed=0, num_shards=94
        )
    input_pipeline.train_batches(
        data_dir, metadata, batch_size=2, seed=0, num_shards=93
    )


@pytest.mark.parametrize(
    "sizes, number",
    [
        ([0] * 5, 5),
        ([1] * 20, 16),
        ([1, 1, (256 << 20) // 6], 2),
        ([(256 << 20) // 6] * 9, 2),
        ([(256 << 20) // 6 + 1] * 9, 1),
        ([1 << 40, 1], 1),
    ],
)
def test_files_read_at_once_fit_the_memory(sizes, number):
    """At most 16 files are read at once.

    These files and twice as many more, which are read ahead, have at most 256
    MiB in total. A file that is too large for this limit is read alone.
    """
    entries = [metadata.RecordFile("x", 1, size) for size in sizes]
    assert input_pipeline._files_at_once(entries) == number
