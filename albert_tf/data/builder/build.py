"""The builder: the two passes over the text, and what they made."""

import contextlib
import functools
import importlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.base.processes import available, ordered_map
from albert_tf.base.progress import Progress
from albert_tf.base.remote_files import RemoteError
from albert_tf.data import records
from albert_tf.data.builder.advice import warnings
from albert_tf.data.builder.build_config import BuildConfig, Builder, claim
from albert_tf.data.builder.corpus_digest import corpus_hash
from albert_tf.data.builder.documents import token_dtype
from albert_tf.data.builder.held_out import HeldOut, add_up, hold_out, measure
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.shards import ShardStore, fill
from albert_tf.data.builder.statistics import report, summarize
from albert_tf.data.builder.text_blocks import check_not_empty
from albert_tf.data.builder.text_files import ReadingConfig
from albert_tf.data.builder.writing import FileJob, make_file, read_counts
from albert_tf.data.masking import MaskingConfig
from albert_tf.text.tokenizers import TokenizerConfig, build_tokenizer


def _probed(jobs: list[FileJob]) -> list[int]:
    """Return which files share no text and hold training records."""
    return [
        i
        for i, job in enumerate(jobs)
        if job.split == records.TRAIN and job.duplicate == 0
    ]


def probe_leak(builder: Builder, jobs: list[FileJob]) -> dict:
    """Return what the leak probe finds in the files."""
    # Slow to import: see `_import_ahead`.
    from albert_tf.data.builder import leak_probe

    names = [os.path.basename(jobs[i].path) for i in _probed(jobs)]
    return leak_probe.probe(
        builder.build.output_dir, names, builder.tokenizer.vocab_size
    )


def _import_ahead(num_processes: int) -> None:
    """Import the leak probe while the processes that do the work begin.

    It takes a second to import scikit-learn, which no worker needs.
    """
    name = "albert_tf.data.builder.leak_probe"
    if num_processes > 1:
        threading.Thread(target=importlib.import_module, args=[name]).start()


def _make_files(
    jobs: list[FileJob], num_processes: int, probe: Callable[[], dict]
) -> list[Counter]:
    """Make the files that are not finished; return the counts of all.

    The probe, which keeps what it found, is first called as soon as it can
    be: while it runs here, other processes go on with the next files.
    """
    found = [read_counts(job) for job in jobs]
    missing = [i for i, counts in enumerate(found) if counts is None]
    probed = _probed(jobs)
    progress = Progress(len(jobs), len(jobs) - len(missing), "file")
    made = ordered_map(make_file, [jobs[i] for i in missing], num_processes)
    for index, counts in zip(missing, made, strict=True):
        found[index] = counts
        progress.advance(
            1, f"{sum(c['records'] for c in found if c):,} records"
        )
        if all(found[i] is not None for i in probed):
            probe()
    progress.close()
    return found


def _beam():
    """Return the module of the pipelines; Beam is an extra."""
    try:
        return importlib.import_module("albert_tf.data.builder.beam")
    except ModuleNotFoundError as error:
        raise InputError(
            "`runner` needs Apache Beam: pip install 'albert-tf[beam]'. "
            f"Received: {error}"
        ) from None


def _hash_text(build: BuildConfig, paths: list[str]) -> str:
    """Return the hash of a text, read by whatever runs the build."""
    if not build.runner:
        return corpus_hash(paths, build.num_processes or available())
    folder = build.scratch_dir or build.output_dir
    return _beam().corpus_hash(
        paths, folder, build.runner, build.pipeline_options
    )


def _first_pass_by_beam(builder: Builder, measure_shard: Callable):
    build = builder.build
    beam, how = _beam(), (build.runner, build.pipeline_options)
    store = beam.BeamStore(builder.scratch, builder.num_shards)
    job, fraction = builder.text_job(), build.eval_fraction
    held_out = store.fill(builder.paths, job, measure_shard, fraction, how)
    return store, held_out, lambda jobs, _: beam.make_files(jobs, *how)


def _first_pass_here(builder: Builder, measure_shard: Callable):
    processes = builder.num_processes
    _import_ahead(processes)
    store = ShardStore(builder.scratch, builder.num_shards)
    fill(store, builder.paths, builder.text_job(), processes)
    shards = [(s, store.path(s)) for s in range(builder.num_shards)]
    measured = add_up(ordered_map(measure_shard, shards, processes))
    held_out = hold_out(builder.build.eval_fraction, measured)
    return (
        store,
        held_out,
        lambda jobs, probe: _make_files(jobs, processes, probe),
    )


def _first_pass(builder: Builder):
    """Deal the text to shards; hold documents out.

    Returns:
      the shards, what is held out, and what makes files of both.
    """
    dtype = token_dtype(builder.tokenizer.vocab_size)
    measure_shard = functools.partial(
        measure, dtype, builder.reading.drop_duplicates
    )
    if builder.build.runner:
        return _first_pass_by_beam(builder, measure_shard)
    return _first_pass_here(builder, measure_shard)


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
                f"The text must give {split} records: two sentences of a "
                "document, one on each line, must fit `max_seq_length`; see "
                "--split_sentences and --eval_fraction. Received: "
                f"max_seq_length={metadata.max_seq_length}, no {split} records"
            )


def describe(
    builder: Builder,
    text: Counter,
    jobs: list[FileJob],
    counts: list[Counter],
    leak: dict,
) -> records.Metadata:
    """Return the metadata of a finished build."""
    splits = {records.TRAIN: [], records.EVAL: []}
    made = {records.TRAIN: Counter(), records.EVAL: Counter()}
    for job, found in zip(jobs, counts, strict=True):
        splits[job.split].append(
            records.RecordFile(
                os.path.basename(job.path),
                found["records"],
                found["file_bytes"],
            )
        )
        made[job.split].update(found)
    length = builder.pairs.max_seq_length
    return records.Metadata(
        max_seq_length=length,
        max_predictions_per_seq=builder.masking.predictions(length),
        vocab_size=builder.tokenizer.vocab_size,
        tokenizer_fingerprint=builder.identity["tokenizer"],
        splits={name: tuple(entries) for name, entries in splits.items()},
        settings=builder.identity,
        statistics=summarize(text, made, builder.masking, leak),
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
    store, held_out, make_files = _first_pass(builder)
    _check_documents(build, store, held_out)
    jobs = builder.file_jobs(store, held_out)
    probe = functools.cache(functools.partial(probe_leak, builder, jobs))
    counts = make_files(jobs, probe)
    text = store.counts + Counter(held_out.counts)
    metadata = describe(builder, text, jobs, counts, probe())
    _check_splits(metadata, build.eval_fraction)
    metadata.write(build.output_dir)


@contextlib.contextmanager
def _disk_errors(output_dir: str) -> Iterator[None]:
    """Say what to do where a file cannot be read or written."""
    try:
        yield
    except OSError as error:
        if error.errno is None and not isinstance(error, RemoteError):
            raise  # says so already
        raise OSError(
            f"A file could not be read or written ({error}); mend that (free "
            "some space, if there is none) and run the same command again to "
            f"go on. Received: output_dir={output_dir}"
        ) from None


def run(
    build: BuildConfig,
    tokenization: TokenizerConfig,
    pairs: PairsConfig,
    masking: MaskingConfig,
    reading: ReadingConfig | None = None,
) -> records.Metadata:
    """Make the records of a corpus, or go on making them.

    An interruption leaves what the next run needs to go on. A text that
    cannot be used (`InputError`) leaves no records and can be mended.
    """
    paths = files.glob(build.input_file, "`input_file`")
    check_not_empty(paths)
    builder = Builder(
        build,
        pairs,
        masking,
        reading or ReadingConfig(),
        build_tokenizer(tokenization),
        paths,
        functools.partial(_hash_text, build),
    )
    with _disk_errors(build.output_dir):
        files.make_folder(build.output_dir)
        if not claim(build.output_dir, builder.identity):
            try:
                _make(builder)
            except InputError:
                made = files.join(build.output_dir, "*.tfrecord")
                for path in files.matches(made):
                    files.remove(path)
                builder.clean()
                raise
        builder.clean()
    return records.load_metadata(build.output_dir)
