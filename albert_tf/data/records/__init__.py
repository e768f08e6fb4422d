"""Pretraining records: their description, their checks and their reading.

A data directory holds `metadata.json`, which describes the records, the
records themselves and the tokenizer's files. Records of the released code
have no such file; what it would say is then found in the records.

The package itself holds the description alone, which needs no TensorFlow:
`find` looks for it, `checks` compares it with the records, `input_pipeline`
makes batches of them and `decoding` shows one as arrays.
"""

from albert_tf.data.records.metadata import (
    EVAL,
    TRAIN,
    Metadata,
    RecordFile,
    is_described,
    load_metadata,
)

__all__ = [
    "EVAL",
    "TRAIN",
    "Metadata",
    "RecordFile",
    "is_described",
    "load_metadata",
]
