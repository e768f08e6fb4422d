"""The builder: the two passes over the text, and what they made."""

import os
from collections import Counter

import tensorflow as tf

from albert_tf import files, records
from albert_tf.errors import InputError
from albert_tf.masking import MaskingConfig
from albert_tf.pretraining_data.documents import token_dtype
from albert_tf.pretraining_data.pairs import PairsConfig
from albert_tf.pretraining_data.plan import (
    BuildConfig,
    Builder,
    claim,
)
from albert_tf.pretraining_data.processes import ordered_map
from albert_tf.pretraining_data.shards import (
    HeldOut,
    ShardStore,
    fill,
    hold_out,
)
from albert_tf.pretraining_data.statistics import report, summarize, warnings
from albert_tf.pretraining_data.text import check_not_empty
from albert_tf.pretraining_data.writing import FileJob, make_file, read_counts
from albert_tf.progress import Progress
from albert_tf.tokenization import TokenizerConfig, build_tokenizer


def _make_files(jobs: list[FileJob], num_processes: int) -> list[Counter]:
    """Make the files that are not finished; return the counts of all."""
    found = [read_counts(job) for job in jobs]
    missing = [i for i, counts in enumerate(found) if counts is None]
    progress = Progress(len(jobs), len(jobs) - len(missing), "file")
    made = ordered_map(make_file, [jobs[i] for i in missing], num_processes)
    for index, counts in zip(missing, made, strict=True):
        found[index] = counts
        progress.advance(
            1, f"{sum(c['records'] for c in found if c):,} records"
        )
    progress.close()
    return found


def _check_documents(
    build: BuildConfig, store: ShardStore, held_out: HeldOut
) -> None:
    if not store.counts["tokens"]:
        raise InputError(
            "`input_file` must hold text. Received: "
            f"input_file={build.input_file}, without a token"
        )
    if build.eval_fraction and not held_out.below:
        raise InputError(
            "`input_file` must hold at least two documents, with a blank line "
            "between them, so that one can be held out; --eval_fraction=0 "
            "holds out none. Received: one document of "
            f"{store.counts['sentences']:,} sentences in {build.input_file}"
        )


def _check_splits(metadata: records.Metadata, fraction: float) -> None:
    for split in (records.TRAIN, records.EVAL) if fraction else ():
        if not metadata.count(split):
            raise InputError(
                f"The text must give {split} records: its documents need at "
                "least two words each; see --eval_fraction and "
                f"--single_segment_policy. Received: no {split} records"
            )


def describe(
    builder: Builder,
    store: ShardStore,
    jobs: list[FileJob],
    counts: list[Counter],
) -> records.Metadata:
    """Return the metadata of a finished build."""
    splits = {records.TRAIN: [], records.EVAL: []}
    made = Counter()
    for job, found in zip(jobs, counts, strict=True):
        splits[job.split].append(
            records.RecordFile(
                os.path.basename(job.path),
                found["records"],
                found["file_bytes"],
            )
        )
        if job.split == records.TRAIN:
            made.update(found)
    length = builder.pairs.max_seq_length
    return records.Metadata(
        max_seq_length=length,
        max_predictions_per_seq=builder.masking.predictions(length),
        vocab_size=builder.tokenizer.vocab_size,
        tokenizer_fingerprint=builder.identity["tokenizer"],
        splits={name: tuple(entries) for name, entries in splits.items()},
        settings=builder.identity,
        statistics=summarize(store.counts, made, builder.masking),
    )


def summary(
    metadata: records.Metadata, pairs: PairsConfig, masking: MaskingConfig
) -> str:
    """Return what was made, and warnings, as a person reads them."""
    lines = [report(metadata.statistics)]
    for split, entries in metadata.splits.items():
        lines.append(
            f"  {split}: {metadata.count(split):,} records of "
            f"{metadata.max_seq_length} tokens and "
            f"{metadata.max_predictions_per_seq} predictions in "
            f"{len(entries)} files"
        )
    found = warnings(metadata.statistics, masking, pairs.max_seq_length)
    return "\n".join(lines + [f"Warning: {warning}" for warning in found])


def _make(builder: Builder) -> None:
    """Run both passes, or what is left of them; write the metadata last."""
    build = builder.build
    builder.tokenizer.save(build.output_dir)
    store = ShardStore(builder.scratch, builder.num_shards)
    fill(store, builder.paths, builder.text_job(), builder.num_processes)
    dtype = token_dtype(builder.tokenizer.vocab_size)
    held_out = hold_out(store, dtype, build.eval_fraction)
    _check_documents(build, store, held_out)
    jobs = builder.file_jobs(store, held_out)
    counts = _make_files(jobs, builder.num_processes)
    metadata = describe(builder, store, jobs, counts)
    _check_splits(metadata, build.eval_fraction)
    metadata.write(build.output_dir)


def run(
    build: BuildConfig,
    tokenization: TokenizerConfig,
    pairs: PairsConfig,
    masking: MaskingConfig,
) -> records.Metadata:
    """Make the records of a corpus, or go on making them.

    An interruption leaves what the next run needs to go on. A text that
    cannot be used (`InputError`) leaves no records and can be mended.
    """
    paths = files.glob(build.input_file, "`input_file`")
    check_not_empty(paths)
    builder = Builder(
        build, pairs, masking, build_tokenizer(tokenization), paths
    )
    tf.io.gfile.makedirs(build.output_dir)
    if not claim(build.output_dir, builder.identity):
        try:
            _make(builder)
        except InputError:
            made = files.join(build.output_dir, "*.tfrecord")
            for path in tf.io.gfile.glob(made):
                tf.io.gfile.remove(path)
            builder.clean()
            raise
    builder.clean()
    return records.read_metadata(build.output_dir)
