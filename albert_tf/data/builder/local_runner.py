"""The builder's stages in the processes of one machine."""

import functools
from collections import Counter
from collections.abc import Iterator

from albert_tf.base.processes import available, ordered_map
from albert_tf.base.progress import Progress
from albert_tf.data.builder import corpus_digest
from albert_tf.data.builder.held_out import HeldOut, add_up, hold_out, measure
from albert_tf.data.builder.recipe import Recipe
from albert_tf.data.builder.record_files import FileJob, make_file
from albert_tf.data.builder.shards import ShardStore, fill


class LocalRunner:
    """Runs the stages; `BeamRunner` has the same methods.

    Args:
      num_processes: that work; all processors by default.
    """

    def __init__(self, num_processes: int | None):
        self.num_processes = num_processes or available()

    def corpus_hash(self, paths: list[str], folder: str) -> str:
        """Return the hash of the text of files; see `corpus_digest`."""
        return corpus_digest.corpus_hash(paths, self.num_processes)

    def deal(
        self, recipe: Recipe, paths: list[str], folder: str
    ) -> tuple[Counter, HeldOut]:
        """Deal the text to shards in a folder, and hold documents out.

        Returns:
          what was counted in the text, and what is held out.
        """
        store = ShardStore(folder, recipe.build.num_shards)
        fill(store, paths, recipe, self.num_processes)
        work = functools.partial(measure, recipe)
        measured = ordered_map(work, enumerate(store.paths), self.num_processes)
        return store.counts, hold_out(
            recipe.build.eval_fraction, add_up(measured)
        )

    def make_files(self, jobs: list[FileJob]) -> Iterator[Counter]:
        """Yield the counts of the files in order; finished ones are kept."""
        progress, number = Progress(len(jobs), 0, "file"), 0
        for counts in ordered_map(make_file, jobs, self.num_processes):
            number += counts["records"]
            progress.advance(1, f"{number:,} records")
            yield counts
        progress.close()
