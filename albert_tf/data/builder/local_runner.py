"""A runner for the builder's stages in processes on this machine."""

import functools
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from albert_tf.base.console import Progress
from albert_tf.base.processes import Workers
from albert_tf.data.builder import build_folder
from albert_tf.data.builder.build_settings import BuildSpec
from albert_tf.data.builder.held_out import (
    HeldOut,
    add_up,
    divide,
    hold_out,
    measure,
    measure_parts,
)
from albert_tf.data.builder.passes import FileJob, deal_block, make_file
from albert_tf.data.builder.shards import ShardStore
from albert_tf.data.builder.text_blocks import blocks, estimated_bytes
from albert_tf.data.file_kinds import BadData


def fill(
    store: ShardStore, paths: list[str], recipe: BuildSpec, workers: Workers
) -> None:
    """Tokenize the remaining text, and add it to the shards."""
    if store.done:
        return
    seed, reading = recipe.build.random_seed, recipe.reading
    text = chain.from_iterable(blocks(path, seed, reading) for path in paths)
    unread = islice(text, store.counts["blocks"], None)
    total = estimated_bytes(paths) >> 20
    progress = Progress(max(total, 1), store.counts["bytes"] >> 20, "MB")
    work = functools.partial(deal_block, recipe)
    try:
        for frames, counts in workers.map(work, unread):
            before = store.counts["bytes"] >> 20
            store.add(frames, counts)
            read = store.counts["bytes"] >> 20
            if read > progress.total:  # the estimate was too low
                progress.total = read + read // 10 + 1
            progress.advance(
                read - before, f"{store.counts['tokens']:,} tokens"
            )
    except BadData:  # a run that skips this item can continue from here
        if store.counts:
            store.flush()
        raise
    progress.close()
    store.flush(done=True)


class LocalRunner:
    """A one-machine runner for the stages, with the methods of `BeamRunner`.

    Args:
      workers: the worker processes.
    """

    def __init__(self, workers: Workers):
        self.workers = workers

    def corpus_hash(self, paths: list[str], folder: str) -> str:
        """Return the hash of the text; `folder` is not used."""
        return build_folder.corpus_hash(paths, self.workers.number)

    def deal(
        self, recipe: BuildSpec, paths: list[str], folder: str
    ) -> tuple[Counter, HeldOut]:
        """Distribute the text to shards and choose the held-out text.

        Returns:
          The counts of the text, and the choice of held-out text.
        """
        store = ShardStore(folder, recipe.build.num_shards)
        fill(store, paths, recipe, self.workers)
        work = functools.partial(measure, recipe)
        measured = self.workers.map(work, enumerate(store.paths))
        held_out = hold_out(recipe.build.eval_fraction, add_up(measured))
        work = functools.partial(measure_parts, recipe, held_out=held_out)
        parts = self.workers.map(work, enumerate(store.paths))
        return store.counts, divide(recipe, parts, held_out)

    def make_files(self, jobs: list[FileJob]) -> Iterator[Counter]:
        """Write unfinished files; yield the counts of all files in order."""
        progress, number = Progress(len(jobs), 0, "file"), 0
        for counts in self.workers.map(make_file, jobs):
            number += counts["records"]
            progress.advance(1, f"{number:,} records")
            yield counts
        progress.close()
