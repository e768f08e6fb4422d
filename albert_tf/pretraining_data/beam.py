"""The builder's two passes as Apache Beam pipelines, for many machines.

Whole blocks of text and whole shards go through the functions that one
machine uses, so that the records are the same, byte for byte. Nothing but
this module imports Beam, which is an extra of the package.

Text, output and `scratch_dir` must be where all workers reach them. An
interrupted first pass begins anew; of the second, finished files are kept.
"""

import functools
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from albert_tf import files
from albert_tf.pretraining_data.documents import TextJob
from albert_tf.pretraining_data.shards import deal_block
from albert_tf.pretraining_data.text import Block, blocks
from albert_tf.pretraining_data.writing import FileJob, make_file, read_counts

# Where a block stands in the text: its file, and its number in it.
Place = tuple[int, int]

FRAMES, COUNTS = "frames", "counts"


def _options(runner: str, options: str) -> PipelineOptions:
    return PipelineOptions([f"--runner={runner}", *shlex.split(options)])


def _read(job: TextJob, item: tuple[int, str]) -> Iterator[tuple[Place, Block]]:
    """Yield the blocks of a file."""
    number, path = item
    for place, block in enumerate(blocks(path, job.seed, job.reading)):
        yield (number, place), block


def _deal(job: TextJob, item: tuple[Place, Block]) -> Iterator:
    """Yield a block's frames by shard, and what was counted."""
    place, block = item
    frames, counts = deal_block(job, block)
    yield beam.pvalue.TaggedOutput(COUNTS, dict(counts))
    for shard, frame in frames.items():
        yield shard, (place, frame)


def _shard_path(folder: str, shard: int) -> str:
    return files.join(folder, f"shard-{shard:05d}")


def _write_shard(
    folder: str, item: tuple[int, Iterable[tuple[Place, bytes]]]
) -> None:
    """Write the frames of a shard in the order of the text."""
    shard, frames = item
    with files.atomic_path(_shard_path(folder, shard)) as temporary:
        with files.opened(temporary, "wb") as file:
            for _, frame in sorted(frames):
                file.write(frame)


def _total(counts: Iterable[dict]) -> dict:
    total: Counter = Counter()
    for some in counts:
        total.update(some)
    return dict(total)


class BeamStore:
    """The shards of a corpus, made by a pipeline.

    Attributes:
      counts: what was counted in the text that the shards hold.
    """

    def __init__(self, folder: str, num_shards: int):
        self.folder, self.num_shards = folder, num_shards
        self.counts: Counter = Counter()
        files.make_folder(folder)

    def path(self, shard: int) -> str:
        """Return the name of a shard's file."""
        return _shard_path(self.folder, shard)

    @property
    def _counts_path(self) -> str:
        return files.join(self.folder, "text.json")

    def fill(
        self, paths: list[str], job: TextJob, runner: str, options: str
    ) -> None:
        """Tokenise the text into the shards, unless that was done before."""
        if not files.exists(self._counts_path):
            for shard in range(self.num_shards):
                files.write_bytes(self.path(shard), b"")
            self._run(paths, job, runner, options)
        self.counts.update(files.read_json(self._counts_path, "`text.json`"))

    def _run(
        self, paths: list[str], job: TextJob, runner: str, options: str
    ) -> None:
        with beam.Pipeline(options=_options(runner, options)) as pipeline:
            dealt = (
                pipeline
                | "files" >> beam.Create(list(enumerate(paths)))
                | "spread files" >> beam.Reshuffle()
                | "read" >> beam.FlatMap(functools.partial(_read, job))
                | "spread blocks" >> beam.Reshuffle()
                | "deal"
                >> beam.FlatMap(functools.partial(_deal, job)).with_outputs(
                    COUNTS, main=FRAMES
                )
            )
            _ = (
                dealt[FRAMES]
                | "shards" >> beam.GroupByKey()
                | "write"
                >> beam.Map(functools.partial(_write_shard, self.folder))
            )
            _ = (
                dealt[COUNTS]
                | "count" >> beam.CombineGlobally(_total)
                | "write counts"
                >> beam.Map(
                    functools.partial(files.write_json, self._counts_path)
                )
            )


def make_files(jobs: list[FileJob], runner: str, options: str) -> list[Counter]:
    """Make the files that are not finished; return the counts of all."""
    missing = [job for job in jobs if read_counts(job) is None]
    if missing:
        with beam.Pipeline(options=_options(runner, options)) as pipeline:
            _ = (
                pipeline
                | "jobs" >> beam.Create(missing)
                | "spread jobs" >> beam.Reshuffle()
                | "make" >> beam.Map(make_file)
            )
    return [read_counts(job) for job in jobs]
