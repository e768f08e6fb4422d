"""Sentences of tagged words, and tables of such sentences.

A table has one sentence per row, or one word per row and a column that names
the word's sentence.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from albert_tf.base.errors import brief, require
from albert_tf.data.row_files import Row
from albert_tf.tasks.tables import cell, json_cell, label_text
from albert_tf.text.wordpiece import (
    IDEOGRAPH,
    is_punctuation,
    split_punctuation,
)

WORDS_COLUMN, TAGS_COLUMN = "tokens", "ner_tags"  # as on the Hugging Face Hub
SENTENCE_NAMES = {"sentence #", "sentence_id", "sent_id"}  # in lower case
# Usual column names in files and tables, in lower case.
WORD_NAMES = {"word", "words", "token", "tokens", "form", "text", "sentence"}
TAG_NAMES = {
    *("tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "iob"),
    *("bio", "entity", "entities", "pos", "pos_tag", "pos_tags", "upos"),
    *("chunk", "chunk_tag", "chunk_tags", "word_labels"),
}
DIVIDERS = r"[,\s]+"  # separates tags in a text
# A list of texts as Python or NumPy prints it, which pandas writes to CSV.
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
PRINTED_LIST = re.compile(rf"\s*\[\s*{_QUOTED}(?:[,\s]+{_QUOTED})*\s*\]\s*")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The words of a sentence, their tags if known, and their location.

    Attributes:
      words: the words; at least one, except in a table.
      tags: the tags, or None if any is missing.
      path: the file, or the row of a table.
      line: the line of the first word, or None in a table.
      lines: the line of each word, if the lines are not consecutive.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    path: str
    line: int | None
    lines: tuple[int, ...] = ()

    def where(self, word: int) -> str:
        """Return a word's location as "file:line", or as "row, word N"."""
        if self.line is None:
            return f"{self.path}, word {word}"
        line = self.lines[word] if self.lines else self.line + word
        return f"{self.path}:{line}"


def is_word(character: str) -> bool:
    """Return whether a character always forms a word by itself."""
    return is_punctuation(character) or bool(IDEOGRAPH.match(character))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each word in a text.

    A word is a single punctuation mark or ideograph, or a run of other
    characters without white space.
    """
    return [
        (run.start() + start, run.start() + end)
        for run in re.finditer(r"\S+", text)
        for start, end in split_punctuation(run[0], is_word)
    ]


def split_words(text: str) -> list[str]:
    """Return the words of a text, split as in exported models."""
    return [text[start:end] for start, end in word_spans(text)]


def words_in(row: Row, column: str, tags: Any) -> tuple[str, ...]:
    """Return the words in a row's cell, which contains a list or a text.

    A text is split by `split_words`. If only a split at spaces has one word per
    tag, the text is split at spaces. A text may be a JSON list.
    """
    value = cell(row, column, "text_column")
    words = json_cell(value, list)
    legal = isinstance(words, list) and all(isinstance(x, str) for x in words)
    if isinstance(value, str) and not legal:
        words = value
        rule = f"{row.where}: a list in column {column} must be JSON, such as "
        rule += '["New", "York"].'
        is_list = PRINTED_LIST.fullmatch(words)
        require(not is_list, rule, **{column: brief(words)})
        spaced = isinstance(tags, list) and len(words.split()) == len(tags)
        parts = split_words(words)
        if spaced and len(parts) != len(tags):
            parts = words.split()
        return tuple(parts)
    rule = f"{row.where}: column {column} must be a list of texts, or a text."
    require(legal, rule, **{column: brief(words)})
    return tuple(words)


def tags_in(row: Row, column: str) -> list[str | None]:
    """Return the tags of a row as strings; a missing tag is None."""
    tags, where = cell(row, column, "label_column"), row.label_where
    tags = json_cell(tags, list)
    if isinstance(tags, str):
        rule = f"{where}: column {column} must have tags separated by spaces, "
        rule += 'or a JSON list such as ["B-PER", "O"].'
        is_list = tags.lstrip().startswith("[")
        require(not is_list, rule, **{column: brief(tags)})
        tags = re.split(DIVIDERS, tags.strip()) if tags.strip() else []
    rule = f"{where}: column {column} must be a list of tags."
    require(isinstance(tags, list), rule, **{column: brief(tags)})
    return [label_text(x, f"{where}, word {i}") for i, x in enumerate(tags)]


def sentence_in(row: Row, words: str, tags: str, tagged: bool) -> Sentence:
    """Return the sentence of a row; for the arguments, see `read_conll`."""
    row_tags = None
    if tagged or row.values.get(tags) is not None:
        row_tags = tags_in(row, tags)
    texts = words_in(row, words, row_tags)
    if row_tags is None or not (tagged or row_tags) and texts:
        return Sentence(texts, None, row.where, None)
    require(
        len(row_tags) == len(texts),
        f"{row.label_where}: every word must have a tag.",
        words=len(texts),
        tags=len(row_tags),
    )
    if None in row_tags:
        rule = f"{row.label_where}: every word must have a tag."
        require(not tagged, rule, **{f"tag {row_tags.index(None)}": None})
        row_tags = None
    tags = None if row_tags is None else tuple(row_tags)
    return Sentence(texts, tags, row.label_where, None)


def group_rows(rows: Iterable[Row], column: str) -> Iterator[Row]:
    """Yield one row per sentence, from a table with one word per row.

    Args:
      rows: the rows of the table.
      column: the column of sentence names; an empty cell repeats the previous
        name.
    """
    group: list[Row] = []
    for row in [*rows, None]:
        name = row and cell(row, column, "id_column")
        first = group[0].values[column] if group else None
        if group and (row is None or name not in (None, "", first)):
            names = group[0].values  # later JSON objects may lack some
            values = {k: [r.values.get(k) for r in group] for k in names}
            yield Row(group[0].where, values)
            group = []
        group.append(row)


def sentence_column(names: Iterable[str]) -> str:
    """Return the first column in `SENTENCE_NAMES`, ignoring case, or ""."""
    return next((x for x in names if x.lower() in SENTENCE_NAMES), "")


def have_words(rows: list[Row], column: str, id_column: str) -> bool:
    """Return whether each row contains a word, not a sentence.

    Words may contain spaces if rows share the name of their sentence.
    """
    cells = [json_cell(row.values.get(column), list) for row in rows]
    if not all(isinstance(x, str | None) for x in cells):
        return False
    names = [row.values.get(id_column) for row in rows]
    shared = any(b in (a, "", None) for a, b in itertools.pairwise(names))
    single = all(len(x.split()) == 1 for x in cells if x is not None)
    return single or bool(id_column) and shared


def rows_of_words(
    rows: Iterable[Row],
    word_column: str,
    tag_column: str,
    tagged: bool,
    id_column: str = "",
) -> list[Sentence]:
    """Return the sentences of a table; for the arguments, see `read_conll`."""
    rows = list(rows)
    names = rows[0].values if rows else ()
    words = column_in(names, word_column, WORDS_COLUMN, WORD_NAMES)
    tags = column_in(names, tag_column, TAGS_COLUMN, TAG_NAMES)
    if len(rows) > 1 and have_words(rows, words, id_column):
        id_column = id_column or sentence_column(rows[0].values)
        single_tag = tagged and isinstance(rows[0].values.get(tags), str)
        require(
            id_column or not single_tag,
            f"{rows[0].where}: if each row is a word, `id_column` must name "
            "the column of sentence names.",
            columns=", ".join(rows[0].values),
        )
        rows = list(group_rows(rows, id_column)) if id_column else rows
    sentences = [sentence_in(row, words, tags, tagged) for row in rows]
    # Prediction covers all rows.
    return [s for s in sentences if s.words or not tagged]


def column_in(
    names: Iterable[str], column: str, default: str, aliases: set[str]
) -> str:
    """Return the name of the column to read from a table.

    Args:
      names: all columns of the table.
      column: the requested column; "" or a number if no name is requested.
      default: the default column.
      aliases: other usual names; if `default` is absent and the table has
        exactly one of these columns, the result is that column.
    """
    name, names = name_in_table(column, default), list(names)
    matches = [x for x in names if x.lower() in aliases]
    explicit = column and name == column
    if explicit or name in names or len(matches) != 1:
        return name
    return matches[0]


def name_in_table(column: str, default: str) -> str:
    """Return `column`, or the default if `column` is "" or a number."""
    return default if not column or column.isdecimal() else column
