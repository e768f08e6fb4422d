"""A runner for the builder's stages on many machines, with Apache Beam.

Whole blocks of text and whole shards pass through the same functions as on one
machine, so the records are identical, byte for byte. Only this module imports
Beam, which is an optional extra of the package.

The launcher, which runs this module, reads neither text nor shards. It uses
only file names, file sizes and the summaries that workers write to JSON files:
the hash and the counts of the text, and the choice of held-out text.

All workers must have access to the text, the output and `scratch_dir`. An
interrupted first pass starts over; an interrupted second pass continues with
the unfinished files.
"""

import dataclasses
import functools
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from albert_tf.base import files
from albert_tf.data.builder import build_folder
from albert_tf.data.builder.build_settings import BuildSpec
from albert_tf.data.builder.held_out import (
    Border,
    HeldOut,
    add_up,
    divide,
    hold_out,
    measure,
    measure_parts,
)
from albert_tf.data.builder.passes import FileJob, deal_block, make_file
from albert_tf.data.builder.shards import shard_path
from albert_tf.data.builder.text_blocks import blocks
from albert_tf.data.builder.text_formats import Block, merge
from albert_tf.data.records.tfrecord import read_counts

# The position of a block in the text: the index of the file, and the index of
# the block in the file.
Position = tuple[int, int]

FRAMES, COUNTS = "frames", "counts"


def _digest(item: tuple[int, tuple[str, int]]) -> tuple[int, bytes]:
    number, piece = item
    return number, build_folder.digest(*piece)


def _joined(digests: list[tuple[int, bytes]]) -> str:
    return build_folder.joined(digest for _, digest in sorted(digests))


def _read(
    recipe: BuildSpec, item: tuple[int, str]
) -> Iterator[tuple[Position, Block]]:
    """Yield the blocks of a file with their positions."""
    number, path = item
    for index, block in enumerate(
        blocks(path, recipe.build.random_seed, recipe.reading)
    ):
        yield (number, index), block


def _deal(recipe: BuildSpec, item: tuple[Position, Block]) -> Iterator:
    """Yield a block's counts, then (shard, (position, frame)) per frame."""
    position, block = item
    frames, counts = deal_block(recipe, block)
    yield beam.pvalue.TaggedOutput(COUNTS, counts)
    for shard, frame in frames.items():
        yield shard, (position, frame)


def _write_shard(
    folder: str, item: tuple[int, Iterable[tuple[Position, bytes]]]
) -> tuple[int, str]:
    """Write a shard's frames in text order; return the shard and its path."""
    shard, frames = item
    path = shard_path(folder, shard)
    files.write_bytes(path, b"".join(frame for _, frame in sorted(frames)))
    return shard, path


def _total(counts: Iterable[Counter]) -> Counter:
    total: Counter = Counter()
    for part in counts:
        merge(total, part)
    return total


def _write_value(values, name: str, path: str) -> None:
    """Add a step that writes a collection's only value as JSON."""
    write = functools.partial(files.write_json, path)
    _ = values | f"write {name}" >> beam.Map(write)


class BeamRunner:
    """A runner that executes the stages of a build on Apache Beam.

    Args:
      options: pipeline options, as on a command line, including the runner.
    """

    def __init__(self, options: str):
        self.options = shlex.split(options)

    def _pipeline(self) -> beam.Pipeline:
        return beam.Pipeline(options=PipelineOptions(self.options))

    def corpus_hash(self, paths: list[str], folder: str) -> str:
        """Return the hash of the text.

        Workers compute the hash, and write it to a temporary file in `folder`.
        """
        files.make_folder(folder)
        path = files.unfinished(files.join(folder, "corpus"))
        pieces = build_folder.pieces(paths)
        with self._pipeline() as pipeline:
            digests = (
                pipeline
                | "pieces" >> beam.Create(list(enumerate(pieces)))
                | "spread pieces" >> beam.Reshuffle()
                | "hash" >> beam.Map(_digest)
                | "gather" >> beam.combiners.ToList()
                | "join" >> beam.Map(_joined)
            )
            _write_value(digests, "hash", path)
        corpus = files.read_json(path, "the hash of the text")
        files.remove(path)
        return corpus

    def deal(
        self, recipe: BuildSpec, paths: list[str], folder: str
    ) -> tuple[Counter, HeldOut]:
        """Distribute the text across shards and choose the held-out text.

        If both steps have already been done, their results are read from files
        in `folder`.

        Returns:
          The counts of the text, and the choice of held-out text.
        """
        counts_path = files.join(folder, "text.json")
        held_out_path = files.join(folder, "measured.json")
        if not all(map(files.exists, (counts_path, held_out_path))):
            files.make_folder(folder)
            for shard in range(recipe.build.num_shards):
                files.write_bytes(shard_path(folder, shard), b"")
            with self._pipeline() as pipeline:
                outputs = self._deal_blocks(pipeline, recipe, paths)
                counts = outputs[COUNTS] | "count" >> beam.CombineGlobally(
                    _total
                )
                _write_value(counts, "counts", counts_path)
                held_out = self._held_out(outputs[FRAMES], recipe, folder)
                _write_value(held_out, "held out", held_out_path)
        counts = Counter(files.read_json(counts_path, "`text.json`"))
        held_out = files.read_json(held_out_path, "`measured.json`")
        held_out["border"] = Border(*held_out["border"])
        return counts, HeldOut(**held_out)

    def _deal_blocks(
        self, pipeline: beam.Pipeline, recipe: BuildSpec, paths: list[str]
    ):
        """Return collections of (shard, (position, frame)), and of counts."""
        deal = beam.FlatMap(functools.partial(_deal, recipe))
        return (
            pipeline
            | "files" >> beam.Create(list(enumerate(paths)))
            | "spread files" >> beam.Reshuffle()
            | "read" >> beam.FlatMap(functools.partial(_read, recipe))
            | "spread blocks" >> beam.Reshuffle()
            | "deal" >> deal.with_outputs(COUNTS, main=FRAMES)
        )

    def _held_out(self, frames, recipe: BuildSpec, folder: str):
        """Write the shards; return a collection of one `HeldOut`, as a dict."""
        hold = functools.partial(hold_out, recipe.build.eval_fraction)
        shards = (
            frames
            | "shards" >> beam.GroupByKey()
            | "write" >> beam.Map(functools.partial(_write_shard, folder))
        )
        held_out = beam.pvalue.AsSingleton(
            shards
            | "measure" >> beam.Map(functools.partial(measure, recipe))
            | "add up" >> beam.CombineGlobally(add_up)
            | "hold out" >> beam.Map(hold)
        )
        work = functools.partial(measure_parts, recipe)
        return (
            shards
            | "measure parts" >> beam.Map(work, held_out)
            | "gather parts" >> beam.combiners.ToList()
            | "divide" >> beam.Map(functools.partial(divide, recipe), held_out)
            | "as JSON" >> beam.Map(dataclasses.asdict)
        )

    def make_files(self, jobs: list[FileJob]) -> Iterator[Counter]:
        """Write unfinished files; yield the counts of all files in order."""
        with self._pipeline() as pipeline:
            _ = (
                pipeline
                | "jobs" >> beam.Create(jobs)
                | "spread jobs" >> beam.Reshuffle()
                | "make" >> beam.Map(make_file)
            )
        for job in jobs:
            yield read_counts(job.counts_path)
