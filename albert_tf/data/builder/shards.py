"""The first pass: text dealt to shards on a local disk, resumable.

Shards only grow. `progress.json` holds how far the text was read when they
were last complete, and their sizes then; after an interruption they are cut
back to that, and reading goes on from there.
"""

import functools
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from albert_tf.base import files
from albert_tf.base.processes import ordered_map
from albert_tf.base.progress import Progress
from albert_tf.data.builder.documents import TextJob, tokenize_block
from albert_tf.data.builder.text_blocks import Block, blocks
from albert_tf.data.builder.text_files import ReadingConfig
from albert_tf.text.tokenizers import load_tokenizer

# Text of one shard, and so the memory of a process.
SHARD_BYTES = 1 << 25

# Tokens kept in memory before all shards are written.
BUFFER_BYTES = 1 << 26


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
