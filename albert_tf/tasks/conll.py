"""Sentences of CoNLL files, a word a line, and the schemes of their tags."""

import dataclasses
from collections.abc import Iterator, Sequence

from albert_tf.base import files
from albert_tf.base.errors import InputError

OUTSIDE = "O"
DOCUMENT_START = "-DOCSTART-"


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words, their tags if they are known, and where the sentence begins."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    path: str
    line: int

    def where(self, word: int) -> str:
        """Return "file:line" of a word."""
        return f"{self.path}:{self.line + word}"


def column(cells: list[str], number: str, flag: str, where: str) -> str:
    """Return the cell of a column by its number, "1" being the first."""
    position = int(number) if number.isdigit() else 0
    if not 1 <= position <= len(cells):
        raise InputError(
            f"{where}: `{flag}` must be the number of one of {len(cells)} "
            f"columns. Received: {flag}={number}"
        )
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
    last = len(cells)
    if last == 1 or (not tagged and number.isdigit() and int(number) > last):
        return None
    return column(cells, number or str(last), "label_column", where).strip()


def cells_of(line: str) -> list[str]:
    """Return the columns of a line, between tabs or else white space."""
    if "\t" in line:
        return line.split("\t")
    return line.split()


def blocks(text: str) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield the first line's number and the rows of each sentence."""
    rows: list[list[str]] = []
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        line = line.removesuffix("\r")
        if line.strip() and not line.startswith(DOCUMENT_START):
            rows.append(cells_of(line))
        elif rows:
            yield number - len(rows), rows
            rows = []


def read_conll(
    path: str, word_column: str, tag_column: str, tagged: bool
) -> list[Sentence]:
    """Return the sentences of a file.

    Args:
      path: the file; a blank line ends a sentence.
      word_column: number of the column of words, "" for the first.
      tag_column: number of the column of tags, "" for the last of several.
      tagged: whether the file must have tags.

    Raises:
      InputError: a line lacks a column; the message names file and line.
    """
    text = files.read_text(path, "The data file").removeprefix("\ufeff")
    sentences = []
    for line, rows in blocks(text):
        words, tags = [], []
        for number, cells in enumerate(rows, start=line):
            where = f"{path}:{number}"
            words.append(
                column(cells, word_column or "1", "text_column", where)
            )
            tag = tag_of(cells, tag_column, tagged, where)
            if tag:
                tags.append(tag)
            elif tagged:
                raise InputError(
                    f"{where}: a line must have a word and a tag. "
                    f"Received: {' '.join(cells)[:60]!r}"
                )
        known = tuple(tags) if len(tags) == len(words) else None
        sentences.append(Sentence(tuple(words), known, path, line))
    return sentences


def parts(tag: str, where: str = "") -> tuple[str, str]:
    """Return a tag's prefix and its type: ("B", "PER"), ("O", "")."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, dash, kind = tag.partition("-")
    if dash and kind and prefix in "BIES" and len(prefix) == 1:
        return prefix, kind
    raise InputError(
        f"{where}: a tag must be O, or a prefix B, I, E or S, a dash and "
        f"a type. Received: {tag!r}"
    )


# For each scheme the prefixes that begin an entity, go on with it, and end it.
SCHEMES = {
    "IO": ("I", "I", "I"),
    "IOB1": ("IB", "I", "IB"),
    "BIO": ("B", "I", "BI"),
    "BIOES": ("BS", "IE", "ES"),
}


def separates_only(sentences: Sequence[Sentence]) -> bool:
    """Return whether every B stands after an entity of its own type."""
    for sentence in sentences:
        before = ("", "")
        for tag in map(parts, sentence.tags or ()):
            if tag[0] == "B" and before[1] != tag[1]:
                return False
            before = tag
    return True


def find_scheme(sentences: Sequence[Sentence]) -> str:
    """Return the scheme of the tags, a key of `SCHEMES`."""
    prefixes = {
        parts(tag, s.where(i))[0]
        for s in sentences
        for i, tag in enumerate(s.tags or ())
    }
    if prefixes & set("ES"):
        return "BIOES"
    if "B" not in prefixes:
        return "IO"
    return "IOB1" if separates_only(sentences) else "BIO"


def check_tags(sentence: Sentence, scheme: str) -> None:
    """Refuse a tag that cannot follow the one before it.

    Raises:
      InputError: the message names file, line and both tags.
    """
    if scheme in ("IO", "IOB1"):
        return  # any tag may follow any other
    begins, _, ends = SCHEMES[scheme]
    before, before_tag = (OUTSIDE, ""), OUTSIDE
    for i, tag in enumerate([*(sentence.tags or ()), OUTSIDE]):
        where = sentence.where(min(i, len(sentence.words) - 1))
        prefix, kind = parts(tag, where)
        goes_on = prefix != OUTSIDE and prefix not in begins
        is_open = before[0] != OUTSIDE and before[0] not in ends
        may_go_on = before[0] != OUTSIDE and before[0] not in "ES"
        if (goes_on and not (may_go_on and before[1] == kind)) or (
            is_open and not goes_on
        ):
            after = tag if i < len(sentence.words) else "the sentence's end"
            raise InputError(
                f"{where}: by the scheme {scheme}, {after} must not follow "
                f"{before_tag}. Received: {before_tag} {after}"
            )
        before, before_tag = (prefix, kind), tag


def all_tags(sentences: Sequence[Sentence], scheme: str) -> tuple[str, ...]:
    """Return O and every tag of the types that occur, in a fixed order."""
    found = {tag for s in sentences for tag in s.tags or ()}
    kinds = sorted({parts(tag)[1] for tag in found} - {""})
    begins, goes_on, _ = SCHEMES[scheme]
    prefixes = dict.fromkeys(begins[:1] + goes_on + begins[1:])
    return (OUTSIDE, *(f"{p}-{kind}" for kind in kinds for p in prefixes))
