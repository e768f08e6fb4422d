"""Create TFRecords for pretraining from text or phonemes."""

import contextlib
import dataclasses
import importlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Set

from albert_tf.base import files, program
from albert_tf.base.console import counted
from albert_tf.base.errors import require
from albert_tf.base.packages import need
from albert_tf.base.processes import Workers, available
from albert_tf.data.builder import (
    boundaries,
    phoneme_build,
    text_blocks,
)
from albert_tf.data.builder.build_folder import (
    BuildFolder,
    disk_errors,
    own_name,
)
from albert_tf.data.builder.build_settings import BuildConfig, BuildSpec
from albert_tf.data.builder.held_out import HeldOut
from albert_tf.data.builder.local_runner import LocalRunner
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.passes import FileJob, file_jobs
from albert_tf.data.builder.phoneme_build import PhonemesConfig
from albert_tf.data.builder.statistics import report, summarize, warnings
from albert_tf.data.builder.text_blocks import check_files, input_paths
from albert_tf.data.builder.text_formats import (
    BadItems,
    ReadingConfig,
    check_table_layout,
    json_record,
    merge,
    warn_of_bad_items,
)
from albert_tf.data.masking import (
    DYNAMIC,
    RELEASED_SHARES,
    STATIC,
    MaskingConfig,
)
from albert_tf.data.records.metadata import (
    EVAL,
    PHONEMES,
    TRAIN,
    WORDS,
    Metadata,
    RecordFile,
    is_described,
    write_piece_counts,
)
from albert_tf.data.table_sources import InMemoryTable, texts_of
from albert_tf.text.tokenizers import (
    TOKENIZER_FILE,
    Tokenizer,
    TokenizerConfig,
    build_tokenizer,
    description_beside,
)

# Default number of times each document is used, by kind of masking.
DUPE_FACTORS = {STATIC: 10, DYNAMIC: 1}

# Bytes of text per shard; a process loads one whole shard into memory.
SHARD_BYTES = 1 << 25


def count_shards(paths: list[str]) -> int:
    """Return the default number of shards for text files."""
    return math.ceil(text_blocks.estimated_bytes(paths) / SHARD_BYTES)


def check_text(tokenization: TokenizerConfig, tokenizer: Tokenizer) -> None:
    """Raise `InputError` if a tokenizer contradicts its `tokenizer.json`.

    If the file exists, it is next to the vocabulary that `tokenization` names.
    """
    path = tokenization.spm_model_file or tokenization.vocab_file
    description = tokenizer.description()
    stored_path = files.join(os.path.dirname(path), TOKENIZER_FILE)
    mismatches = {
        name: f"{description.get(name)}, but {value} in {stored_path}"
        for name, value in description_beside(path, description["type"]).items()
        if description.get(name) != value
    }
    rule = "Text settings must match the vocabulary's tokenizer.json."
    if "strip_accents" in mismatches:
        rule += " --strip_accents=auto uses the value stored there."
    require(not mismatches, rule, **mismatches)


def make_recipe(
    build: BuildConfig,
    tokenizer: Tokenizer,
    pairs: PairsConfig,
    masking: MaskingConfig,
    reading: ReadingConfig,
    paths: list[str],
) -> BuildSpec:
    """Return the `BuildSpec`; raise `InputError` if settings conflict."""
    rule = boundaries.resolve_rule(reading.word_boundaries, tokenizer)
    reading = dataclasses.replace(reading, word_boundaries=rule)
    boundaries.check_word_rule(rule, tokenizer)
    require(
        masking.masking == STATIC
        or (pairs.compat == "none" and not masking.do_permutation),
        "`masking` must be static with --compat=google or --do_permutation.",
        masking=masking.masking,
        compat=pairs.compat,
        do_permutation=masking.do_permutation,
    )
    require(
        (masking.max_predictions_per_seq or 1) <= pairs.max_seq_length,
        "`max_predictions_per_seq` must be at most `max_seq_length`, "
        f"{pairs.max_seq_length}.",
        max_predictions_per_seq=masking.max_predictions_per_seq,
    )
    require(
        pairs.compat == "none" or masking.shares == RELEASED_SHARES,
        "`mask_same_random` must have the released shares with "
        "--compat=google.",
        mask_same_random=masking.shares,
        compat=pairs.compat,
    )
    build = dataclasses.replace(
        build,
        dupe_factor=build.dupe_factor or DUPE_FACTORS[masking.masking],
        num_shards=build.num_shards or count_shards(paths),
    )
    vocabulary = tokenizer.fingerprint(), tokenizer.vocab_size
    return BuildSpec(build, pairs, masking, reading, *vocabulary)


@contextlib.contextmanager
def make_runner(build: BuildConfig) -> Iterator:
    """Yield the runner of the stages: a `LocalRunner` or a `BeamRunner`."""
    if not build.pipeline_options:
        number = build.num_processes or available()
        with Workers(number, LocalRunner.__module__) as workers:
            yield LocalRunner(workers)
        return
    options = build.pipeline_options
    need("`pipeline_options`", "apache_beam", pipeline_options=options)
    module = importlib.import_module("albert_tf.data.builder.beam_runner")
    yield module.BeamRunner(options)


def _check_documents(
    build: BuildConfig, text: Counter, held_out: HeldOut
) -> None:
    require(
        any(held_out.shards.values()),
        "`input_file` must contain text in documents of at least "
        "`min_document_tokens` tokens.",
        input_file=f"{build.input_file}, {text['tokens']:,} tokens, "
        f"{text['short_documents']:,} of {text['documents']:,} documents "
        f"shorter, {text['empty_documents']:,} more documents empty, "
        f"{text['bad_rows']:,} rows without text",
    )
    num_documents = text["documents"] - text["short_documents"]
    require(
        all(held_out.shards.values()) or not build.eval_fraction,
        "`input_file` must contain at least two different documents, with a "
        "blank line between them, so that one can be held out, or a document "
        "that is long enough to divide; --eval_fraction=0 holds out no text.",
        input_file=f"{build.input_file}, {num_documents:,} documents of "
        f"{text['sentences']:,} sentences",
    )


def _check_splits(metadata: Metadata, fraction: float) -> None:
    held_out = (EVAL,) if fraction else ()
    for split in (TRAIN, *held_out):
        require(
            metadata.count(split),
            f"The text must produce {split} records: two sentences of a "
            "document, one per line, must fit in `max_seq_length` (and with "
            "--random_next_sentence, another B must have the same length); see "
            "--split_sentences and --eval_fraction, and --input_format=lines "
            "if rows of a table are sentences. Isolated sentences, such as "
            "posts and queries, need --single_segment_policy=keep.",
            max_seq_length=f"{metadata.max_seq_length}, no {split} records",
        )


def build_metadata(
    recipe: BuildSpec,
    identity: dict,
    text: Counter,
    made: list[tuple[FileJob, Counter]],
) -> Metadata:
    """Return the metadata of a finished build."""
    splits = {TRAIN: [], EVAL: []}
    totals = {TRAIN: Counter(), EVAL: Counter()}
    for job, counts in made:
        name, size = os.path.basename(job.path), counts["file_bytes"]
        entry = RecordFile(name, counts["records"], size)
        splits[job.split].append(entry)
        totals[job.split].update(counts)
    length = recipe.pairs.max_seq_length
    return Metadata(
        max_seq_length=length,
        max_predictions_per_seq=recipe.masking.predictions(length),
        vocab_size=recipe.vocab_size,
        tokenizer_fingerprint=recipe.fingerprint,
        splits={name: tuple(entries) for name, entries in splits.items()},
        settings=identity,
        statistics=summarize(
            text, totals, recipe.masking, recipe.build.eval_fraction
        ),
    )


def _make(
    runner,
    recipe: BuildSpec,
    paths: list[str],
    folder: BuildFolder,
    skipped: Counter | None,
) -> None:
    """Run both passes, or resume them; write the metadata last."""
    text = Counter(skipped)
    counts, held_out = runner.deal(recipe, paths, folder.scratch)
    merge(text, counts)
    warn_of_bad_items(text, recipe.reading.on_bad_text)
    _check_documents(recipe.build, text, held_out)
    jobs = file_jobs(recipe, held_out, folder.scratch)
    made = list(zip(jobs, runner.make_files(jobs), strict=True))
    text = text + Counter(held_out.counts)
    metadata = build_metadata(recipe, folder.identity, text, made)
    _check_splits(metadata, recipe.build.eval_fraction)
    write_piece_counts(recipe.build.output_dir, held_out.pieces)
    metadata.write(recipe.build.output_dir)


def run(
    build: BuildConfig,
    tokenization: TokenizerConfig,
    pairs: PairsConfig,
    masking: MaskingConfig,
    reading: ReadingConfig,
    skipped: Counter | None = None,
) -> Metadata:
    """Build the records of a corpus, or resume an unfinished build.

    An interrupted build leaves files that allow the next run to resume. A build
    that stops with `InputError` because of unusable text leaves no records, so
    the user can fix the text and build again.

    Args:
      build, tokenization, pairs, masking, reading: the settings.
      skipped: counts of bad items that are already omitted from the files.

    Returns:
      The metadata of the records.
    """
    paths = input_paths(build.input_file, build.output_dir, build.scratch_dir)
    if not build.pipeline_options:  # Beam's launcher does not open the text
        check_files(paths, reading)
    # Workers start up while the tokenizer loads.
    with make_runner(build) as runner, disk_errors(build.output_dir):
        tokenizer = build_tokenizer(tokenization)
        check_text(tokenization, tokenizer)
        if not is_described(build.output_dir):
            tokenizer.check_claim(build.output_dir)
        recipe = make_recipe(build, tokenizer, pairs, masking, reading, paths)
        work_dir = build.scratch_dir or build.output_dir
        identity = recipe.identity(runner.corpus_hash(paths, work_dir))
        folder = BuildFolder(build.output_dir, build.scratch_dir, identity)

        def make() -> None:
            tokenizer.save(build.output_dir)
            _make(runner, recipe, paths, folder, skipped)

        return folder.build(make, (tokenizer.file_name, TOKENIZER_FILE))


def summary(
    metadata: Metadata, pairs: PairsConfig, masking: MaskingConfig
) -> str:
    """Return a readable summary of the records, with warnings."""
    lines = [report(metadata.statistics)]
    for split, entries in metadata.splits.items():
        lines.append(
            f"  {split}: {counted(metadata.count(split), 'record')} of "
            f"{metadata.max_seq_length} tokens and "
            f"{counted(metadata.max_predictions_per_seq, 'prediction')} in "
            f"{counted(len(entries), 'file')}"
        )
    notes = warnings(metadata.statistics, masking, pairs.max_seq_length)
    return "\n".join(lines + [f"Warning: {warning}" for warning in notes])


@dataclasses.dataclass(frozen=True)
class Records:
    """A folder of finished records, and their metadata."""

    output_dir: str
    metadata: Metadata


def _write_table(
    path: str, table: InMemoryTable, reading: ReadingConfig
) -> Counter:
    """Write a table's texts as JSON lines; return the counts of bad rows."""
    skipped: Counter = Counter()
    bad = BadItems(reading.on_bad_text, skipped)
    with files.opened(path, "wb") as file:
        for text in texts_of(table, reading.text_field, bad):
            file.write(json_record(reading.text_field, text))
    require(
        files.size(path),
        "`input_file` must be a table with at least one text.",
        input_file=table,
        rows_without_text=skipped["bad_rows"],
    )
    return skipped


@contextlib.contextmanager
def in_files(
    config: BuildConfig, reading: ReadingConfig
) -> Iterator[tuple[BuildConfig, ReadingConfig, Counter]]:
    """Yield settings that name text files, and the counts of skipped rows.

    The text is read twice, so in-memory tables, standard input and pipes are
    copied to a folder of this build. The folder is removed when the `with`
    block ends.
    """
    source = config.input_file
    is_path = isinstance(source, str)
    if is_path and not text_blocks.has_pipes(source):
        yield config, reading, Counter()
        return
    work_dir = config.scratch_dir or config.output_dir
    folder = files.join(work_dir, own_name("input", config.output_dir))
    skipped: Counter = Counter()
    with files.locked(folder, "output_dir"):
        try:
            if is_path:
                paths = text_blocks.with_pipes_copied(source, folder)
            else:
                check_table_layout("tables", reading.input_format, source)
                paths = files.join(folder, f"{source}.jsonl")
                skipped = _write_table(paths, source, reading)
                if reading.input_format != "lines":
                    reading = dataclasses.replace(reading, input_format="jsonl")
            config = dataclasses.replace(config, input_file=paths)
            yield config, reading, skipped
        finally:
            files.remove_folder(folder)


def _build_from_text(
    config, tokenization, pairs, masking, reading, _
) -> tuple[Metadata, str]:
    with in_files(config, reading) as (config, reading, skipped):
        metadata = run(config, tokenization, pairs, masking, reading, skipped)
    return metadata, summary(metadata, pairs, masking)


def _build_from_phonemes(
    config, _, pairs, masking, reading, phonemes
) -> tuple[Metadata, str]:
    rule = "`input_file` must name files if task=phonemes."
    source = config.input_file
    require(isinstance(source, str), rule, input_file=source)
    with in_files(config, reading) as (config, *_):
        values = vars(config) | vars(pairs) | masking.written()
        values |= vars(phonemes)
        metadata = phoneme_build.build(config, phonemes, values)
    return metadata, phoneme_build.summary(metadata)


# {task: function that takes the settings, and returns metadata and a summary}
BUILDERS = {WORDS: _build_from_text, PHONEMES: _build_from_phonemes}
CLASSES = (
    BuildConfig,
    TokenizerConfig,
    PairsConfig,
    MaskingConfig,
    ReadingConfig,
    PhonemesConfig,
)


def _unused(task: str) -> set[str]:
    """Return the names of the settings that a task does not use."""
    phoneme_settings = {
        field.name for field in dataclasses.fields(PhonemesConfig)
    }
    all_settings = {f.name for cls in CLASSES for f in dataclasses.fields(cls)}
    return (
        phoneme_settings
        if task == WORDS
        else all_settings - phoneme_settings - phoneme_build.SHARED
    )


@program.command(*CLASSES)
def create_pretraining_data(
    config, *settings, set_by_user: Set[str] = frozenset()
) -> Records:
    """Create TFRecords for pretraining from text or phonemes.

    The keywords are the flags of `create_pretraining_data.py`; `input_file`
    may be a list of paths, or a table in memory.
    """
    unused = sorted(_unused(config.task) & set_by_user)
    rule = f"`task={config.task}` does not use these settings."
    require(not unused, rule, settings=", ".join(unused))
    metadata, text = BUILDERS[config.task](config, *settings)
    print(text)
    return Records(config.output_dir, metadata)


cli = create_pretraining_data.program.cli
