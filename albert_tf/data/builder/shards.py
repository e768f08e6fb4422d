"""Shards of tokenised text on a local disk, resumable.

Shards only grow. `progress.json` holds how far the text was read when they
were last complete, and their sizes then; after an interruption they are cut
back to that, and reading goes on from there; where one is shorter, it begins
anew.
"""

import functools
import os
from collections import Counter, defaultdict
from itertools import chain, islice

from albert_tf.base import files
from albert_tf.base.processes import Workers
from albert_tf.base.progress import Progress
from albert_tf.data.builder.dealing import deal_block
from albert_tf.data.builder.recipe import Recipe
from albert_tf.data.builder.text_blocks import blocks
from albert_tf.data.builder.text_files import merge
from albert_tf.data.file_kinds import BadData

# Tokens kept in memory before all shards are written.
BUFFER_BYTES = 1 << 26

PROGRESS_FILE = "progress.json"


def shard_path(folder: str, shard: int) -> str:
    """Return the name of a shard's file."""
    return files.join(folder, f"shard-{shard:05d}")


class ShardStore:
    """The shards of a corpus in a local folder.

    Attributes:
      counts: what was counted in the text that the shards hold.
      done: whether they hold all of it.
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
            if self._holds(state["sizes"]):
                self.counts.update(state["counts"])
                self.done, sizes = state["done"], state["sizes"]
        for path, size in zip(self.paths, sizes, strict=True):
            with open(path, "ab") as file:
                file.truncate(size)

    def _holds(self, sizes: list[int]) -> bool:
        """Return whether no file was lost, or cut off, since it was noted."""
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
        """Write what is buffered, and then how far the text was read."""
        for shard, frames in self._buffers.items():
            with open(self.paths[shard], "ab") as file:
                file.writelines(frames)
        self._buffers.clear()
        self._buffered, self.done = 0, done
        sizes = list(map(os.path.getsize, self.paths))
        state = {"done": done, "counts": dict(self.counts), "sizes": sizes}
        files.write_json(self._progress, state)


def fill(
    store: ShardStore, paths: list[str], recipe: Recipe, workers: Workers
) -> None:
    """Tokenise the text that is not yet in the shards."""
    if store.done:
        return
    seed, reading = recipe.build.random_seed, recipe.reading
    text = chain.from_iterable(blocks(path, seed, reading) for path in paths)
    unread = islice(text, store.counts["blocks"], None)
    total = sum(files.size(path) for path in paths) >> 20
    progress = Progress(max(total, 1), store.counts["bytes"] >> 20, "MB")
    work = functools.partial(deal_block, recipe)
    try:
        for frames, counts in workers.map(work, unread):
            before = store.counts["bytes"] >> 20
            store.add(frames, counts)
            progress.advance(
                (store.counts["bytes"] >> 20) - before,
                f"{store.counts['tokens']:,} tokens",
            )
    except BadData:  # a run that skips it can continue from here
        if store.counts:
            store.flush()
        raise
    progress.close()
    store.flush(done=True)
