"""The first pass: text dealt to shards on a local disk, resumable.

Shards only grow. `progress.json` holds how far the text was read when they
were last complete, and their sizes then; after an interruption they are cut
back to that, and reading goes on from there.
"""

import dataclasses
import functools
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from albert_tf import files
from albert_tf.pretraining_data.documents import (
    TextJob,
    first_of_each,
    part_sizes,
    tokenize_block,
)
from albert_tf.pretraining_data.processes import ordered_map
from albert_tf.pretraining_data.reading import ReadingConfig
from albert_tf.pretraining_data.text import Block, blocks
from albert_tf.progress import Progress
from albert_tf.tokenization import load_tokenizer

# Text of one shard, and so the memory of a process.
SHARD_BYTES = 1 << 25

# Tokens kept in memory before all shards are written.
BUFFER_BYTES = 1 << 26

# Documents are held out by the first bits of their hash.
BUCKET_BITS = 16


@functools.cache
def cached_tokenizer(tokenizer_dir: str, fingerprint: str):
    """Load a tokenizer once per process."""
    return load_tokenizer(tokenizer_dir)


def deal_block(job: TextJob, block: Block) -> tuple[dict[int, bytes], Counter]:
    """Tokenise one block; see `tokenize_block`."""
    tokenizer = cached_tokenizer(job.tokenizer_dir, job.fingerprint)
    frames, counts = tokenize_block(job, block, tokenizer)
    counts["blocks"] += 1
    counts["bytes"] += len(block.data)
    return frames, counts


class ShardStore:
    """The shards of a corpus in a local folder.

    Attributes:
      counts: what was counted in the text that the shards hold.
      done: whether they hold all of it.
    """

    def __init__(self, folder: str, num_shards: int):
        self.folder, self.num_shards = folder, num_shards
        self.counts: Counter = Counter()
        self.done = False
        self._buffers: dict[int, list[bytes]] = defaultdict(list)
        self._buffered = 0
        os.makedirs(folder, exist_ok=True)
        sizes = [0] * num_shards
        if os.path.exists(self._progress):
            state = files.read_json(self._progress, "`progress.json`")
            self.counts.update(state["counts"])
            self.done, sizes = state["done"], state["sizes"]
        for shard, size in enumerate(sizes):
            with open(self.path(shard), "ab") as file:
                file.truncate(size)

    @property
    def _progress(self) -> str:
        return os.path.join(self.folder, "progress.json")

    def path(self, shard: int) -> str:
        """Return the name of a shard's file."""
        return os.path.join(self.folder, f"shard-{shard:05d}")

    def add(self, frames: dict[int, bytes], counts: Counter) -> None:
        """Add the frames of the next block."""
        self.counts.update(counts)
        for shard, frame in frames.items():
            self._buffers[shard].append(frame)
            self._buffered += len(frame)
        if self._buffered >= BUFFER_BYTES:
            self.flush()

    def flush(self, done: bool = False) -> None:
        """Write what is buffered, and then how far the text was read."""
        for shard, frames in self._buffers.items():
            with open(self.path(shard), "ab") as file:
                file.writelines(frames)
        self._buffers.clear()
        self._buffered, self.done = 0, done
        sizes = [os.path.getsize(self.path(s)) for s in range(self.num_shards)]
        state = {"done": done, "counts": dict(self.counts), "sizes": sizes}
        files.write_json(self._progress, state)


def _all_blocks(
    paths: Iterable[str], seed: int, reading: ReadingConfig
) -> Iterator[Block]:
    for path in paths:
        yield from blocks(path, seed, reading)


def fill(
    store: ShardStore, paths: list[str], job: TextJob, num_processes: int
) -> None:
    """Tokenise the text that is not yet in the shards."""
    if store.done:
        return
    text = _all_blocks(paths, job.seed, job.reading)
    skipped = store.counts["blocks"]
    for _ in range(skipped):
        next(text)
    total = sum(files.size(path) for path in paths) >> 20
    progress = Progress(max(total, 1), store.counts["bytes"] >> 20, "MB")
    work = functools.partial(deal_block, job)
    for frames, counts in ordered_map(work, text, num_processes):
        before = store.counts["bytes"] >> 20
        store.add(frames, counts)
        progress.advance(
            (store.counts["bytes"] >> 20) - before,
            f"{store.counts['tokens']:,} tokens",
        )
    progress.close()
    store.flush(done=True)


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Which documents are held out.

    Attributes:
      below: the hash buckets that are held out are those below this one.
      lowest, highest: [num_shards] the buckets of each shard's documents;
        an empty shard has lowest > highest.
      counts: what was left out because it was there before.
    """

    below: int
    lowest: np.ndarray
    highest: np.ndarray
    counts: Counter


def buckets(hashes: np.ndarray) -> np.ndarray:
    """Return the bucket of each document, by which it is held out or not."""
    return (hashes >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)


def _parts(
    path: str, dtype: np.dtype, distinct: bool, counts: Counter
) -> tuple[np.ndarray, np.ndarray]:
    """Return buckets and tokens of the parts of a shard that are used."""
    frames = list(part_sizes(path, dtype))
    if not frames:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    hashes, keys, sizes = map(np.concatenate, zip(*frames, strict=True))
    if distinct:
        first = first_of_each(keys)
        # The first part of a document has the document's hash for its key.
        again = ~first & (keys == hashes)
        counts["duplicate_documents"] += int(np.sum(again))
        counts["duplicate_tokens"] += int(np.sum(sizes[~first]))
        hashes, sizes = hashes[first], sizes[first]
    return buckets(hashes), sizes


def hold_out(
    store: ShardStore, dtype: np.dtype, fraction: float, distinct: bool
) -> HeldOut:
    """Hold out documents with at least a fraction of all tokens.

    At least one document stays on each side; `below` is 0 where that cannot
    be, or where `fraction` is 0. `distinct` as in `read_shard`.
    """
    tokens = np.zeros(1 << BUCKET_BITS, np.int64)
    lowest = np.full(store.num_shards, 1 << BUCKET_BITS)
    highest = np.full(store.num_shards, -1)
    counts: Counter = Counter()
    for shard in range(store.num_shards):
        found, sizes = _parts(store.path(shard), dtype, distinct, counts)
        np.add.at(tokens, found, sizes)
        lowest[shard] = found.min(initial=lowest[shard])
        highest[shard] = found.max(initial=-1)
    occupied = np.flatnonzero(tokens)
    if fraction == 0 or len(occupied) < 2:
        return HeldOut(0, lowest, highest, counts)
    reached = np.cumsum(tokens) >= fraction * tokens.sum()
    below = int(np.clip(np.argmax(reached), occupied[0], occupied[-2])) + 1
    return HeldOut(below, lowest, highest, counts)
