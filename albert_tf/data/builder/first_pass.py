"""The first pass over one block of text: tokenise it and deal it to shards."""

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator

import numpy as np

from albert_tf.base.processes import without_collection
from albert_tf.data.builder import boundaries
from albert_tf.data.builder.boundaries import Letters
from albert_tf.data.builder.build_settings import BuildSpec
from albert_tf.data.builder.shards import PART_TOKENS, Documents
from albert_tf.data.builder.text_blocks import document_hash, read_documents
from albert_tf.data.builder.text_formats import Block, split_sentences

# Letters are counted in one line out of this number.
SAMPLED = 16

# A part: number of sentences, hash and key (see `Documents`), and shard. Parts
# with shard -1 are omitted.
PART = np.dtype(
    [("sentences", "i4"), ("hash", "u8"), ("key", "u8"), ("shard", "i8")]
)


def _shard_of(document: int, piece: int, part: int, num_shards: int) -> int:
    """Choose a part's shard, independently of all other text."""
    packed = struct.pack("<QQQ", document, piece, part)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    return int.from_bytes(digest, "little") % num_shards


def _parts(
    recipe: BuildSpec, sizes: np.ndarray, document: int, piece: int, key: int
) -> Iterator[tuple[int, int, int, int]]:
    """Cut a document, or a piece of a document, into parts; yield each `PART`.

    Args:
      recipe: contains the number of shards.
      sizes: [S], the tokens per sentence, all positive.
      document: the document's hash.
      piece: the number of the piece in the document.
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
    """Deal the documents of a block to shards; return their parts.

    Args:
      recipe: how to create records.
      block: the block that contains the documents.
      documents: the lines of each document.
      sizes: the tokens per sentence of each document; sentences without tokens
        do not belong to any part.
      counts: incremented by the number of short documents.
    """
    dealt = []
    for index, (lines, tokens) in enumerate(zip(documents, sizes, strict=True)):
        key = document_hash(lines, recipe.build.random_seed)
        document, piece = key, 0
        # A document that spans several blocks is never short.
        short = 0 < tokens.sum() < recipe.reading.min_document_tokens
        if index == 0 and block.document is not None:
            document, piece, short = block.document, block.piece, False
        parts = _parts(recipe, tokens[tokens > 0], document, piece, key)
        counts["short_documents"] += int(short)
        dealt += [(*part[:3], -1) if short else part for part in parts]
    return np.array(dealt, PART)


def _count_letters(recipe: BuildSpec, lines: list[str]) -> Counter:
    """Count the letters that settings do not fit, in a sample of lines."""
    tokenizer, rule = recipe.tokenizer, recipe.reading.word_boundaries
    config = tokenizer.config
    # WordPiece strips accents only when it lowercases.
    strip = config.strip_accents and (
        tokenizer.kind == "sentencepiece" or config.do_lower_case
    )
    letters = Letters(tokenizer.has_marks, strip)
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
    goes_on = block.document is not None and bool(documents[0])
    counts.update(_count_letters(recipe, lines))
    counts["documents"] = sum(map(bool, documents)) - goes_on
    counts["sentences"] = int(np.count_nonzero(sizes))
    counts["sentences_without_tokens"] = len(lines) - counts["sentences"]
    counts["tokens"] = len(ids)
    counts["unknown_tokens"] = int(np.sum(ids == recipe.tokenizer.unk_id))
    whole = Documents(
        ids.astype(recipe.id_type),
        starts,
        sizes[sizes > 0],
        parts["sentences"],
        parts["hash"],
        parts["key"],
    )
    return whole, parts["shard"]


def deal_block(
    recipe: BuildSpec, block: Block
) -> tuple[dict[int, bytes], Counter]:
    """Tokenise a block and deal it; return {shard: frame} and counts.

    Sentences without tokens, such as lone control characters, are dropped.
    """
    counts = Counter(blocks=1, bytes=len(block.data))
    with without_collection():  # this saves a tenth of the time
        documents, shards = _tokenize(recipe, block, counts)
    frames = {
        int(shard): documents.select(shards == shard).tobytes()
        for shard in np.unique(shards[shards >= 0])
    }
    return frames, counts
