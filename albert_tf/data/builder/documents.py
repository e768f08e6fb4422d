"""Tokenised documents as arrays, and as the frames of shards on disk.

Glossary: N tokens, S sentences, D parts of documents.

A document longer than `PART_TOKENS` is dealt in parts, so that shards are
even and no shard must hold a whole book. A shard on disk is a row of frames,
each [D, S, N] int64, then the arrays of `Documents` in the order of
`tobytes`, word starts as one bit for each token.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from albert_tf.base import files

# About a hundred examples of length 512.
PART_TOKENS = 1 << 15


@dataclasses.dataclass(frozen=True)
class Documents:
    """Parts of tokenised documents, end to end."""

    ids: np.ndarray  # [N] `records.metadata.id_type`
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

    def keep(self, wanted: np.ndarray) -> "Documents":
        """Return the tokens where `wanted` [N] is true, in the same order.

        Sentences and parts without a token left are removed.
        """
        sentence = np.repeat(np.arange(len(self.sentences)), self.sentences)
        sizes = np.bincount(sentence[wanted], minlength=len(self.sentences))
        part = np.repeat(np.arange(len(self.parts)), self.parts)
        parts = np.bincount(part[sizes > 0], minlength=len(self.parts))
        return Documents(
            self.ids[wanted],
            self.starts[wanted],
            sizes[sizes > 0].astype(np.int32),
            parts[parts > 0].astype(np.int32),
            self.hashes[parts > 0],
            self.keys[parts > 0],
        )

    def first_of_each(self) -> np.ndarray:
        """Return which parts are no copies of one before, [D] bool."""
        first = np.zeros(len(self.keys), bool)
        first[np.unique(self.keys, return_index=True)[1]] = True
        return first

    def offsets(self) -> np.ndarray:
        """Return where each sentence begins, and the last one ends, [S + 1]."""
        return np.cumsum(np.append(0, self.sentences), dtype=np.int64)

    def part_ends(self) -> np.ndarray:
        """Return where each part ends among the tokens, [D]."""
        return self.offsets()[np.cumsum(self.parts)]

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


def _frames(data: bytes, id_type: np.dtype) -> Iterator[Documents]:
    """Yield the frames of a shard."""
    offset = 0

    def take(count: int, dtype: type | np.dtype) -> np.ndarray:
        nonlocal offset
        array = np.frombuffer(data, dtype, count, offset)
        offset += array.nbytes
        return array

    while offset < len(data):
        parts, sentences, tokens = take(3, np.int64).tolist()
        yield Documents(
            parts=take(parts, np.int32),
            sentences=take(sentences, np.int32),
            hashes=take(parts, np.uint64),
            keys=take(parts, np.uint64),
            starts=np.unpackbits(
                take(-(-tokens // 8), np.uint8), count=tokens
            ).view(bool),
            ids=take(tokens, id_type),
        )


def read_shard(path: str, id_type: np.dtype) -> Documents | None:
    """Return all parts of a shard; None if it has none."""
    frames = list(_frames(files.read_bytes(path), id_type))
    return concatenate(frames) if frames else None
