"""Pretraining records: their metadata, checks, and input pipeline.

A data directory contains the records, `metadata.json`, which describes them,
and the tokenizer files. Records from the released code have no `metadata.json`;
their metadata are derived from the records themselves.

`metadata` reads or derives the metadata, `tfrecord` encodes and decodes
records, and `record_checks` compares a record with the metadata.
`input_pipeline` checks, shuffles and batches records, which `parsing` parses
and masks; `record_stream` produces the same batches with NumPy.
`inspect_records` prints records, and `piece_vectors` computes vectors of pieces
from their text. Only `input_pipeline` and `parsing` need TensorFlow.
"""
