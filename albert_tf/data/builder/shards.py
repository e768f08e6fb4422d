"""Store tokenized documents in shards on a local disk.

A shard is a sequence of frames. A frame contains the shard's parts of the
documents in one block of text.

Shards only grow. `progress.json` stores the position in the text, and the sizes
of the shards, at the last flush. After an interruption, shards are truncated to
these sizes and reading resumes from that position; if a shard is shorter than
recorded, reading starts over.
"""

import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from albert_tf.base import files
from albert_tf.data.builder.text_formats import merge

# Tokens per part of a document, enough for 64 examples of 512 tokens.
PART_TOKENS = 1 << 15


@dataclasses.dataclass(frozen=True)
class Documents:
    """Concatenated parts of tokenized documents."""

    ids: np.ndarray  # [N] `layout.id_type`
    starts: np.ndarray  # [N] bool, whether a token begins a word
    sentences: np.ndarray  # [S] int32, number of tokens in each sentence
    parts: np.ndarray  # [D] int32, number of sentences in each part
    hashes: np.ndarray  # [D] uint64, equal for the parts of a document
    keys: np.ndarray  # [D] uint64, equal for parts of equal text

    def select(self, mask: np.ndarray) -> "Documents":
        """Return the parts where `mask` [D] is true, in the same order."""
        of_sentence = np.repeat(mask, self.parts)
        of_token = np.repeat(of_sentence, self.sentences)
        return Documents(
            self.ids[of_token],
            self.starts[of_token],
            self.sentences[of_sentence],
            self.parts[mask],
            self.hashes[mask],
            self.keys[mask],
        )

    def keep(self, mask: np.ndarray) -> "Documents":
        """Return the tokens for which `mask` [N] is true, in the same order.

        Sentences and parts with no tokens left are removed.
        """
        sentence = np.repeat(np.arange(len(self.sentences)), self.sentences)
        sizes = np.bincount(sentence[mask], minlength=len(self.sentences))
        part = np.repeat(np.arange(len(self.parts)), self.parts)
        parts = np.bincount(part[sizes > 0], minlength=len(self.parts))
        return Documents(
            self.ids[mask],
            self.starts[mask],
            sizes[sizes > 0].astype(np.int32),
            parts[parts > 0].astype(np.int32),
            self.hashes[parts > 0],
            self.keys[parts > 0],
        )

    def first_of_each(self) -> np.ndarray:
        """Return bool [D], true for parts that differ from all earlier ones."""
        first = np.zeros(len(self.keys), bool)
        first[np.unique(self.keys, return_index=True)[1]] = True
        return first

    def offsets(self) -> np.ndarray:
        """Return each sentence's start and the last sentence's end, [S + 1]."""
        return np.cumsum(np.append(0, self.sentences), dtype=np.int64)

    def part_ends(self) -> np.ndarray:
        """Return the token index [D] at which each part ends."""
        return self.offsets()[np.cumsum(self.parts)]

    def tobytes(self) -> bytes:
        """Return the documents as the bytes of one frame of a shard."""
        sizes = (len(self.parts), len(self.sentences), len(self.ids))
        header = np.array(sizes, np.int64)
        arrays = (header, self.parts, self.sentences, self.hashes, self.keys)
        arrays += (np.packbits(self.starts), self.ids)
        return b"".join(array.tobytes() for array in arrays)


def concatenate(items: list[Documents]) -> Documents:
    """Concatenate documents; `items` must not be empty."""
    columns = zip(*(vars(item).values() for item in items), strict=True)
    return Documents(*map(np.concatenate, columns))


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
    """Return all parts in a shard, or None if the shard is empty."""
    frames = list(_frames(files.read_bytes(path), id_type))
    return concatenate(frames) if frames else None


# Shards are written when this many bytes are buffered.
BUFFER_BYTES = 1 << 26

PROGRESS_FILE = "progress.json"


def shard_path(folder: str, shard: int) -> str:
    """Return the path of a shard's file."""
    return files.join(folder, f"shard-{shard:05d}")


class ShardStore:
    """The shards of a corpus in a local folder.

    Attributes:
      counts: the counts of the text that the shards contain.
      done: whether the shards contain the entire text.
    """

    def __init__(self, folder: str, num_shards: int):
        self.paths = [shard_path(folder, s) for s in range(num_shards)]
        self.counts: Counter = Counter()
        self.done = False
        self._progress = os.path.join(folder, PROGRESS_FILE)
        self._buffers: dict[int, list[bytes]] = defaultdict(list)
        self._buffered = 0
        os.makedirs(folder, exist_ok=True)
        sizes = [0] * num_shards
        if os.path.exists(self._progress):
            state = files.read_json(self._progress, "`progress.json`")
            if self._has_recorded_sizes(state["sizes"]):
                self.counts.update(state["counts"])
                self.done, sizes = state["done"], state["sizes"]
        for path, size in zip(self.paths, sizes, strict=True):
            with open(path, "ab") as file:
                file.truncate(size)

    def _has_recorded_sizes(self, sizes: list[int]) -> bool:
        """Return whether each file exists with at least its recorded size."""
        return all(
            os.path.exists(path) and os.path.getsize(path) >= size
            for path, size in zip(self.paths, sizes, strict=True)
        )

    def add(self, frames: dict[int, bytes], counts: Counter) -> None:
        """Add the frames of the next block."""
        merge(self.counts, counts)
        for shard, frame in frames.items():
            self._buffers[shard].append(frame)
            self._buffered += len(frame)
        if self._buffered >= BUFFER_BYTES:
            self.flush()

    def flush(self, done: bool = False) -> None:
        """Write the buffers, then the progress of reading."""
        for shard, frames in self._buffers.items():
            with open(self.paths[shard], "ab") as file:
                file.writelines(frames)
        self._buffers.clear()
        self._buffered, self.done = 0, done
        sizes = list(map(os.path.getsize, self.paths))
        state = {"done": done, "counts": dict(self.counts), "sizes": sizes}
        files.write_json(self._progress, state)
