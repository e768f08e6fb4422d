"""Records with illegal values raise errors in all readers.

A GPU, or a graph compiled by XLA, would silently use different values.
"""

import numpy as np
import pytest
import tensorflow as tf
from tiny_records import SLOTS, TOKENS, serialized

from albert_tf.data.masking import DYNAMIC, STATIC
from albert_tf.data.records import parsing, tfrecord
from albert_tf.data.records.metadata import LABELS, PHONEMES, Metadata
from albert_tf.data.records.record_checks import check_record
from albert_tf.data.records.record_stream import RecordStream

VOCAB, WORDS = 60, 7
STATIC_RECORD = {
    "input_ids": [2, 59, 4, 5, 3, 0, 0, 0],
    "input_mask": [1, 1, 1, 1, 1, 0, 0, 0],
    "segment_ids": [0, 0, 0, 1, 1, 0, 0, 0],
    "masked_lm_positions": [4, 0],
    "masked_lm_ids": [59, 0],
    "masked_lm_weights": [1.0, 0.0],
    "next_sentence_labels": [1],
}
DYNAMIC_RECORD = {
    "token_ids": [np.array([59, 0, 5], np.uint16).tobytes()],
    "word_starts": [b"\xe0"],
    "segment_lengths": [1, 2],
    "next_sentence_labels": [1],
}
PHONEME_RECORD = {
    "symbol_ids": [16, 59, 0, 1, 2, 3, 16, 0],
    "word_ids": [0, 6, 6, 2, 2, 2, 0, 0],
}
# {form: (record, function that parses it)}
FORMS = {
    STATIC: (STATIC_RECORD, parsing.parse_static),
    DYNAMIC: (DYNAMIC_RECORD, parsing.parse_dynamic),
    PHONEMES: (PHONEME_RECORD, parsing.parse_padded),
}


def metadata_of(form, **changes):
    """Return the metadata of records of a form."""
    settings = {
        STATIC: {},
        DYNAMIC: {"masking": DYNAMIC},
        PHONEMES: {"task": PHONEMES},
    }
    values = {
        "max_seq_length": TOKENS,
        "max_predictions_per_seq": SLOTS,
        "vocab_size": VOCAB,
        "tokenizer_fingerprint": "",
        "splits": {},
        "settings": settings[form],
        "statistics": {LABELS: WORDS},
    }
    return Metadata(**values | changes)


def errors_of(form, record, metadata):
    """Return each reader's report on a record, or "" if it finds no fault."""
    legal, parse = FORMS[form]
    record = serialized(**record)
    names = tf.constant(["legal", "file, record 9"])
    batch = tf.constant([serialized(**legal), record])
    in_graph = tf.function(lambda: parse(names, batch, metadata))
    readers = [
        lambda: check_record(tfrecord.parse(record), metadata, form),
        in_graph,
    ]
    if form == STATIC:  # dynamic records need a folder with a tokenizer
        stream = RecordStream("folder", metadata, seed=0)
        readers.append(lambda: stream.batch([record]))
    errors = []
    for read in readers:
        try:
            read()
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            errors.append(str(error))
            if read is in_graph:
                assert "file, record 9" in str(error)
                assert "legal:" not in str(error)
        else:
            errors.append("")
    return errors


def assert_rejected(form, changes, *messages, **metadata):
    """Assert that every reader reports one of the messages."""
    record = FORMS[form][0] | changes
    for error in errors_of(form, record, metadata_of(form, **metadata)):
        assert any(message in error for message in messages), error


@pytest.mark.parametrize("form", FORMS)
def test_legal_values(form):
    """The largest legal values, and unused slots, raise no error."""
    assert not any(errors_of(form, FORMS[form][0], metadata_of(form)))


@pytest.mark.parametrize(
    "form, name, limit",
    [
        (STATIC, "input_ids", VOCAB),
        (STATIC, "input_mask", 2),
        (STATIC, "segment_ids", 2),
        (STATIC, "masked_lm_positions", TOKENS),
        (STATIC, "masked_lm_ids", VOCAB),
        (STATIC, "next_sentence_labels", 2),
        (DYNAMIC, "next_sentence_labels", 2),
        (PHONEMES, "symbol_ids", VOCAB),
        (PHONEMES, "word_ids", WORDS),
    ],
)
def test_illegal_integers(form, name, limit):
    """Every reader rejects negative, too large and overflowing integers."""
    values = FORMS[form][0][name][:-1]
    for value in -1, limit, 2**32 + 1:
        changes = {name: [*values, value]}
        assert_rejected(form, changes, f"`{name}`", "bounds")


def test_illegal_tokens_and_lengths():
    """Dynamic records need legal ids, and lengths of at least 0.

    The lengths must be those of the stored ids, which must fit a row.
    """
    ids = np.array([1, 60, 5], np.uint16).tobytes()
    assert_rejected(DYNAMIC, {"token_ids": [ids]}, "`token_ids`")
    lengths = {"segment_lengths": [4, -1]}
    assert_rejected(DYNAMIC, lengths, "`segment_lengths`")
    four = {"token_ids": [bytes(8)]}
    assert_rejected(DYNAMIC, four, "contradict", "8 bytes long for 3 tokens")
    six = {"token_ids": [bytes(12)], "segment_lengths": [2, 4]}
    assert_rejected(DYNAMIC, six, "contradict", "instead of 1 to 5")


def test_predictions_need_tokens_and_legal_weights():
    """Predictions of padding, and illegal weights, raise errors.

    A legal weight is finite and not negative.
    """
    for changes in (
        {"masked_lm_positions": [5, 0]},
        {"masked_lm_weights": [-1.0, 0.0]},
        {"masked_lm_weights": [1.0, float("nan")]},
        {"masked_lm_weights": [float("inf"), 0.0]},
    ):
        assert_rejected(STATIC, changes, "padd", "weight")
    unused = STATIC_RECORD | {"masked_lm_positions": [4, 7]}
    assert not any(errors_of(STATIC, unused, metadata_of(STATIC)))


@pytest.mark.parametrize(
    "form, name, values",
    [
        (STATIC, "input_ids", [1.0] * TOKENS),
        (STATIC, "masked_lm_weights", [1] * SLOTS),
        (STATIC, "next_sentence_labels", [b"1"]),
        (DYNAMIC, "token_ids", [1]),
        (DYNAMIC, "segment_lengths", [1.0, 2.0]),
        (PHONEMES, "word_ids", [b"0"] * TOKENS),
    ],
)
def test_illegal_types(form, name, values):
    """All readers reject values of a wrong type."""
    assert_rejected(form, {name: values}, name)


def test_bytes_that_are_no_example_are_named():
    """Every byte of a record belongs to its features, whatever their length.

    The length has one byte up to 127, two up to 16,383, and so on.
    """
    sizes = [*range(90, 130), *range(16_340, 16_400), 2**21, 2**21 + 9]
    records = [serialized(x=[bytes(size)]) for size in sizes]
    lengths = {len(record) for record in records}
    assert {129, 131, 16_386, 16_388} <= lengths  # around the limits
    for found, wanted in (
        (records, True),
        ([record[:-1] for record in records], False),
        ([record + b"\n" for record in records], False),
        ([b"\x12" + record[1:] for record in records], False),
        ([b"", b"\n", b"\n\x80"], False),
    ):
        assert {*parsing._is_example(tf.constant(found)).numpy()} == {wanted}
    for form, (legal, parse) in FORMS.items():
        batch = tf.constant([serialized(**legal), serialized(**legal)[:-1]])
        names = tf.constant(["legal", "file, record 9"])
        message = "file, record 9: not a tf.train.Example"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            parse(names, batch, metadata_of(form))


def test_unknown_vocabulary():
    """Without a known vocabulary, any id of at least 0 is legal."""
    unknown = metadata_of(STATIC, vocab_size=0)
    large = STATIC_RECORD | {"input_ids": [10**6] * TOKENS}
    assert not any(errors_of(STATIC, large, unknown))
    negative = {"input_ids": [-1] * TOKENS}
    assert_rejected(STATIC, negative, "`input_ids`", "bounds", vocab_size=0)
