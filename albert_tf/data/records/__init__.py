"""Pretraining records: their metadata, checks, and input pipeline.

A data directory contains the records, `metadata.json`, which describes them,
and the tokenizer files. Records of the released code have no `metadata.json`;
the metadata are then derived from the records.

`metadata` reads or derives the metadata, `checks` compares them with the
records, `input_pipeline` batches the records, and `tfrecord` encodes and
decodes single records. `metadata` and `tfrecord` do not need TensorFlow.
"""
