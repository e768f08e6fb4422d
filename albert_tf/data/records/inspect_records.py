"""Print pretraining records in readable form."""

import dataclasses
import itertools
import operator
import os
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from albert_tf.base import files, program
from albert_tf.base.console import is_terminal
from albert_tf.base.errors import require
from albert_tf.base.settings import Validated, setting
from albert_tf.data.records import tfrecord
from albert_tf.data.records.metadata import (
    PATTERN,
    is_described,
    load_metadata,
)
from albert_tf.text.symbols import (
    SEPARATOR_LABEL,
    SymbolTable,
    vocabulary_in,
)
from albert_tf.text.tokenizers import (
    Tokenizer,
    TokenizerConfig,
    build_tokenizer,
)
from albert_tf.text.vocabulary import Vocabulary

PAINT = {
    "a": "\033[36m",
    "b": "\033[33m",
    "masked": "\033[1;31m",
    "special": "\033[2m",
}
PLAIN = "\033[0m"

# The meanings of the labels 0 and 1.
ORDER = "sentence order 0, in order", "sentence order 1, swapped"
NEXT = "next sentence 0, B belongs to A", "next sentence 1, B was replaced"
WORD_MARKS = ("▁", "##")


@dataclasses.dataclass(frozen=True)
class InspectConfig(Validated):
    """Settings that select the records to print."""

    input_file: str = setting(
        None,
        "Record files: a comma-separated list of files, globs and folders; "
        "the flag name may be omitted.",
    )
    num_examples: int = setting(
        3, "Number of examples to print per file.", minimum=0
    )


def find_paths(patterns: str) -> list[str]:
    """Return the files named by a comma-separated list of paths and globs.

    For a folder, the result contains its `*.tfrecord*` and `*.tf_record*`
    files.

    Raises:
      InputError: if a folder contains no such files, or an entry matches
        nothing.
    """
    paths = []
    for entry in files.split_paths(patterns):
        matches = files.matches(PATTERN, entry)
        rule = "A folder in `input_file` must contain *.tfrecord files."
        require(matches or not files.is_folder(entry), rule, input_file=entry)
        paths += matches or files.glob(entry, "`input_file`")
    return paths


def find_vocabulary(path: str, config: TokenizerConfig) -> Vocabulary | None:
    """Return the tokenizer set by flags, or the vocabulary beside the file.

    The result is None if there is neither a tokenizer nor a symbol table.

    Raises:
      InputError: if the folder's metadata name a different vocabulary.
    """
    folder = os.path.dirname(path)
    if config.spm_model_file or config.vocab_file:
        vocabulary = build_tokenizer(config)
    else:
        vocabulary = vocabulary_in(folder)
    if vocabulary and is_described(folder):
        made_with = load_metadata(folder).tokenizer_fingerprint
        require(
            made_with in ("", vocabulary.fingerprint()),
            "The vocabulary and its text settings must match the records; "
            "without --spm_model_file and --vocab_file, `inspect_records` uses "
            "the vocabulary in the folder of the records.",
            input_file=f"{path} with a different vocabulary",
        )
    return vocabulary


def paint(kind: str, text: str) -> str:
    """Return text with color codes, if the output is a terminal."""
    return f"{PAINT[kind]}{text}{PLAIN}" if is_terminal(sys.stdout) else text


def _names(ids: np.ndarray, tokenizer: Tokenizer | None) -> list[str]:
    """Return the pieces for ids, or the ids if there is no tokenizer."""
    names = {i: str(i) for i in ids.tolist()}
    if tokenizer is not None:
        highest = max(names, default=0)
        require(
            highest < tokenizer.vocab_size,
            "The tokenizer must match the records; see --spm_model_file and "
            "--vocab_file.",
            vocab_size=tokenizer.vocab_size,
            id=highest,
        )
        real = [i for i in names if i >= 0]
        names |= zip(real, tokenizer.pieces(real), strict=True)
    names |= {tfrecord.CLS: "[CLS]", tfrecord.SEP: "[SEP]"}
    return [names[i] for i in ids.tolist()]


def _text(piece: str) -> str:
    for mark in WORD_MARKS:
        piece = piece.removeprefix(mark)
    return piece


def _words(
    example: tfrecord.Example, tokenizer: Tokenizer | None
) -> Iterator[tuple[bool, str]]:
    """Yield (whether a space precedes it, text) for each token."""
    shown = _names(example.input_ids, tokenizer)
    labels = _names(example.labels, tokenizer)
    masked = dict(zip(example.positions.tolist(), labels, strict=True))
    segments = example.segment_ids.tolist()
    ends = {0, len(shown) - 1, segments.index(1) - 1 if 1 in segments else 0}
    for index, (piece, segment) in enumerate(zip(shown, segments, strict=True)):
        original = masked.get(index, piece)
        blank = tokenizer is None or original.startswith(WORD_MARKS[0])
        if tokenizer is not None and tokenizer.kind == "wordpiece":
            blank = not original.startswith(WORD_MARKS[1])
        if index in ends:
            yield True, paint("special", piece)
        elif index in masked:
            text = " → ".join(_text(x) or x for x in (piece, original))
            yield blank, paint("masked", f"[{text}]")
        else:
            yield blank or index - 1 in ends, paint("ab"[segment], _text(piece))


def _facts(example: tfrecord.Example, labels: Sequence[str]) -> Iterator[str]:
    """Yield the facts to print before the text of an example."""
    number, masked = len(example.input_ids), len(example.positions)
    a, b = map(len, example.segments())
    yield labels[example.swapped] if b else "one segment, no order"
    yield f"{number} tokens of {example.length}"
    yield f"A {a}, B {b}"
    if example.slots:
        share = f"{masked / max(number, 1):.1%}"
        yield f"{masked} of {example.slots} predictions ({share})"
    else:
        yield "masked during training"


def _spoken(example: tfrecord.Example, table: SymbolTable | None) -> str:
    """Return a phoneme record's words as `symbols [word]`.

    Without a symbol table, return the record's ids.
    """
    facts = f"{len(example.input_ids)} symbols; masked during training"
    if table is None:
        return f"{facts}\n{' '.join(map(str, example.input_ids.tolist()))}"
    names = dict(map(reversed, table.symbols.items()))
    texts = dict(enumerate(table.words))
    pairs = zip(example.words.tolist(), example.input_ids.tolist(), strict=True)
    words = [
        "".join(names.get(i, f"<{i}>") for _, i in group)
        + f" [{texts.get(label, label)}]"
        for label, group in itertools.groupby(pairs, operator.itemgetter(0))
        if label != SEPARATOR_LABEL
    ]
    return f"{facts}, {len(words)} words\n{' '.join(words)}"


def show(
    example: tfrecord.Example,
    vocabulary: Vocabulary | None,
    labels: Sequence[str] = ORDER,
) -> str:
    """Return an example in readable form; `labels` is `ORDER` or `NEXT`."""
    is_table = isinstance(vocabulary, SymbolTable)
    if example.words is not None:
        return _spoken(example, vocabulary if is_table else None)
    words = _words(example, None if is_table else vocabulary)
    text = "".join(" " * blank + word for blank, word in words)
    return "; ".join(_facts(example, labels)) + "\n" + text.strip()


def inspect_file(
    path: str, config: InspectConfig, tokenization: TokenizerConfig
) -> None:
    """Print the first examples of a file."""
    vocabulary = find_vocabulary(path, tokenization)
    print(f"{path}")
    if vocabulary is None:
        print(
            "The file's folder contains no tokenizer, so ids are printed; see "
            "--spm_model_file and --vocab_file"
        )
    labels, folder = ORDER, os.path.dirname(path)
    if is_described(folder):
        settings = load_metadata(folder).settings
        labels = NEXT if settings.get("random_next_sentence") else ORDER
    examples = tfrecord.decoded(path, config.num_examples)
    for number, example in enumerate(examples):
        print(f"\nExample {number}: {show(example, vocabulary, labels)}")
    print()


@program.command(InspectConfig, TokenizerConfig, positional="input_file")
def inspect_records(
    config: InspectConfig, tokenization: TokenizerConfig
) -> None:
    """Print examples from record files."""
    require(
        config.input_file,
        "`input_file` is required: python -m albert_tf.inspect_records FILE.",
        input_file=None,
    )
    for path in find_paths(config.input_file):
        inspect_file(path, config, tokenization)


cli = inspect_records.program.cli
