"""The second pass: one shard, once, to one file of records."""

import dataclasses
import os
from collections import Counter

import numpy as np
import tensorflow as tf

from albert_tf import files, records
from albert_tf.masking import MaskingConfig, Words, mask
from albert_tf.pretraining_data.documents import read_shard, token_dtype
from albert_tf.pretraining_data.instances import lay_out
from albert_tf.pretraining_data.pairs import Boundaries, PairsConfig, make_pairs
from albert_tf.pretraining_data.shards import buckets, cached_tokenizer
from albert_tf.pretraining_data.statistics import count_batch
from albert_tf.pretraining_data.wire import encode

# Examples that are masked and encoded together; the records depend on it.
BATCH = 1024

SPLITS = (records.TRAIN, records.EVAL)


@dataclasses.dataclass(frozen=True)
class FileJob:
    """One file of records to make.

    Attributes:
      shard_path: the shard it is made of.
      shard, duplicate: what its random numbers depend on, beside the seed.
      split: `records.TRAIN` or `records.EVAL`.
      below: the hash buckets below this one are held out.
      path: the file to write.
      counts_path: where its counts go; it is finished when both are there.
      seed: the user's.
      tokenizer_dir, fingerprint: the tokenizer.
      pairs, masking: what to make.
    """

    shard_path: str
    shard: int
    duplicate: int
    split: str
    below: int
    path: str
    counts_path: str
    seed: int
    tokenizer_dir: str
    fingerprint: str
    pairs: PairsConfig
    masking: MaskingConfig

    def rng(self) -> np.random.Generator:
        """Return this file's own stream of random numbers."""
        key = (SPLITS.index(self.split), self.shard, self.duplicate)
        return np.random.Generator(
            np.random.Philox(np.random.SeedSequence(self.seed, spawn_key=key))
        )

    def wanted(self, hashes: np.ndarray) -> np.ndarray:
        """Return which documents belong to the split."""
        held_out = buckets(hashes) < self.below
        return held_out if self.split == records.EVAL else ~held_out


def _write_records(job: FileJob, path: str) -> Counter:
    tokenizer = cached_tokenizer(job.tokenizer_dir, job.fingerprint)
    words, rng = Words.of(tokenizer), job.rng()
    dtype = token_dtype(tokenizer.vocab_size)
    documents = read_shard(job.shard_path, dtype, job.wanted)
    pairs, counts = make_pairs(
        documents, Boundaries.of(tokenizer), job.pairs, rng
    )
    length = job.pairs.max_seq_length
    with tf.io.TFRecordWriter(path) as writer:
        for first in range(0, len(pairs), BATCH):
            batch = pairs.take(slice(first, first + BATCH))
            instances = lay_out(batch, documents.ids, length, tokenizer)
            masked = mask(
                instances.input_ids,
                instances.starts,
                instances.maskable,
                instances.lengths,
                job.masking.predictions(length),
                job.masking,
                words,
                rng,
            )
            counts.update(count_batch(instances, masked))
            for example in encode(instances, masked):
                writer.write(example)
    return counts


def read_counts(job: FileJob) -> Counter | None:
    """Return the counts of a finished file; None if it must be made."""
    if os.path.exists(job.counts_path) and tf.io.gfile.exists(job.path):
        return Counter(files.read_json(job.counts_path, "counts"))
    return None


def make_file(job: FileJob) -> Counter:
    """Make a file of records, and return what was counted."""
    try:
        with files.atomic_path(job.path) as temporary:
            counts = _write_records(job, temporary)
            counts["file_bytes"] = tf.io.gfile.stat(temporary).length
            files.write_json(job.counts_path, dict(counts))
    except tf.errors.OpError as error:
        raise OSError(
            f"The records could not be written ({error.message}); free some "
            f"space and run the same command again. Received: {job.path}"
        ) from None
    return counts
