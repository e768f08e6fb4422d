"""The second pass: one shard, once, to one file of records."""

import dataclasses
from collections import Counter
from collections.abc import Iterator

import numpy as np

from albert_tf.base import files
from albert_tf.data import records
from albert_tf.data.builder.boundaries import sentence_breaks
from albert_tf.data.builder.compat import Recipe, recipe
from albert_tf.data.builder.documents import read_shard, token_dtype
from albert_tf.data.builder.example_encoding import encode, encode_unmasked
from albert_tf.data.builder.held_out import buckets
from albert_tf.data.builder.instances import Instances, lay_out
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.shards import cached_tokenizer
from albert_tf.data.builder.statistics import count_instances, count_masks
from albert_tf.data.masking import DYNAMIC, Masked, MaskingConfig, Words, mask
from albert_tf.data.records import framing

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
      distinct: whether text that was there before is left out.
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
    distinct: bool
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

    @property
    def recipe(self) -> Recipe:
        """How its pairs and masks are made."""
        return recipe(self.pairs)

    @property
    def dynamic(self) -> bool:
        """Whether the records are masked while they are read."""
        return self.split == records.TRAIN and self.masking.masking == DYNAMIC


def _mask(
    job: FileJob, instances: Instances, words: Words, rng: np.random.Generator
) -> Masked:
    return mask(
        instances.input_ids,
        instances.starts,
        instances.maskable,
        instances.lengths,
        job.masking.most_masked(job.pairs.max_seq_length),
        job.masking,
        words,
        rng,
        job.recipe.cover,
    )


def _encode(
    job: FileJob,
    batches: Iterator[Instances],
    tokenizer,
    counts: Counter,
    rng: np.random.Generator,
) -> Iterator[bytes]:
    """Yield records and count them.

    Of dynamic records the first batch is masked too, for the statistics.
    """
    words = job.recipe.words(tokenizer)
    id_type = records.id_type(tokenizer.vocab_size)
    for number, instances in enumerate(batches):
        counts.update(count_instances(instances))
        if number == 0 or not job.dynamic:
            masked = _mask(job, instances, words, rng)
            counts.update(count_masks(instances, masked))
        if job.dynamic:
            yield from encode_unmasked(instances, id_type)
        else:
            yield from encode(instances, masked)


def _write_records(job: FileJob, path: str) -> Counter:
    tokenizer = cached_tokenizer(job.tokenizer_dir, job.fingerprint)
    rng = job.rng()
    dtype = token_dtype(tokenizer.vocab_size)
    documents = read_shard(job.shard_path, dtype, job.wanted, job.distinct)
    breaks = sentence_breaks(documents.ids, tokenizer)
    pairs, counts = job.recipe.make_pairs(documents, breaks, job.pairs, rng)
    batches = (
        lay_out(
            pairs.take(slice(first, first + BATCH)),
            documents,
            job.pairs.max_seq_length,
            tokenizer,
        )
        for first in range(0, len(pairs), BATCH)
    )
    framing.write(path, _encode(job, batches, tokenizer, counts, rng))
    return counts


def read_counts(job: FileJob) -> Counter | None:
    """Return the counts of a finished file; None if it must be made."""
    if all(map(files.exists, (job.counts_path, job.path))):
        return Counter(files.read_json(job.counts_path, "counts"))
    return None


def make_file(job: FileJob) -> Counter:
    """Make a file of records, and return what was counted."""
    with files.atomic_path(job.path) as temporary:
        counts = _write_records(job, temporary)
        counts["file_bytes"] = files.size(temporary)
        files.write_json(job.counts_path, dict(counts))
    return counts
