"""Records of any content can be read back, and damage is found."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from properties import examples, texts
from tiny_records import serialized

from albert_tf.base.errors import InputError
from albert_tf.data.layout import id_type
from albert_tf.data.masking import Instances, Masked
from albert_tf.data.records import parsing, tfrecord
from albert_tf.data.records.inspect_records import show
from albert_tf.data.records.metadata import Metadata, RecordFile, load_metadata


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return the path of a record file."""
    return str(tmp_path_factory.mktemp("records") / "a.tfrecord")


SIZES = st.one_of(st.integers(0, 9), st.sampled_from([127, 128, 255, 70_000]))


@examples(20)
@given(sizes=st.lists(SIZES, max_size=5), seed=st.integers(0, 2**32))
def test_files_equal_those_of_tensorflow(path, sizes, seed):
    """Records of any bytes are written as in TensorFlow, and read back."""
    rng = np.random.default_rng(seed)
    content = [rng.bytes(size) for size in sizes]
    with tf.io.TFRecordWriter(path) as writer:
        for record in content:
            writer.write(record)
    with open(path, "rb") as file:
        theirs = file.read()
    tfrecord.write(path, content)
    with open(path, "rb") as file:
        assert file.read() == theirs
    assert list(tfrecord.read(path)) == content


def test_a_long_record_is_read_in_parts(path, monkeypatch):
    """A record may be longer than the parts in which it is read."""
    monkeypatch.setattr(tfrecord, "PART_BYTES", 3)
    content = [b"", b"abcdefgh", b"ij", bytes(range(256))]
    tfrecord.write(path, content)
    assert list(tfrecord.read(path)) == content


@pytest.mark.parametrize("lost", ["a", "a.json"])
def test_a_lost_file_is_written_again(lost, tmp_path):
    """Records are written only if they or their counts are missing.

    The counts do not include those of an earlier attempt.
    """
    paths = [str(tmp_path / name) for name in ("a", "a.json")]

    def records(counts):
        for record in (b"x", b"yz"):
            counts["records"] += 1
            yield record

    first = tfrecord.write_once(*paths, records)
    assert first == {"records": 2, "file_bytes": 2 * 16 + 3}
    (tmp_path / lost).unlink()
    assert tfrecord.write_once(*paths, records) == first
    assert list(tfrecord.read(paths[0])) == [b"x", b"yz"]
    assert tfrecord.write_once(*paths, None) == first


@examples(60)
@given(
    content=st.lists(st.binary(max_size=20), min_size=1, max_size=4),
    data=st.data(),
)
def test_damage_is_found(path, content, data):
    """A changed byte, or a cut inside a record, is reported for that record."""
    tfrecord.write(path, content)
    with open(path, "rb") as file:
        whole = bytearray(file.read())
    place = data.draw(st.integers(0, len(whole) - 1), "place")
    change = data.draw(st.integers(0, 255), "change, 0 for a cut")
    whole[place] ^= change
    ends = np.cumsum([len(record) + 16 for record in content])
    number = int(np.searchsorted(ends, place, side="right"))
    is_border = not change and place in (0, *ends)
    with open(path, "wb") as file:
        file.write(whole if change else whole[:place])
    records = tfrecord.read(path)
    assert [next(records) for _ in range(number)] == content[:number]
    if is_border:
        assert list(records) == []
        return
    with pytest.raises(InputError, match=f"a.tfrecord.*record {number}$"):
        next(records)


@st.composite
def batches(draw):
    """Return examples, the size of a vocabulary, and an rng.

    Each example has the form [CLS] A [SEP] B [SEP].
    """
    vocab_size = draw(st.sampled_from([300, 1 << 16, 250_000]))
    sizes = draw(
        st.lists(
            st.tuples(st.integers(1, 20), st.integers(0, 20)),
            min_size=1,
            max_size=5,
        )
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    a, b = np.array(sizes).T[:, :, None]
    tokens = int((a + b).max()) + 3 + draw(st.integers(0, 9))
    lengths = a + b + 2 + (b > 0)
    place = np.arange(tokens)
    special = (place == 0) | (place == a + 1) | (place == lengths - 1)
    real = place < lengths
    # These ids are the limits of each length in bytes.
    largest = draw(st.sampled_from([127, 128, 255, 16_384, vocab_size - 1]))
    largest = min(largest, vocab_size - 1)
    ids = rng.integers(0, largest, real.shape, endpoint=True)
    instances = Instances(
        np.where(real, ids, 0).astype(np.int32),
        real & (place > a + 1),
        real & ~special,
        real & (special | (rng.random(real.shape) < 0.5)),
        lengths[:, 0],
        rng.random(len(sizes)) < 0.5,
    )
    return instances, vocab_size, rng


@examples(20)
@given(batch=batches(), slots=st.integers(1, 12))
def test_static_records_are_read_as_written(batch, slots):
    """Protobuf and our own reader recover the values of encoded records."""
    instances, _, rng = batch
    ids = instances.input_ids
    count = len(ids)
    positions = np.zeros((count, slots), np.int32)
    labels, weights = positions.copy(), positions.astype(np.float32)
    for row, size in enumerate(instances.lengths):
        number = int(rng.integers(0, min(slots, size), endpoint=True))
        places = np.sort(rng.permutation(int(size))[:number])
        positions[row, :number], weights[row, :number] = places, 1.0
        labels[row, :number] = rng.integers(0, 250_000, number)
    masked = Masked(ids, positions, labels, weights, *[None] * 4)
    for row, data in enumerate(tfrecord.encode(instances, masked)):
        feature = tf.train.Example.FromString(data).features.feature
        values = {
            name: list(f.int64_list.value or f.float_list.value)
            for name, f in feature.items()
        }
        size = instances.lengths[row]
        assert values == {
            "input_ids": ids[row].tolist(),
            "input_mask": (np.arange(ids.shape[1]) < size).tolist(),
            "segment_ids": instances.segment_ids[row].tolist(),
            "token_boundary": instances.starts[row].tolist(),
            "masked_lm_positions": positions[row].tolist(),
            "masked_lm_ids": labels[row].tolist(),
            "masked_lm_weights": weights[row].tolist(),
            "next_sentence_labels": [int(instances.swapped[row])],
        }
        found = tfrecord.decode(data)
        real = weights[row] > 0
        assert found.input_ids.tolist() == ids[row, :size].tolist()
        assert found.positions.tolist() == positions[row, real].tolist()
        assert found.labels.tolist() == labels[row, real].tolist()
        assert found.swapped == instances.swapped[row]
        assert (found.slots, found.length) == (slots, ids.shape[1])


@examples(10)
@given(batch=batches())
def test_dynamic_records_are_read_as_written(batch):
    """The graph and our own reader recover the tokens of unmasked records."""
    instances, vocab_size, _ = batch
    real, tokens = instances.maskable, instances.input_ids.shape[1]
    records = tfrecord.encode_unmasked(instances, id_type(vocab_size))
    metadata = Metadata(tokens, 1, vocab_size, "", {})
    names = tf.constant(["x"] * len(records))
    ids, starts, sizes, labels = (
        x.numpy()
        for x in parsing.parse_dynamic(names, tf.constant(records), metadata)
    )
    np.testing.assert_array_equal(labels, instances.swapped)
    for row, data in enumerate(records):
        wanted = instances.input_ids[row, real[row]].tolist()
        size = len(wanted)
        in_b = int(np.sum(real[row] & instances.segment_ids[row]))
        assert sizes[row].tolist() == [size - in_b, in_b]
        assert ids[row, :size].tolist() == wanted and not ids[row, size:].any()
        begins = instances.starts[row, real[row]]
        np.testing.assert_array_equal(starts[row, :size], begins)
        found = tfrecord.decode(data)
        a, b = found.segments()
        assert [*a, *b] == wanted and len(b) == in_b
        assert found.swapped == instances.swapped[row]


STATIC = {
    "input_ids": [2, 7, 4, 3],
    "input_mask": [1, 1, 1, 0],
    "segment_ids": [0, 0, 0, 0],
    "masked_lm_positions": [1, 0],
    "masked_lm_ids": [9, 0],
    "masked_lm_weights": [1.0, 0.0],
    "next_sentence_labels": [1],
}


DYNAMIC = {
    "token_ids": [b"\7\0\10\0\11\0"],
    "word_starts": [b"\3"],
    "segment_lengths": [2, 1],
    "next_sentence_labels": [0],
}
PHONEMES = {"symbol_ids": [3, 4, 2, 5, 2, 0], "word_ids": [9, 9, 1, 8, 1, 0]}
NUMBERS = (-5, -1, 0, 1, 2, 3, 4, 9)
VALUES = *NUMBERS, *map(float, NUMBERS), b"", b"a", b"\7\0\10\0"


@pytest.mark.parametrize(
    ("form", "name"),
    [(form, name) for form in (STATIC, DYNAMIC, PHONEMES) for name in form],
)
def test_a_damaged_feature_is_rejected_or_shown(form, name):
    """A record with arbitrary values of any type is rejected or printed."""
    assert show(tfrecord.decode(serialized(**form)), None)
    for value in VALUES:
        for size in (0, 1, 2, 4):
            record = serialized(**form | {name: [value] * size})
            with contextlib.suppress(ValueError):
                assert show(tfrecord.decode(record), None)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"input_mask": [0, 0, 0, 0]}, "masked position outside the tokens"),
        ({"masked_lm_positions": [3, 0]}, "masked position outside"),
        ({"masked_lm_positions": [-1, 0]}, "masked position outside"),
        ({"segment_ids": [0, 0, 2, 0]}, "segment id other than 0 and 1"),
        ({"segment_ids": [0, -1, 0, 0]}, "segment id other than 0 and 1"),
        ({"next_sentence_labels": []}, "not a pretraining record"),
        ({"masked_lm_positions": [1.0, 0.0]}, "values must be integers"),
        ({"masked_lm_weights": [b"a", b"b"]}, "not a pretraining record"),
    ],
)
def test_values_outside_a_record_are_named(changes, fault):
    """An error names a masked position outside the tokens.

    It also names a segment id other than 0 or 1, or reports a missing label or
    a wrong type.
    """
    assert tfrecord.decode(serialized(**STATIC)).originals().tolist() == [
        *(2, 9, 4)
    ]
    with pytest.raises(ValueError, match=fault):
        tfrecord.decode(serialized(**STATIC | changes))


NUMBER = st.integers(0, 2**40)
NAME = texts(most=4)
ENTRIES = st.lists(
    st.builds(
        lambda file, records, more: RecordFile(
            file, records, records * tfrecord.LEAST_BYTES + more
        ),
        texts(most=4, without="\0"),
        NUMBER,
        NUMBER,
    ),
    unique_by=lambda entry: entry.file,
).map(tuple)
VALUE = st.none() | st.booleans() | NUMBER | NAME | st.floats(0, 1)
METADATA = st.builds(
    Metadata,
    max_seq_length=NUMBER,
    max_predictions_per_seq=NUMBER,
    vocab_size=NUMBER,
    tokenizer_fingerprint=NAME,
    splits=ENTRIES.flatmap(
        lambda entries: st.integers(0, len(entries)).map(
            lambda held: {"train": entries[held:], "eval": entries[:held]}
        )
    ),
    settings=st.dictionaries(NAME, VALUE, max_size=3),
    statistics=st.dictionaries(NAME, st.lists(VALUE), max_size=3),
)


@examples(20)
@given(metadata=METADATA)
def test_metadata_are_read_as_written(path, metadata):
    """Names and numbers of any kind are read as written."""
    metadata.write(f"{path} metadata")
    assert load_metadata(f"{path} metadata") == metadata
