"""Tokenised documents as arrays, and the shards that they are dealt to.

Glossary: N tokens, S sentences, D parts of documents.

A document longer than `PART_TOKENS` is dealt in parts, so that shards are
even and no shard must hold a whole book. A shard on disk is a row of frames,
each [D, S, N] int64, then the arrays of `Documents` one after the other.
"""

import dataclasses
import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from albert_tf.pretraining_data.text import (
    Block,
    document_hash,
    read_documents,
)

# About a hundred examples of length 512.
PART_TOKENS = 1 << 15


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the narrowest type that holds the ids of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


@dataclasses.dataclass(frozen=True)
class Documents:
    """Parts of tokenised documents, end to end."""

    ids: np.ndarray  # [N] uint16 or int32
    sentences: np.ndarray  # [S] int32, the tokens of each sentence
    parts: np.ndarray  # [D] int32, the sentences of each part
    hashes: np.ndarray  # [D] uint64, equal for the parts of a document

    def select(self, wanted: np.ndarray) -> "Documents":
        """Return the parts where `wanted` [D] is true, in the same order."""
        of_sentence = np.repeat(wanted, self.parts)
        of_token = np.repeat(of_sentence, self.sentences)
        return Documents(
            self.ids[of_token],
            self.sentences[of_sentence],
            self.parts[wanted],
            self.hashes[wanted],
        )

    def tobytes(self) -> bytes:
        """Return the documents as one frame of a shard."""
        sizes = (len(self.parts), len(self.sentences), len(self.ids))
        arrays = (self.parts, self.sentences, self.hashes, self.ids)
        header = np.array(sizes, np.int64).tobytes()
        return header + b"".join(array.tobytes() for array in arrays)


def concatenate(items: list[Documents]) -> Documents:
    """Put documents end to end; `items` must not be empty."""
    fields = [field.name for field in dataclasses.fields(Documents)]
    return Documents(
        *(np.concatenate([getattr(d, name) for d in items]) for name in fields)
    )


def _frames(data: bytes, dtype: np.dtype) -> Iterator[Documents]:
    """Yield the frames of a shard."""
    offset = 0

    def take(count: int, dtype: np.dtype) -> np.ndarray:
        nonlocal offset
        array = np.frombuffer(data, dtype, count, offset)
        offset += array.nbytes
        return array

    while offset < len(data):
        parts, sentences, tokens = take(3, np.dtype(np.int64))
        yield Documents(
            parts=take(parts, np.dtype(np.int32)),
            sentences=take(sentences, np.dtype(np.int32)),
            hashes=take(parts, np.dtype(np.uint64)),
            ids=take(tokens, dtype),
        )


def read_shard(
    path: str, dtype: np.dtype, wanted: Callable[[np.ndarray], np.ndarray]
) -> Documents:
    """Read the parts of a shard whose hashes `wanted` says true for."""
    with open(path, "rb") as file:
        data = file.read()
    return concatenate(
        [frame.select(wanted(frame.hashes)) for frame in _frames(data, dtype)]
    )


def part_sizes(
    path: str, dtype: np.dtype
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the hashes and the tokens of the parts of each frame."""
    with open(path, "rb") as file:
        while header := file.read(24):
            parts, sentences, tokens = np.frombuffer(header, np.int64)
            ends = np.cumsum(np.fromfile(file, np.int32, parts))
            sizes = np.fromfile(file, np.int32, sentences)
            hashes = np.fromfile(file, np.uint64, parts)
            file.seek(tokens * dtype.itemsize, 1)
            through = np.cumsum(sizes, dtype=np.int64)[ends - 1]
            yield hashes, np.diff(through, prepend=0)


def _shard_of(document: int, piece: int, part: int, num_shards: int) -> int:
    """Deal a part to a shard, independently of everything around it."""
    packed = struct.pack("<QQQ", document, piece, part)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    return int.from_bytes(digest, "little") % num_shards


def _deal(
    block: Block,
    documents: list[list[str]],
    sentences: np.ndarray,
    seed: int,
    num_shards: int,
) -> tuple[list[int], list[int], list[int]]:
    """Cut documents into parts: their sentences, hashes and shards.

    Args:
      block: where the documents come from.
      documents: their lines.
      sentences: [S] tokens of every line; lines without a token belong to
        no part.
      seed: what the hashes depend on.
      num_shards: the number of shards.
    """
    parts, hashes, shards = [], [], []
    last = 0
    for index, document in enumerate(documents):
        first, last = last, last + len(document)
        sizes = sentences[first:last]
        sizes = sizes[sizes > 0]
        goes_on = index == 0 and block.document is not None
        name = block.document if goes_on else document_hash(document, seed)
        piece = block.piece if goes_on else 0
        lengths = np.bincount((np.cumsum(sizes) - sizes) // PART_TOKENS)
        for part, length in enumerate(lengths[lengths > 0]):
            parts.append(length)
            hashes.append(name)
            shards.append(_shard_of(name, piece, part, num_shards))
    return parts, hashes, shards


def tokenize_block(
    block: Block, tokenizer, seed: int, on_bad_text: str, num_shards: int
) -> tuple[dict[int, bytes], Counter]:
    """Tokenise a block and deal it: shard -> frame, and what was counted.

    Sentences without tokens, such as lone control characters, are dropped.
    """
    counts: Counter = Counter()
    documents = read_documents(block, on_bad_text, counts)
    lines = [line for document in documents for line in document]
    if not lines:
        return {}, counts
    arrays = tokenizer.encode_batch(lines)
    sentences = np.fromiter(map(len, arrays), np.int32, len(arrays))
    ids = np.concatenate(arrays)
    parts, hashes, shards = _deal(block, documents, sentences, seed, num_shards)
    goes_on = block.document is not None and bool(documents[0])
    counts["documents"] = sum(map(bool, documents)) - goes_on
    counts["sentences"] = int(np.count_nonzero(sentences))
    counts["empty_sentences"] = len(lines) - counts["sentences"]
    counts["tokens"] = len(ids)
    counts["unknown_tokens"] = int(np.sum(ids == tokenizer.unk_id))
    whole = Documents(
        ids.astype(token_dtype(tokenizer.vocab_size)),
        sentences[sentences > 0],
        np.array(parts, np.int32),
        np.array(hashes, np.uint64),
    )
    dealt = np.array(shards, np.int64)
    frames = {
        int(shard): whole.select(dealt == shard).tobytes()
        for shard in np.unique(dealt)
    }
    return frames, counts
