"""Pretraining records: their description, their checks and their reading.

A data directory holds `metadata.json`, which describes the records, the
records themselves and the tokenizer's files. Records of the released code
have no such file; what it would say is then found in the records.
"""

from albert_tf.records.checks import check, errors_explained, find_fault
from albert_tf.records.decoding import Example, decode
from albert_tf.records.dynamic import id_type
from albert_tf.records.find import read_metadata
from albert_tf.records.metadata import (
    EVAL,
    INPUT_IDS,
    INPUT_MASK,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    METADATA_FILE,
    NEXT_SENTENCE_LABELS,
    SEGMENT_IDS,
    SEGMENT_LENGTHS,
    SENTENCE_ORDER_LABELS,
    TOKEN_BOUNDARY,
    TOKEN_IDS,
    TRAIN,
    WORD_STARTS,
    Metadata,
    RecordFile,
    is_described,
)
from albert_tf.records.reading import (
    eval_batches,
    parse,
    train_batches,
    train_stream,
)

__all__ = [
    "EVAL",
    "INPUT_IDS",
    "INPUT_MASK",
    "MASKED_LM_IDS",
    "MASKED_LM_POSITIONS",
    "MASKED_LM_WEIGHTS",
    "METADATA_FILE",
    "NEXT_SENTENCE_LABELS",
    "SEGMENT_IDS",
    "SEGMENT_LENGTHS",
    "SENTENCE_ORDER_LABELS",
    "TOKEN_BOUNDARY",
    "TOKEN_IDS",
    "TRAIN",
    "WORD_STARTS",
    "Example",
    "Metadata",
    "RecordFile",
    "check",
    "decode",
    "errors_explained",
    "eval_batches",
    "find_fault",
    "id_type",
    "is_described",
    "parse",
    "read_metadata",
    "train_batches",
    "train_stream",
]
