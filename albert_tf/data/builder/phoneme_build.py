"""Create phoneme records from rows of words and their phonemes.

Rows are read twice, file by file: first to count symbols and words, then to
write records. An interrupted build continues with the files that are not
finished. Text is held out in whole parts. The hash of a part serves as a random
number, so each part is held out with the probability `eval_fraction`. At least
one part is held out, unless `eval_fraction` is 0. A part consists of
consecutive words of one document.

Shapes: B examples, T positions.
"""

import dataclasses
import functools
import itertools
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from albert_tf.base import files
from albert_tf.base.console import counted
from albert_tf.base.errors import require
from albert_tf.base.processes import Workers, available
from albert_tf.base.settings import EXAMPLES, Validated, setting
from albert_tf.data.builder import build_folder
from albert_tf.data.builder.build_settings import BuildConfig
from albert_tf.data.builder.statistics import (
    MUCH_PADDING,
    few_held_out,
    other_share,
    report,
)
from albert_tf.data.builder.text_blocks import document_hash, input_paths
from albert_tf.data.file_kinds import TEXT, kind_of
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records import metadata, tfrecord
from albert_tf.data.records.metadata import EVAL, TRAIN, Metadata, RecordFile
from albert_tf.data.row_files import Row
from albert_tf.data.table_sources import rows_of
from albert_tf.text import symbols
from albert_tf.text.symbols import OTHER_LABEL, SEPARATOR_LABEL, SymbolTable

# Incremented whenever a code change makes the same settings and rows produce
# different records.
PHONEME_BUILDER_VERSION = 2
# Settings that affect phoneme records, and all settings that this builder uses.
IDENTITY = """task eval_fraction random_seed max_seq_length masked_lm_prob
mask_same_random symbols num_words""".split()
SHARED = {*IDENTITY, "input_file", "output_dir", "num_processes", "scratch_dir"}

PART_WORDS = 1024
LISTED = 20  # maximum number of unknown symbols in the statistics
# {share in the statistics: the limit, and the warning above the limit}
WARNINGS = {
    "unknown_share": (
        0.001,
        "symbols are not in the table, and are omitted; see `symbols`",
    ),
    "other_words_share": (
        0.3,
        "words share the label for all other words; see `num_words`",
    ),
    "padding_share": (
        MUCH_PADDING,
        "positions are padding; give all rows of a text the same `document`, "
        "or pass a shorter --max_seq_length",
    ),
}


@dataclasses.dataclass(frozen=True)
class PhonemesConfig(Validated):
    """Settings for the symbols and words of phoneme records."""

    help_group = EXAMPLES

    symbols: str = setting(
        "plbert",
        "For phonemes, the table of symbols: plbert (also for StyleTTS 2), "
        "kokoro, auto (a table made from the rows) or a folder with "
        "symbols.json.",
    )
    num_words: int = setting(
        30000,
        "For phonemes, how many of the most frequent words get separate "
        "labels; all other words share one label.",
        minimum=1,
    )


FROM_TEXT = "`python -m albert_tf.phonemize` makes such rows from text."
# In the tables of symbols, this is the only IPA letter in composed form. Other
# marks, such as the tilde, are separate symbols.
CEDILLA, COMPOSED = "c\u0327", "ç"
Part = tuple[list[str], list[str]]  # the phonemes of each word, and the words


def part_of(row: Row) -> Part:
    """Return a row's phonemes and words; raise an error if it is malformed.

    Words that are equivalent in Unicode become the same word, and equivalent
    forms of `ç` become the same symbol.
    """
    phonemes = row.values.get("phonemes")
    words = row.values.get("words", row.values.get("input_ids"))

    def is_list_of(values: Any, kind: type) -> bool:
        listed = isinstance(values, list)
        return listed and all(type(value) is kind for value in values)

    require(
        is_list_of(phonemes, str)
        and (
            is_list_of(words, str) or is_list_of(words, int) and min(words) >= 0
        )
        and len(phonemes) == len(words),
        f"{row.where}: a row must have `phonemes`, a list of strings, and a "
        "list of the same length: `words`, which are strings, or `input_ids`, "
        f"which are word numbers from 0; {FROM_TEXT}",
        phonemes=f"{phonemes!r:.60}",
        words=f"{words!r:.60}",
    )
    return (
        [p.replace(CEDILLA, COMPOSED) for p in phonemes],
        [unicodedata.normalize("NFC", str(word)) for word in words],
    )


def read_parts(path: str) -> Iterator[Part]:
    """Yield the parts of the documents in a file.

    Consecutive rows with the same `document` form one document; each row
    whose `document` is missing or null is a separate document. A part ends with
    the row that brings its length to `PART_WORDS` words or more.
    """

    def document_of(item: tuple[int, Row]) -> Any:
        number, row = item
        document = row.values.get("document")
        return (number,) if document is None else document

    for _, group in itertools.groupby(enumerate(rows_of(path)), document_of):
        phonemes, words = [], []
        for _, row in group:
            part = part_of(row)
            phonemes, words = phonemes + part[0], words + part[1]
            if len(words) >= PART_WORDS:
                yield phonemes, words
                phonemes, words = [], []
        if words:
            yield phonemes, words


class Counts(NamedTuple):
    """Counts of the symbols and words in rows.

    Attributes:
      symbols, words: the number of occurrences of each symbol and word.
      spelled: the total number of symbols in the occurrences of each word.
      first: for each key, as a decimal string, the number of files in which the
        key is the lowest. A part's key is the hash of its phonemes.
    """

    symbols: Counter
    words: Counter
    spelled: Counter
    first: Counter


def count(seed: int, job: tuple[str, str]) -> Counts:
    """Count the symbols and words of a file, or read existing counts.

    `job` contains the path of the file and the path of its counts.
    """
    source, counts_path = job
    if files.exists(counts_path):
        saved = files.read_json(counts_path, "The counts of rows")
        return Counts(*map(Counter, saved))
    counts, lowest = Counts(*(Counter() for _ in Counts._fields)), None
    for phonemes, words in read_parts(source):
        key = document_hash(phonemes, seed)
        lowest = key if lowest is None else min(lowest, key)
        counts.symbols.update("".join(phonemes))
        counts.words.update(words)
        for word, symbols_of_word in zip(words, phonemes, strict=True):
            counts.spelled[word] += len(symbols_of_word)
    counts.first.update([] if lowest is None else [str(lowest)])
    files.write_json(counts_path, counts)
    return counts


def table_of(config: PhonemesConfig, counts: Counts) -> SymbolTable:
    """Return the symbol table for the settings, including its words."""
    if config.symbols == symbols.AUTO:
        table = symbols.made_of(counts.symbols)
    else:
        table = symbols.named_table(config.symbols)
    ranked = sorted(counts.words, key=lambda x: (-counts.words[x], x))
    rule = "`input_file` must contain at least two different words."
    require(len(ranked) > 1, rule, words=", ".join(ranked))
    return table.with_words(ranked[: config.num_words])


def require_known(counts: Counts, table: SymbolTable) -> None:
    """Raise an error unless the rows contain a symbol of the table."""
    rule = "`phonemes` of the rows must contain symbols of the table; see "
    rule += "`symbols`."
    listed = "".join(sorted(counts.symbols))[:LISTED] or "none"
    require(counts.symbols.keys() & table.ids.keys(), rule, symbols=listed)


def lay_out(
    part: Part, table: SymbolTable, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a part's ids and labels, in as few examples as possible.

    Both are [B, T], where T is `room`. Unknown symbols are omitted, as are
    words without known symbols. Words that do not fit into an example are
    truncated.
    """
    ids, labels = table.ids, table.labels
    labeled = [
        (spelled[: room - 1], labels.get(word, OTHER_LABEL))
        for phonemes, word in zip(*part, strict=True)
        if (spelled := [ids[s] for s in phonemes if s in ids])
    ]
    space = table.symbols[table.separator]
    text = [i for x, _ in labeled for i in (*x, space)]
    words = [i for x, y in labeled for i in (*[y] * len(x), SEPARATOR_LABEL)]
    ends = np.cumsum([0] + [len(x) + 1 for x, _ in labeled])
    cuts, pad = [0], table.symbols[table.pad]
    while cuts[-1] < ends[-1]:
        fits = np.searchsorted(ends, cuts[-1] + room, side="right")
        cuts.append(int(ends[fits - 1]))
    shape = len(cuts) - 1, room
    result = np.full(shape, pad), np.full(shape, SEPARATOR_LABEL)
    for row, (first, last) in enumerate(itertools.pairwise(cuts)):
        for rows, values in zip(result, (text, words), strict=True):
            rows[row, : last - first] = values[first:last]
    return result


def border_of(fraction: float, counts: Counts) -> float:
    """Return the key below which parts are held out.

    At least one part is held out, unless `fraction` is 0.
    """
    lowest = min(map(int, counts.first)) + 1
    return max(fraction * 2**64, lowest) if fraction else 0


def make_file(
    build: BuildConfig,
    border: float,
    room: int,
    table: SymbolTable,
    scratch: str,
    job: tuple[str, str, str],
) -> tuple[RecordFile, int]:
    """Write the records of a split from a file of rows, unless they exist.

    Return the file of records and the number of its padded positions.

    Args:
      build: the settings.
      border: the key below which parts are held out.
      room: T.
      table: the symbols and words.
      scratch: the folder of counts.
      job: the split, the file of rows and the name of the file of records.
    """
    split, source, name = job

    def records(counts: Counter) -> Iterator[bytes]:
        for part in read_parts(source):
            key = document_hash(part[0], build.random_seed)
            if (key < border) == (split == EVAL):
                ids, labels = lay_out(part, table, room)
                counts["records"] += len(ids)
                counts["padding"] += int(
                    np.sum(ids == table.symbols[table.pad])
                )
                values = {"symbol_ids": ids, "word_ids": labels}
                yield from tfrecord.encode_ints(values)

    made = tfrecord.write_once(
        files.join(build.output_dir, name),
        files.join(scratch, f"{name}.json"),
        records,
    )
    entry = RecordFile(name, made["records"], made["file_bytes"])
    return entry, made["padding"]


def by_frequency(of_symbols: Iterable[int], of_labels: Iterable[int]) -> dict:
    """Return the metrics of a model that predicts only from frequencies.

    Args:
      of_symbols: counts of the symbols of words, the separator first.
      of_labels: counts of the labels at all positions, separators first.
    """
    of_symbols, of_labels = map(np.array, (of_symbols, of_labels))

    def loss(counts: np.ndarray) -> float:
        shares = counts[counts > 0] / counts.sum()
        return float(-np.sum(shares * np.log(shares)))

    top_count, positions = of_symbols.max(), of_labels.sum()
    separators = of_symbols[0] + of_labels[0]  # inside and between words
    return {
        "symbols_loss": loss(of_symbols),
        "words_loss": loss(of_labels),
        "symbol_accuracy": float(max(top_count, separators) / positions),
        "masked_symbol_accuracy": float(top_count / of_symbols.sum()),
        "word_accuracy": float(of_labels.max() / positions),
    }


def statistics_of(table: SymbolTable, counts: Counts) -> dict:
    """Return the statistics of a build, for its metadata."""
    words, total = counts.words.total(), counts.symbols.total()
    unknown = Counter(
        {s: n for s, n in counts.symbols.items() if s not in table.ids}
    )
    labeled = sum(counts.words[word] for word in table.labels)
    spelled = [counts.spelled[word] for word in table.labels]
    unlabeled = counts.spelled.total() - sum(spelled)
    separator_first = dict.fromkeys((table.separator, *table.ids))
    return {
        "words": words,
        "different_words": len(counts.words),
        "other_words_share": 1 - labeled / words,
        metadata.LABELS: len(table.words),
        "symbols": total,
        "unknown_share": unknown.total() / max(total, 1),
        "unknown_symbols": {
            f"{s} U+{ord(s):04X}": n for s, n in unknown.most_common(LISTED)
        },
        metadata.BY_FREQUENCY: by_frequency(
            [counts.symbols[s] for s in separator_first],
            [words, unlabeled, *spelled],
        ),
    }


def summary(made: Metadata) -> str:
    """Return a readable summary of the records, with warnings."""
    statistics = made.statistics
    lines = [report(statistics)] + [
        f"  {split}: {counted(made.count(split), 'record')} of "
        f"{made.max_seq_length} symbols"
        for split in made.splits
    ]
    lines += [
        f"Warning: {statistics[share]:.2%} of the {what}"
        for share, (limit, what) in WARNINGS.items()
        if statistics.get(share, 0) > limit  # earlier versions had fewer
    ]
    eval_records, requested = made.count(EVAL), made.settings["eval_fraction"]
    share = eval_records / (eval_records + made.count(TRAIN))
    advice = f"parts of about {PART_WORDS:,} words are held out; add text"
    notes = [*other_share(share, requested, "records", advice)]
    notes += few_held_out(eval_records, max(share, requested))
    lines += [f"Warning: {text}" for text in notes]
    return "\n".join(lines)


def total_counts(
    seed: int, paths: list[str], scratch: str, workers: Workers
) -> Counts:
    """Return the counts of all files; save each file's counts in `scratch`."""
    counts = Counts(*(Counter() for _ in Counts._fields))
    saved = [
        files.join(scratch, f"counts-{i:05d}.json") for i in range(len(paths))
    ]
    work = functools.partial(count, seed)
    for file_counts in workers.map(work, zip(paths, saved, strict=True)):
        for total, part in zip(counts, file_counts, strict=True):
            total.update(part)
    return counts


def make_records(
    build: BuildConfig,
    config: PhonemesConfig,
    paths: list[str],
    folder: build_folder.BuildFolder,
    workers: Workers,
) -> None:
    """Count symbols and words, choose the table, and write all files."""
    counts = total_counts(build.random_seed, paths, folder.scratch, workers)
    table = table_of(config, counts)
    require_known(counts, table)
    table.check_claim(build.output_dir)
    of_symbols = np.zeros(table.vocab_size, int)
    of_symbols[[*table.ids.values()]] = [counts.symbols[s] for s in table.ids]
    metadata.write_piece_counts(build.output_dir, of_symbols.tolist())
    jobs = [
        (split, path, f"{split}-{i:05d}-of-{len(paths):05d}.tfrecord")
        for split in ((TRAIN, EVAL) if build.eval_fraction else (TRAIN,))
        for i, path in enumerate(paths)
    ]
    room = folder.identity["max_seq_length"]
    border = border_of(build.eval_fraction, counts)
    work = functools.partial(
        make_file, build, border, room, table, folder.scratch
    )
    splits, padding = {TRAIN: (), EVAL: ()}, 0
    for (split, *_), made in zip(jobs, workers.map(work, jobs), strict=True):
        splits[split] += made[:1]
        padding += made[1]
    positions = room * sum(
        x.records for entries in splits.values() for x in entries
    )
    result = Metadata(
        max_seq_length=room,
        max_predictions_per_seq=room,
        vocab_size=table.vocab_size,
        tokenizer_fingerprint=table.fingerprint(),
        splits=splits,
        settings=folder.identity,
        statistics=statistics_of(table, counts)
        | {"padding_share": padding / max(positions, 1)},
    )
    for split, *_ in jobs:
        rule = f"`input_file` must yield {split} records: it needs at "
        rule += "least two different documents, not all of them held out; "
        rule += "--eval_fraction=0 holds out no text."
        require(result.count(split), rule, words=counts.words.total())
    table.save(build.output_dir)
    result.write(build.output_dir)


def row_paths(source: str, output_dir: str) -> list[str]:
    """Return the files of rows that `input_file` names.

    A matching `manifest.json`, which contains no rows, is left out.
    """
    skipped = build_folder.MANIFEST_FILE
    candidates = input_paths(source, output_dir)
    paths = [p for p in candidates if os.path.basename(p) != skipped]
    rule = "`input_file` must name files of rows of words and phonemes"
    require(paths, f"{rule}, such as phonemes-*.", input_file=source)
    for path in paths:
        legal = kind_of(path) != TEXT
        require(legal, f"{rule}; {FROM_TEXT}", input_file=path)
    return paths


def build(
    build: BuildConfig, config: PhonemesConfig, settings: dict
) -> Metadata:
    """Build phoneme records from files of rows; return their metadata.

    Args:
      build, config: the settings.
      settings: {name: value} of all settings.
    """
    paths = row_paths(build.input_file, build.output_dir)
    number = build.num_processes or available()
    identity = {k: v for k, v in settings.items() if k in IDENTITY} | {
        "builder_version": PHONEME_BUILDER_VERSION,
        "masking": DYNAMIC,
        "corpus": build_folder.corpus_hash(paths, number),
    }
    if config.symbols not in (*symbols.PRESETS, symbols.AUTO):
        table = symbols.named_table(config.symbols)
        identity["symbols"] = table.with_words(()).fingerprint()
    folder = build_folder.BuildFolder(
        build.output_dir, build.scratch_dir, identity
    )
    with (
        Workers(number, __name__) as workers,
        build_folder.disk_errors(build.output_dir),
    ):
        make = functools.partial(
            make_records, build, config, paths, folder, workers
        )
        vocabulary = symbols.WORDS_FILE, symbols.SYMBOLS_FILE
        return folder.build(make, vocabulary)
