"""The builder's work as Apache Beam pipelines, for many machines.

Whole blocks of text and whole shards go through the functions that one
machine uses, so that the records are the same, byte for byte. Nothing but
this module imports Beam, which is an extra of the package.

The launcher, which runs this module, opens neither text nor shards: it knows
names and sizes of files, and what workers summed up in a JSON file.

Text, output and `scratch_dir` must be where all workers reach them. An
interrupted first pass begins anew; of the second, finished files are kept.
"""

import dataclasses
import functools
import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from albert_tf.base import files
from albert_tf.data.builder import corpus_digest
from albert_tf.data.builder.documents import TextJob
from albert_tf.data.builder.held_out import HeldOut, Measured, add_up, hold_out
from albert_tf.data.builder.shards import deal_block
from albert_tf.data.builder.text_blocks import Block, blocks
from albert_tf.data.builder.writing import FileJob, make_file, read_counts

# Where a block or a piece stands in the text: its file, and its number or its
# first byte in it.
Place = tuple[int, int]

FRAMES, COUNTS = "frames", "counts"


def _options(runner: str, options: str) -> PipelineOptions:
    return PipelineOptions([f"--runner={runner}", *shlex.split(options)])


def _cut(item: tuple[int, str]) -> Iterator[tuple[Place, str]]:
    """Yield the pieces of a file that are hashed."""
    number, path = item
    for place in corpus_digest.places(path):
        yield (number, place), path


def _digest(item: tuple[Place, str]) -> tuple[Place, bytes]:
    (number, place), path = item
    return (number, place), corpus_digest.digest(path, place)


def _joined(digests: list[tuple[Place, bytes]]) -> str:
    return corpus_digest.joined(digest for _, digest in sorted(digests))


def corpus_hash(
    paths: list[str], folder: str, runner: str, options: str
) -> str:
    """Return `corpus.corpus_hash` of a text that the workers read.

    Args:
      paths: the text files.
      folder: where the workers can leave the result.
      runner, options: of the pipeline.
    """
    files.make_folder(folder)
    path = files.join(folder, f"corpus.tmp-{secrets.token_hex(4)}")
    with beam.Pipeline(options=_options(runner, options)) as pipeline:
        _ = (
            pipeline
            | "files" >> beam.Create(list(enumerate(paths)))
            | "cut" >> beam.FlatMap(_cut)
            | "spread pieces" >> beam.Reshuffle()
            | "hash" >> beam.Map(_digest)
            | "gather" >> beam.combiners.ToList()
            | "join" >> beam.Map(_joined)
            | "write" >> beam.Map(functools.partial(files.write_json, path))
        )
    found = files.read_json(path, "the hash of the text")
    files.remove(path)
    return found


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
) -> tuple[int, str]:
    """Write the frames of a shard in the order of the text; return its file."""
    shard, frames = item
    path = _shard_path(folder, shard)
    with files.atomic_path(path) as temporary:
        with files.opened(temporary, "wb") as file:
            for _, frame in sorted(frames):
                file.write(frame)
    return shard, path


def _write_held_out(path: str, held_out: HeldOut) -> None:
    files.write_json(path, dataclasses.asdict(held_out))


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
        self._counts_path = files.join(folder, "text.json")
        self._held_out_path = files.join(folder, "held_out.json")
        files.make_folder(folder)

    def path(self, shard: int) -> str:
        """Return the name of a shard's file."""
        return _shard_path(self.folder, shard)

    def fill(
        self,
        paths: list[str],
        job: TextJob,
        measure: Callable[[tuple[int, str]], Measured],
        fraction: float,
        how: tuple[str, str],
    ) -> HeldOut:
        """Tokenise the text into the shards, unless that was done before.

        Args:
          paths: the text files.
          job: how to read and to deal them.
          measure: see `held_out.measure`.
          fraction: of the tokens to hold out.
          how: runner and options of the pipeline.
        """
        made = (self._counts_path, self._held_out_path)
        if not all(map(files.exists, made)):
            for shard in range(self.num_shards):
                files.write_bytes(self.path(shard), b"")
            with beam.Pipeline(options=_options(*how)) as pipeline:
                dealt = self._deal(pipeline, paths, job)
                self._measure(dealt[FRAMES], measure, fraction)
                self._count(dealt[COUNTS])
        self.counts.update(files.read_json(self._counts_path, "`text.json`"))
        held_out = files.read_json(self._held_out_path, "`held_out.json`")
        return HeldOut(**held_out)

    def _deal(self, pipeline: beam.Pipeline, paths: list[str], job: TextJob):
        return (
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

    def _measure(self, frames, measure: Callable, fraction: float) -> None:
        write = functools.partial(_write_held_out, self._held_out_path)
        _ = (
            frames
            | "shards" >> beam.GroupByKey()
            | "write" >> beam.Map(functools.partial(_write_shard, self.folder))
            | "measure" >> beam.Map(measure)
            | "add up" >> beam.CombineGlobally(add_up)
            | "hold out" >> beam.Map(functools.partial(hold_out, fraction))
            | "write held out" >> beam.Map(write)
        )

    def _count(self, counts) -> None:
        write = functools.partial(files.write_json, self._counts_path)
        _ = (
            counts
            | "count" >> beam.CombineGlobally(_total)
            | "write counts" >> beam.Map(write)
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
