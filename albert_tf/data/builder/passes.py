"""The two passes over text, from a block of text to a file of records.

The first pass tokenizes each block of text and distributes it to shards. The
second pass writes each file of records from one shard.
"""

import dataclasses
import functools
import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from albert_tf.base import files
from albert_tf.base.processes import without_collection
from albert_tf.data import masking
from albert_tf.data.builder import (
    boundaries,
    next_sentence_pairs,
    pairs,
    released,
)
from albert_tf.data.builder.build_settings import BuildSpec
from albert_tf.data.builder.held_out import Border, HeldOut, split_documents
from albert_tf.data.builder.shards import (
    PART_TOKENS,
    Documents,
    read_shard,
    shard_path,
)
from albert_tf.data.builder.statistics import count_instances, count_masks
from albert_tf.data.builder.text_blocks import document_hash, read_documents
from albert_tf.data.builder.text_formats import Block, split_sentences
from albert_tf.data.layout import Pairs, lay_out
from albert_tf.data.masking import Draws
from albert_tf.data.records.metadata import EVAL, TRAIN
from albert_tf.data.records.tfrecord import encode, encode_unmasked, write_once

# Letters are counted in one of every `SAMPLED` lines.
SAMPLED = 16

# A part: its number of sentences, its hash and key (see `Documents`), and its
# shard. A part with shard -1 is omitted.
PART = np.dtype(
    [("sentences", "i4"), ("hash", "u8"), ("key", "u8"), ("shard", "i8")]
)


def _shard_of(document: int, piece: int, part: int, num_shards: int) -> int:
    """Choose a part's shard, independently of all other documents."""
    packed = struct.pack("<QQQ", document, piece, part)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    return int.from_bytes(digest, "little") % num_shards


def _parts(
    recipe: BuildSpec, sizes: np.ndarray, document: int, piece: int, key: int
) -> Iterator[tuple[int, int, int, int]]:
    """Cut a document, or a piece of one, into parts; yield a `PART` for each.

    Args:
      recipe: the build's settings, including the number of shards.
      sizes: [S], the tokens per sentence, all positive.
      document: the document's hash.
      piece: the index of the piece in the document.
      key: the hash of the piece's text.
    """
    lengths = np.bincount((np.cumsum(sizes) - sizes) // PART_TOKENS)
    for part, length in enumerate(lengths[lengths > 0]):
        shard = _shard_of(document, piece, part, recipe.build.num_shards)
        yield length, document, (key + part) % (1 << 64), shard


def _deal(
    recipe: BuildSpec,
    block: Block,
    documents: list[list[str]],
    sizes: list[np.ndarray],
    counts: Counter,
) -> np.ndarray:
    """Assign the documents of a block to shards; return a `PART` array.

    Args:
      recipe: the build's settings.
      block: the block that contains the documents.
      documents: the lines of each document.
      sizes: the number of tokens in each sentence of each document; sentences
        without tokens do not belong to any part.
      counts: the counts, to which the number of short documents is added.
    """
    rows = []
    for index, (lines, tokens) in enumerate(zip(documents, sizes, strict=True)):
        key = document_hash(lines, recipe.build.random_seed)
        document, piece = key, 0
        # A document that spans several blocks is never short.
        short = 0 < tokens.sum() < recipe.reading.min_document_tokens
        if index == 0 and block.document is not None:
            document, piece, short = block.document, block.piece, False
        parts = _parts(recipe, tokens[tokens > 0], document, piece, key)
        counts["short_documents"] += int(short)
        rows += [(*part[:3], -1) if short else part for part in parts]
    return np.array(rows, PART)


def _count_letters(recipe: BuildSpec, lines: list[str]) -> Counter:
    """Count the letters in a sample of lines, for warnings about settings."""
    tokenizer, rule = recipe.tokenizer, recipe.reading.word_boundaries
    config = tokenizer.config
    # WordPiece strips accents only if it lower-cases text.
    strip = config.strip_accents and (
        tokenizer.kind == "sentencepiece" or config.do_lower_case
    )
    letters = boundaries.Letters(tokenizer.has_marks, strip)
    for line in lines[::SAMPLED]:
        letters.add(line)
    counts = letters.counts()
    english = (rule or boundaries.RELEASED[tokenizer.kind]) == "english"
    return Counter(
        letters=counts["letters"],
        dropped_marks=strip * counts["marked"],
        beyond_rule=english * counts["beyond_english"],
    )


def _tokenize(
    recipe: BuildSpec, block: Block, counts: Counter
) -> tuple[Documents, np.ndarray]:
    """Return the documents of a block, and the shard of each part."""
    documents = read_documents(block, recipe.reading, counts)
    split = [
        list(split_sentences(lines, recipe.reading.split_sentences))
        for lines in documents
    ]
    lines = [line for document in split for line in document]
    ids, sizes, starts = boundaries.encode(
        recipe.tokenizer, recipe.reading.word_boundaries, lines
    )
    ends = np.cumsum([len(document) for document in split])
    parts = _deal(recipe, block, documents, np.split(sizes, ends[:-1]), counts)
    continues = block.document is not None and bool(documents[0])
    counts.update(_count_letters(recipe, lines))
    counts["documents"] = sum(map(bool, documents)) - continues
    counts["sentences"] = int(np.count_nonzero(sizes))
    counts["sentences_without_tokens"] = len(lines) - counts["sentences"]
    counts["tokens"] = len(ids)
    counts["unknown_tokens"] = int(np.sum(ids == recipe.tokenizer.unk_id))
    encoded = Documents(
        ids.astype(recipe.id_type),
        starts,
        sizes[sizes > 0],
        parts["sentences"],
        parts["hash"],
        parts["key"],
    )
    return encoded, parts["shard"]


def deal_block(
    recipe: BuildSpec, block: Block
) -> tuple[dict[int, bytes], Counter]:
    """Tokenize a block; return {shard: frame} and counts.

    Sentences without tokens, such as lone control characters, are dropped.
    """
    counts = Counter(blocks=1, bytes=len(block.data))
    with without_collection():  # saves a tenth of the time
        documents, shards = _tokenize(recipe, block, counts)
    frames = {
        int(shard): documents.select(shards == shard).tobytes()
        for shard in np.unique(shards[shards >= 0])
    }
    return frames, counts


# The second pass.

# Number of examples to mask and encode together; does not affect the records.
BATCH = 1024

SPLITS = (TRAIN, EVAL)


@dataclasses.dataclass(frozen=True)
class FileJob:
    """A job that writes one file of records.

    Attributes:
      recipe: the settings and the tokenizer.
      shard_path: the shard to read.
      shard, duplicate: the indices of the shard and of the copy. Together with
        the seed and the split, they determine the random numbers.
      split: `TRAIN` or `EVAL`.
      border: the end of the held-out text.
      path: the file to write.
      counts_path: the file of counts; the job is done if both files exist.
    """

    recipe: BuildSpec
    shard_path: str
    shard: int
    duplicate: int
    split: str
    border: Border
    path: str
    counts_path: str

    def rng(self) -> np.random.Generator:
        """Return the random generator for this file."""
        key = (SPLITS.index(self.split), self.shard, self.duplicate)
        seed = np.random.SeedSequence(
            self.recipe.build.random_seed, spawn_key=key
        )
        return np.random.Generator(np.random.Philox(seed))

    @property
    def dynamic(self) -> bool:
        """Whether the records are masked while they are read."""
        masked = self.recipe.masking.masking
        return self.split == TRAIN and masked == masking.DYNAMIC


def file_jobs(
    recipe: BuildSpec, held_out: HeldOut, scratch: str
) -> list[FileJob]:
    """Return the jobs: first the evaluation files, then the training files."""
    output_dir = recipe.build.output_dir
    times = {EVAL: 1, TRAIN: recipe.build.dupe_factor}
    jobs = []
    for split, shards in held_out.shards.items():
        todo = [(d, s) for d in range(times[split]) for s in shards]
        for index, (duplicate, shard) in enumerate(todo):
            name = f"{split}-{index:05d}-of-{len(todo):05d}"
            job = FileJob(
                recipe,
                shard_path(scratch, shard),
                shard,
                duplicate,
                split,
                held_out.border,
                files.join(output_dir, f"{name}.tfrecord"),
                files.join(scratch, f"{name}.json"),
            )
            jobs.append(job)
    return jobs


def _read_documents(job: FileJob) -> Documents:
    """Return the documents of the job's split."""
    documents = read_shard(job.shard_path, job.recipe.id_type)
    documents = split_documents(job.recipe, documents, job.border, job.split)
    if job.recipe.reading.drop_duplicates:
        documents = documents.select(documents.first_of_each())
    return documents


def _pair_maker(config: pairs.PairsConfig) -> Callable:
    """Return the function that creates pairs for the given settings."""
    if config.compat == "google":
        return released.make_pairs
    if config.random_next_sentence:
        return next_sentence_pairs.make_pairs
    return pairs.make_pairs


def _lay_out(
    job: FileJob, documents: Documents, made: Pairs
) -> Iterator[tuple[int, masking.Instances]]:
    """Yield the index of each batch's first pair, and the laid-out batch."""
    length = job.recipe.pairs.max_seq_length
    for first in range(0, len(made), BATCH):
        batch = made.take(slice(first, first + BATCH))
        text = documents.ids, documents.starts
        yield first, lay_out(batch, *text, length, job.recipe.tokenizer)


def _records(job: FileJob, counts: Counter) -> Iterator[bytes]:
    """Yield the records of a file, and update the counts.

    Dynamic records are written without masks; only a copy of the first batch is
    masked, to count masks.
    """
    settings, tokenizer = job.recipe.pairs, job.recipe.tokenizer
    rng, documents = job.rng(), _read_documents(job)
    if job.duplicate == 0:
        counts["tokens"] = len(documents.ids)
    breaks = boundaries.sentence_breaks(documents.ids, tokenizer)
    make_pairs = _pair_maker(settings)
    made, chunk_counts = make_pairs(documents, breaks, settings, rng)
    counts.update(chunk_counts)
    google, config = settings.compat == "google", job.recipe.masking
    cover = released.choose_masked if google else masking.choose_masked
    words = masking.Words.of(tokenizer, google)
    max_masked = config.max_masked(settings.max_seq_length)
    seed = int(rng.integers(2**63))
    for first, instances in _lay_out(job, documents, made):
        counts.update(count_instances(instances))
        if first == 0 or not job.dynamic:
            positions = first + np.arange(len(instances.lengths))
            draws = Draws(seed, positions)
            masked = masking.mask(
                instances, max_masked, config, words, draws, cover
            )
            counts.update(count_masks(instances, masked))
        if job.dynamic:
            yield from encode_unmasked(instances, job.recipe.id_type)
        else:
            yield from encode(instances, masked)


def make_file(job: FileJob) -> Counter:
    """Write a file of records unless it is finished; return its counts."""
    records = functools.partial(_records, job)
    return write_once(job.path, job.counts_path, records)
