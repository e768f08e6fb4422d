"""Sentences with a tag for every word, and the schemes of the tags.

They come from CoNLL files, a word a line, or tables, a sentence a row.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from albert_tf.base.errors import InputError, require
from albert_tf.data import file_kinds
from albert_tf.data.table_sources import is_table, rows_of
from albert_tf.tasks.tables import texts_cell

OUTSIDE = "O"
DOCUMENT_START = "-DOCSTART-"
WORDS_COLUMN, TAGS_COLUMN = "tokens", "ner_tags"  # of tables on the hub


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words, their tags if they are known, and where the sentence begins.

    In a table that is a row, and no line.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    path: str
    line: int | None

    def where(self, word: int) -> str:
        """Return "file:line" of a word, or its row and its number there."""
        if self.line is None:
            return f"{self.path}, word {word}"
        return f"{self.path}:{self.line + word}"


def column(cells: list[str], number: str, flag: str, where: str) -> str:
    """Return the cell of a column by its number, "1" being the first."""
    position = int(number) if number.isdigit() else 0
    last = len(cells)
    rule = f"{where}: `{flag}` must be the number of one of {last} columns."
    require(1 <= position <= last, rule, **{flag: number})
    return cells[position - 1]


def tag_of(
    cells: list[str], number: str, tagged: bool, where: str
) -> str | None:
    """Return the tag of a line, None if it has none.

    Args:
      cells: of the line.
      number: of the column of tags, "" for the last of several.
      tagged: whether it must be there.
      where: "file:line".
    """
    last, tag = len(cells), ""
    absent = not tagged and number.isdigit() and int(number) > last
    if last > 1 and not absent:
        tag = column(cells, number or str(last), "label_column", where).strip()
    rule = f"{where}: a line must have a word and a tag."
    require(tag or not tagged, rule, line=repr(" ".join(cells)[:60]))
    return tag or None


def cells_of(line: str) -> list[str]:
    """Return the columns of a line, between tabs or else spaces.

    A word may hold other white space, as a number its no-break space.
    Lines that end a sentence have none.
    """
    if not line.strip() or line.startswith(DOCUMENT_START):
        return []
    if "\t" in line:
        return line.split("\t")
    return [cell for cell in line.split(" ") if cell]


def read_rows_of_words(
    source: Any, word_column: str, tag_column: str, tagged: bool
) -> list[Sentence]:
    """Return the sentences of a table; the arguments are as `read_conll`'s."""
    word_column = word_column or WORDS_COLUMN
    tag_column = tag_column or TAGS_COLUMN
    sentences = []
    for row in rows_of(source):
        words, tags = texts_cell(row, word_column, "text_column"), None
        if tagged or row.values.get(tag_column) is not None:
            tags = texts_cell(row, tag_column, "label_column")
            require(
                len(tags) == len(words),
                f"{row.where}: every word must have a tag.",
                words=len(words),
                tags=len(tags),
            )
        if words or not tagged:  # predictions are those of all rows
            sentences.append(Sentence(words, tags, row.where, None))
    return sentences if any(s.words for s in sentences) else []


def read_conll(
    path: str, word_column: str, tag_column: str, tagged: bool
) -> list[Sentence]:
    """Return the sentences of a file.

    Args:
      path: the file; a blank line ends a sentence. Or a table, also of JSON
        lines.
      word_column: number of the column of words, "" for the first; of a table
        its name, "" for `tokens`.
      tag_column: number of the column of tags, "" for the last of several; of
        a table its name, "" for `ner_tags`.
      tagged: whether the file must have tags.

    Raises:
      InputError: a line lacks a column; the message names file and line.
    """
    if is_table(path) or file_kinds.kind_of(path) == file_kinds.JSONL:
        return read_rows_of_words(path, word_column, tag_column, tagged)
    text = file_kinds.read_text(path, "The data file")
    sentences: list[Sentence] = []
    words, tags = [], []
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        cells = cells_of(line.removesuffix("\r"))
        if cells:
            where = f"{path}:{number}"
            word = column(cells, word_column or "1", "text_column", where)
            words.append(word)
            tags.append(tag_of(cells, tag_column, tagged, where))
        elif words:
            known = None if None in tags else tuple(tags)
            first = number - len(words)
            sentences.append(Sentence(tuple(words), known, path, first))
            words, tags = [], []
    return sentences


def parts(tag: str, where: str = "") -> tuple[str, str]:
    """Return a tag's prefix and its type: ("B", "PER"), ("O", "")."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, _, kind = tag.partition("-")
    require(
        kind and prefix in {*"BIES"},
        f"{where}: a tag must be O, or a prefix B, I, E or S, a dash and a "
        f"type. Received: {tag!r}",
    )
    return prefix, kind


# For each scheme the prefixes that begin an entity, go on with it, and end it.
SCHEMES = {
    "IO": ("I", "I", "I"),
    "IOB1": ("IB", "I", "IB"),
    "BIO": ("B", "I", "BI"),
    "BIOES": ("BS", "IE", "ES"),
}


def find_scheme(sentences: Sequence[Sentence]) -> str:
    """Return the scheme of the tags, a key of `SCHEMES`.

    In IOB1, that of CoNLL-2003 itself, every B stands after an entity of its
    own type.
    """
    tags = [
        [parts(tag, s.where(i)) for i, tag in enumerate(s.tags or ())]
        for s in sentences
    ]
    prefixes = {prefix for row in tags for prefix, _ in row}
    if prefixes & {"E", "S"}:
        return "BIOES"
    if "B" not in prefixes:
        return "IO"
    separates_only = all(
        prefix != "B" or before == kind
        for row in tags
        for (_, before), (prefix, kind) in itertools.pairwise([("", ""), *row])
    )
    return "IOB1" if separates_only else "BIO"


def check_tags(sentence: Sentence, scheme: str) -> None:
    """Refuse a tag that cannot follow the one before it.

    Raises:
      InputError: the message names file, line and both tags.
    """
    if scheme in ("IO", "IOB1"):
        return  # any tag may follow any other
    begins, _, ends = SCHEMES[scheme]
    tags = [OUTSIDE, *(sentence.tags or ()), OUTSIDE]
    for i, (before, tag) in enumerate(itertools.pairwise(tags)):
        where = sentence.where(min(i, len(sentence.words) - 1))
        prefix, kind = parts(tag, where)
        old_prefix, old_kind = parts(before)
        goes_on = prefix not in {OUTSIDE, *begins}
        is_open = old_prefix not in {OUTSIDE, *ends}
        may_go_on = old_prefix not in {OUTSIDE, *"ES"} and old_kind == kind
        if goes_on and not may_go_on or is_open and not goes_on:
            after = tag if i < len(sentence.words) else "the sentence's end"
            raise InputError(
                f"{where}: by the scheme {scheme}, {after} must not follow "
                f"{before}. Received: {before} {after}"
            )


def entity_spans(tags: Sequence[str]) -> list[list]:
    """Return [first word, last word, kind] of the entities that tags mark.

    They are read as the script `conlleval` of CoNLL reads them, whatever the
    scheme, and also where a tag cannot follow the one before it.
    """
    spans: list[list] = []
    before, closed = "", True
    for i, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if kind and (closed or kind != before or prefix in ("B", "S")):
            spans.append([i, i, kind])
        elif kind:
            spans[-1][1] = i
        before, closed = kind, prefix in ("E", "S")
    return spans


def all_tags(sentences: Sequence[Sentence], scheme: str) -> tuple[str, ...]:
    """Return O and every tag of the types that occur, in a fixed order."""
    kinds = {parts(tag)[1] for s in sentences for tag in s.tags or ()} - {""}
    begins, goes_on, _ = SCHEMES[scheme]
    prefixes = dict.fromkeys(begins[:1] + goes_on + begins[1:])
    return (OUTSIDE, *(f"{p}-{k}" for k in sorted(kinds) for p in prefixes))
