"""Tokenised documents as arrays, and the shards that they are dealt to.

Glossary: N tokens, S sentences, D parts of documents.

A document longer than `PART_TOKENS` is dealt in parts, so that shards are
even and no shard must hold a whole book. A shard on disk is a row of frames,
each [D, S, N] int64, then the arrays of `Documents` in the order of
`tobytes`, word starts as one bit for each token.
"""

import dataclasses
import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from albert_tf.base import files
from albert_tf.data.builder import boundaries
from albert_tf.data.builder.text_blocks import (
    Block,
    document_hash,
    read_documents,
)
from albert_tf.data.builder.text_files import ReadingConfig, split_sentences

# About a hundred examples of length 512.
PART_TOKENS = 1 << 15


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the narrowest type that holds the ids of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


@dataclasses.dataclass(frozen=True)
class Documents:
    """Parts of tokenised documents, end to end."""

    ids: np.ndarray  # [N] uint16 or int32
    starts: np.ndarray  # [N] bool, whether a token begins a word
    sentences: np.ndarray  # [S] int32, the tokens of each sentence
    parts: np.ndarray  # [D] int32, the sentences of each part
    hashes: np.ndarray  # [D] uint64, equal for the parts of a document
    keys: np.ndarray  # [D] uint64, equal for parts of equal text

    def select(self, wanted: np.ndarray) -> "Documents":
        """Return the parts where `wanted` [D] is true, in the same order."""
        of_sentence = np.repeat(wanted, self.parts)
        of_token = np.repeat(of_sentence, self.sentences)
        return Documents(
            self.ids[of_token],
            self.starts[of_token],
            self.sentences[of_sentence],
            self.parts[wanted],
            self.hashes[wanted],
            self.keys[wanted],
        )

    def tobytes(self) -> bytes:
        """Return the documents as one frame of a shard."""
        sizes = (len(self.parts), len(self.sentences), len(self.ids))
        header = np.array(sizes, np.int64)
        arrays = (header, self.parts, self.sentences, self.hashes, self.keys)
        arrays += (np.packbits(self.starts), self.ids)
        return b"".join(array.tobytes() for array in arrays)


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
            keys=take(parts, np.dtype(np.uint64)),
            starts=np.unpackbits(
                take(-(-tokens // 8), np.dtype(np.uint8)), count=tokens
            ).view(bool),
            ids=take(tokens, dtype),
        )


def first_of_each(keys: np.ndarray) -> np.ndarray:
    """Return which keys [D] are there for the first time, [D] bool."""
    first = np.zeros(len(keys), bool)
    first[np.unique(keys, return_index=True)[1]] = True
    return first


def read_shard(
    path: str,
    dtype: np.dtype,
    wanted: Callable[[np.ndarray], np.ndarray],
    distinct: bool,
) -> Documents:
    """Read the parts of a shard.

    Args:
      path: the shard.
      dtype: of the ids.
      wanted: from hashes to which of the parts to read.
      distinct: whether parts of equal text are read once. They are all in
        one shard, because they are dealt by their text.
    """
    data = files.read_bytes(path)
    documents = concatenate(
        [frame.select(wanted(frame.hashes)) for frame in _frames(data, dtype)]
    )
    if distinct:
        documents = documents.select(first_of_each(documents.keys))
    return documents


def part_sizes(
    path: str, dtype: np.dtype
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield hashes, keys and tokens of the parts of each frame."""
    with files.opened(path, "rb") as file:

        def take(count: int, dtype: type) -> np.ndarray:
            size = int(count) * np.dtype(dtype).itemsize
            return np.frombuffer(file.read(size), dtype)

        while len(header := take(3, np.int64)):
            parts, sentences, tokens = header.tolist()
            ends = np.cumsum(take(parts, np.int32))
            sizes = take(sentences, np.int32)
            hashes, keys = take(parts, np.uint64), take(parts, np.uint64)
            skipped = -(-tokens // 8) + tokens * dtype.itemsize
            file.seek(file.tell() + skipped)
            through = np.cumsum(sizes, dtype=np.int64)[ends - 1]
            yield hashes, keys, np.diff(through, prepend=0)


def _shard_of(document: int, piece: int, part: int, num_shards: int) -> int:
    """Deal a part to a shard, independently of everything around it."""
    packed = struct.pack("<QQQ", document, piece, part)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    return int.from_bytes(digest, "little") % num_shards


@dataclasses.dataclass(frozen=True)
class TextJob:
    """What a process needs to tokenise and deal any block.

    Attributes:
      tokenizer_dir: a folder with the tokenizer's files.
      fingerprint: of the tokenizer.
      seed: what documents are dealt by.
      reading: what is read of the text.
      num_shards: the number of shards.
    """

    tokenizer_dir: str
    fingerprint: str
    seed: int
    reading: ReadingConfig
    num_shards: int


@dataclasses.dataclass
class _Dealt:
    """Parts in the order of the text; a part of shard -1 is left out."""

    parts: list[int] = dataclasses.field(default_factory=list)
    hashes: list[int] = dataclasses.field(default_factory=list)
    keys: list[int] = dataclasses.field(default_factory=list)
    shards: list[int] = dataclasses.field(default_factory=list)

    def add(
        self, sizes: np.ndarray, name: int, piece: int, key: int, shards: int
    ) -> None:
        """Cut a document, or a piece of one, into parts.

        Args:
          sizes: [S] tokens of its sentences, none 0.
          name: the document's hash.
          piece: which piece of the document it is.
          key: the hash of its text.
          shards: the number of shards; 0 leaves the document out.
        """
        lengths = np.bincount((np.cumsum(sizes) - sizes) // PART_TOKENS)
        for part, length in enumerate(lengths[lengths > 0]):
            self.parts.append(length)
            self.hashes.append(name)
            self.keys.append((key + part) % (1 << 64))
            shard = _shard_of(name, piece, part, shards) if shards else -1
            self.shards.append(shard)


def _deal(
    job: TextJob,
    block: Block,
    documents: list[list[str]],
    sizes: list[np.ndarray],
    counts: Counter,
) -> _Dealt:
    """Deal the documents of a block.

    Args:
      job: how.
      block: where the documents come from.
      documents: their lines.
      sizes: for each the tokens of its sentences; those without a token
        belong to no part.
      counts: what is counted.
    """
    dealt = _Dealt()
    for index, (lines, tokens) in enumerate(zip(documents, sizes, strict=True)):
        key = document_hash(lines, job.seed)
        goes_on = index == 0 and block.document is not None
        # A document that is cut over blocks is never short.
        short = not goes_on and (
            0 < tokens.sum() < job.reading.min_document_tokens
        )
        counts["short_documents"] += int(short)
        dealt.add(
            tokens[tokens > 0],
            block.document if goes_on else key,
            block.piece if goes_on else 0,
            key,
            0 if short else job.num_shards,
        )
    return dealt


def tokenize_block(
    job: TextJob, block: Block, tokenizer
) -> tuple[dict[int, bytes], Counter]:
    """Tokenise a block and deal it: shard -> frame, and what was counted.

    Sentences without tokens, such as lone control characters, are dropped.
    """
    counts: Counter = Counter()
    documents = read_documents(block, job.reading, counts)
    split = [
        list(split_sentences(lines, job.reading.split_sentences))
        for lines in documents
    ]
    lines = [line for document in split for line in document]
    if not lines:
        return {}, counts
    ids, sizes, starts = boundaries.encode(
        tokenizer, job.reading.word_boundaries, lines
    )
    ends = np.cumsum([len(document) for document in split])
    dealt = _deal(job, block, documents, np.split(sizes, ends[:-1]), counts)
    goes_on = block.document is not None and bool(documents[0])
    counts["documents"] = sum(map(bool, documents)) - goes_on
    counts["sentences"] = int(np.count_nonzero(sizes))
    counts["empty_sentences"] = len(lines) - counts["sentences"]
    counts["tokens"] = len(ids)
    counts["unknown_tokens"] = int(np.sum(ids == tokenizer.unk_id))
    whole = Documents(
        ids.astype(token_dtype(tokenizer.vocab_size)),
        starts,
        sizes[sizes > 0],
        np.array(dealt.parts, np.int32),
        np.array(dealt.hashes, np.uint64),
        np.array(dealt.keys, np.uint64),
    )
    shards = np.array(dealt.shards, np.int64)
    frames = {
        int(shard): whole.select(shards == shard).tobytes()
        for shard in np.unique(shards[shards >= 0])
    }
    return frames, counts
