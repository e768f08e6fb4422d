"""Record files written and read without TensorFlow, compared with it."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.data.records import tfrecord


@pytest.fixture
def content():
    """Return records of many lengths, one of them empty."""
    rng = np.random.default_rng(0)
    return [rng.bytes(length) for length in (0, 1, 4, 255, 4096, 70_000)]


def test_written_as_tensorflow_writes(content, tmp_path):
    """Files equal those that TensorFlow writes, and it can read them."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    tfrecord.write(str(ours), content)
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for record in content:
            writer.write(record)
    assert ours.read_bytes() == theirs.read_bytes()
    found = tf.data.TFRecordDataset(str(ours)).as_numpy_iterator()
    assert list(found) == content
    assert list(tfrecord.read(str(theirs))) == content


@pytest.mark.parametrize("record", range(3))
def test_every_changed_byte_is_found(tmp_path, record):
    """Any changed byte is an error with the record's number."""
    path = tmp_path / "a.tfrecord"
    tfrecord.write(str(path), [b"first", b"", b"third record"])
    whole = path.read_bytes()
    begin, end = ((0, 21), (21, 37), (37, len(whole)))[record]
    for place in range(begin, end):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        records = tfrecord.read(str(path))
        assert [next(records) for _ in range(record)] == [b"first", b""][
            :record
        ]
        with pytest.raises(InputError, match=f"a.tfrecord.*record {record}$"):
            next(records)


def test_every_cut_is_found(tmp_path):
    """A file truncated inside a record is an error; between two, it is not."""
    path = tmp_path / "a.tfrecord"
    tfrecord.write(str(path), [b"first", b"second"])
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        if length == 21:
            assert list(tfrecord.read(str(path))) == [b"first"]
            continue
        with pytest.raises(InputError, match=f"record {int(length > 21)}$"):
            list(tfrecord.read(str(path)))
