"""Pretraining records: their description, their checks and their reading.

A data directory holds `metadata.json`, which describes the records, the
records themselves and the tokenizer's files. Records of the released code
have no such file; what it would say is then found in the records.

The package itself holds the description alone, which needs no TensorFlow:
`find` looks for it, `checks` compares it with the records, `reading` makes
batches of them and `decoding` shows one as arrays.
"""

from albert_tf.data.records.metadata import (
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
    id_type,
    is_described,
    load_metadata,
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
    "Metadata",
    "RecordFile",
    "id_type",
    "is_described",
    "load_metadata",
]
