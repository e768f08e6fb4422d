"""CoNLL files, tag schemes and entity spans."""

import collections
import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence

from albert_tf.base.console import counted
from albert_tf.base.errors import brief, require
from albert_tf.data.file_kinds import CSV, JSON, JSONL, kind_of, read_text
from albert_tf.data.row_files import Row, csv_cells, distinct_names
from albert_tf.data.table_sources import is_table
from albert_tf.tasks.tables import Columns, read_rows
from albert_tf.tasks.tagged_words import (
    DIVIDERS,
    TAG_NAMES,
    WORD_NAMES,
    Sentence,
    rows_of_words,
    sentence_column,
)

BOUNDARIES = ("-DOCSTART-", "-X-")  # first cells of lines without a word

# The number of a word. A second number, as in 1-2 or 1.1, marks a line that is
# not a single word. The number of digits is limited, because Python cannot
# parse a number with thousands of digits.
ID = re.compile(r"(\d{1,9})([-.]\d{1,9})?")
CONLLU_COLUMNS = 10


OUTSIDE = "O"
UNTYPED = "_"  # the type of tags that consist only of a prefix, as in seqeval

# The prefixes of all schemes (BIO, IOE, BIOES, BMES, BILOU, BMEWO) and their
# roles: B begins an entity, I continues it, E ends it, and S marks an entity of
# one word.
ROLES = dict(B="B", I="I", M="I", E="E", L="E", S="S", U="S", W="S")
TAG = re.compile(rf"([{''.join(ROLES)}])(?:([-_])(.+))?", re.DOTALL)

CLASSES = "classes"  # the scheme of tags that do not mark entities
# The roles that begin, continue and end an entity in each scheme.
SCHEMES = {
    "IO": ("IE", "IE", "IE"),  # also for the IOE schemes
    "BIO": ("B", "I", "BI"),
    "BIOES": ("BS", "IE", "ES"),
}
# Sets of prefixes that are used together. The first set that contains all
# prefixes in the data supplies the missing prefixes.
FAMILIES = ("I", "BI", "IE", "BIES", "BMES", "BILU", "BMEW")


def split_tag(tag: str) -> tuple[str, str]:
    """Return a tag's role and type, such as `("B", "PER")`.

    The result is `("O", "")` for tags that do not mark an entity.
    """
    match = TAG.fullmatch(tag)
    return (ROLES[match[1]], match[3] or UNTYPED) if match else (OUTSIDE, "")


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a file; a line without cells ends a sentence."""

    number: int
    text: str
    cells: list[str]

    @property
    def is_marked(self) -> bool:
        """Whether the line begins with #, as comments do."""
        return self.text.startswith("#")

    @property
    def is_hashtag(self) -> bool:
        """Whether the line begins with #, immediately followed by a word."""
        return self.is_marked and self.cells[0] != "#"


def split_cells(line: str) -> list[str]:
    """Split a line into cells at tabs, or at spaces if there are no tabs.

    Words may contain other white space, such as no-break spaces in numbers.
    """
    line = line.rstrip("\t ")
    if "\t" in line:
        return line.split("\t")
    return [cell for cell in line.split(" ") if cell]


def read_lines(path: str) -> list[Line]:
    """Return the lines of a file, split into cells; split CSV at commas.

    Lines that are not part of a sentence have no cells.
    """
    text = read_text(path, "The data file")
    numbered = enumerate(text.split("\n"), 1)
    if kind_of(path) == CSV:
        lines = [(i, ",".join(x), x) for i, x in csv_cells(numbered, path)]
    else:
        plain = ((i, line.removesuffix("\r")) for i, line in numbered)
        lines = [(i, line, split_cells(line)) for i, line in plain]
    return [
        Line(i, line, cells if has_cells(cells) else [])
        for i, line, cells in lines
    ]


def has_cells(cells: list[str]) -> bool:
    """Return whether a line is part of a sentence.

    Blank lines, and boundaries such as -DOCSTART-, are between sentences.
    """
    return any(map(str.strip, cells)) and cells[0] not in BOUNDARIES


def without_comments(lines: list[Line]) -> list[Line]:
    """Drop comments: lines that begin with # and are not words.

    A word's line has as many columns as most other lines. A comment that is
    split at spaces may have the same number of columns by chance. Such a
    comment is recognized by its position before a sentence, by the lack of a
    tag at its end, and by a space after #. The space is not required if other
    comments lack it.
    """
    words = [line.cells for line in lines if line.cells and not line.is_marked]
    if not words:
        return lines
    width = collections.Counter(map(len, words)).most_common(1)[0][0]
    tags = {cells[-1] for cells in words}
    marked = [line for line in lines if line.is_marked]
    comments = [line for line in marked if len(line.cells) != width]
    hashtags = not any(line.is_hashtag for line in comments)

    def is_word(line: Line, begins: bool) -> bool:
        """Return whether a line that begins with # is a word.

        Args:
          line: the line.
          begins: whether the line is the first of a sentence.
        """
        if len(line.cells) != width:
            return False
        if "\t" in line.text or width == 1 or not begins:
            return True
        tag = line.cells[-1]
        is_tag = tag in tags or bool(split_tag(tag)[1])
        return is_tag or hashtags and line.is_hashtag

    remaining: list[Line] = []
    for line in lines:
        begins = not remaining or not remaining[-1].cells
        if not line.is_marked or is_word(line, begins):
            remaining.append(line)
    return remaining


def header_in(lines: list[Line], columns: Sequence[str], path: str) -> Line:
    """Return the first line if it names columns, otherwise an empty line.

    Args:
      lines: the lines of the file.
      columns: the requested columns, by name or number.
      path: the path of the file.

    Raises:
      InputError: if the line lacks a column that is requested by name.
    """
    empty = Line(0, "", [])
    first = next((line for line in lines if line.cells), empty)
    names = {name.strip() for name in first.cells}
    requested = {x for x in columns if x and not x.isdecimal()}
    lowercase = {name.lower() for name in names}
    tagged = lowercase & TAG_NAMES or kind_of(path) == CSV
    if requested and requested <= names or lowercase & WORD_NAMES and tagged:
        return first
    rule = f"{path}: the first line must name the requested columns; "
    rule += f"its columns are {', '.join(sorted(names))}."
    require(not requested, rule, columns=", ".join(sorted(requested - names)))
    return empty


def sentences_of(lines: list[Line]) -> list[list[Line]]:
    """Return the lines of each sentence."""
    groups = itertools.groupby(lines, lambda line: bool(line.cells))
    return [list(group) for has_word, group in groups if has_word]


def have_ids(sentences: list[list[Line]]) -> bool:
    """Return whether the first column contains word numbers.

    Every line must have at least three columns, and the words of each sentence
    must be numbered consecutively, from 0 or 1.
    """
    for sentence in sentences:
        if min(len(line.cells) for line in sentence) < 3:
            return False
        ids = [ID.fullmatch(line.cells[0]) for line in sentence]
        if None in ids:
            return False
        numbers = [int(x[1]) for x in ids if not x[2]]
        first = numbers[0] if numbers else 2
        if first > 1 or numbers != [*range(first, first + len(numbers))]:
            return False
    return True


def column(cells: list[str], number: str, flag: str, where: str) -> str:
    """Return the cell in a column; column numbers start at "1"."""
    position, last = int(number), len(cells)
    rule = f"{where}: `{flag}` must be the number of one of the {last} columns."
    require(1 <= position <= last, rule, **{flag: number})
    return cells[position - 1]


def tag_of(
    cells: list[str], number: str, tagged: bool, where: str
) -> str | None:
    """Return the tag on a line, or None if the line has no tag.

    Args:
      cells: the cells of the line.
      number: the number of the tag column; "" for the last of several columns.
      tagged: whether a tag is required.
      where: "file:line".
    """
    last, tag = len(cells), ""
    absent = not tagged and number and int(number) > last
    if last > 1 and not absent:
        tag = column(cells, number or str(last), "label_column", where)
        tag = unicodedata.normalize("NFC", tag.strip())
    rule = f"{where}: a line must have a word and a tag."
    require(tag or not tagged, rule, line=repr(brief(" ".join(cells))))
    return tag or None


def column_number(
    name: str, header: Sequence[str], usual_names: set[str]
) -> str:
    """Return a column's number as text, or "" if it is unknown.

    Args:
      name: the requested column, a number or a name in the header, or "".
      header: the names of the columns.
      usual_names: usual names of the column, in lower case.
    """
    if name.isdecimal():
        return name
    names = [x for x in header if x.lower() in usual_names]
    name = name or (names[-1] if names else "")
    return str(header.index(name) + 1) if name else ""


def named_rows(
    path: str, header: list[str], lines: Iterable[Line]
) -> list[Row]:
    """Convert lines to rows of a table."""
    distinct_names(path, header)
    rows = []
    for line in lines:
        where = f"{path}:{line.number}"
        rule = f"{where}: every line must have {len(header)} columns."
        require(len(line.cells) == len(header), rule, columns=len(line.cells))
        rows.append(Row(where, dict(zip(header, line.cells, strict=True))))
    return rows


def is_table_of(
    sentences: list[list[Line]],
    header: list[str],
    word: str,
    tag: str,
    id_column: str,
) -> bool:
    """Return whether a file is a table of sentences, not a CoNLL file.

    A line of a table contains a whole sentence, or a word and the name of the
    word's sentence.

    Args:
      sentences: groups of lines between blank lines.
      header: the names of the columns.
      word, tag: the numbers of the word and tag columns, or "" if unknown.
      id_column: the requested column of sentence names.
    """
    if id_column or sentence_column(header):
        return True

    def parts(line: Line, number: str, divider: str) -> list[str]:
        cell = "".join(line.cells[int(number) - 1 : int(number)])
        return re.split(divider, cell.strip())

    lines = [*itertools.chain(*sentences)]
    # Examples for prediction may have a column of empty tags.
    has_tags = bool(tag) and any(any(parts(x, tag, DIVIDERS)) for x in lines)
    return bool(word) and any(
        len(parts(line, word, r"\s+")) > 1
        and (not has_tags or len(parts(line, tag, DIVIDERS)) > 1)
        for line in lines
    )


def has_word(line: Line) -> bool:
    """Return whether a line's number marks it as a single word."""
    return not ID.fullmatch(line.cells[0])[2]


def note_skipped(path: str, header: bool, comments: int, extra: int) -> None:
    """Print which lines of a file were skipped, and how many."""
    counts = {
        "a header": header,
        counted(comments, "comment line"): comments,
        f"{counted(extra, 'line')} of multiword tokens or empty nodes": extra,
    }
    descriptions = [text for text, number in counts.items() if number]
    if descriptions:
        print(f"Note: {path}: skipped {', '.join(descriptions)}")


def require_even(path: str, lines: list[Line], tag: str) -> None:
    """Raise `InputError` if a sentence's lines differ in the number of columns.

    Lines of one column, which lack a tag, are ignored. If the tag column is
    known, tabs or commas suffice to find it, and columns after it may be
    missing.

    Args:
      path: the file.
      lines: the lines of a sentence.
      tag: the number of the tag column; "" for the last of several columns.
    """
    tagged = [line for line in lines if len(line.cells) > 1]
    if tag:
        by_commas = kind_of(path) == CSV
        tagged = [x for x in tagged if not by_commas and "\t" not in x.text]
        if all(len(line.cells) > int(tag) for line in tagged):
            return
    for line in tagged:
        require(
            len(line.cells) == len(tagged[0].cells),
            f"{path}:{line.number}: the lines of a sentence must have the same "
            "number of columns; if words contain spaces, separate the columns "
            "with tabs.",
            columns=len(line.cells),
            before=len(tagged[0].cells),
        )


def sentence_of(
    path: str, lines: list[Line], word: str, tag: str, tagged: bool
) -> Sentence:
    """Return the sentence whose words are on the given lines."""
    require_even(path, lines, tag)
    words, tags = [], []
    for line in lines:
        where = f"{path}:{line.number}"
        words.append(column(line.cells, word, "text_column", where))
        tags.append(tag_of(line.cells, tag, tagged, where))
    sentence_tags = None if None in tags else tuple(tags)
    numbers = tuple(line.number for line in lines)
    first, last = numbers[0], numbers[-1]
    gaps = numbers if last - first >= len(numbers) else ()
    return Sentence(tuple(words), sentence_tags, path, first, gaps)


def read_conll(
    path: str,
    word_column: str,
    tag_column: str,
    tagged: bool,
    id_column: str = "",
) -> list[Sentence]:
    """Return the sentences of a file or table.

    Args:
      path: the file or table.
      word_column: the word column, by number, or by name in a header or table;
        "" for a column with a usual name, such as `tokens`, or, if there is
        none, for the first column that does not contain word numbers.
      tag_column: the tag column, by number or name; "" for a column with a
        usual name, such as `ner_tags`, or, if there is none, for the fourth
        column in CoNLL-U and the last of several columns elsewhere.
      tagged: whether tags are required.
      id_column: the column of sentence names in a table with one word per row;
        "" for a column with a usual name.

    Raises:
      InputError: if the file is malformed, for example if a line lacks a
        column; the message names the line.
    """
    if is_table(path) or kind_of(path) in (JSONL, JSON):
        rows = read_rows(path, Columns())
        return rows_of_words(rows, word_column, tag_column, tagged, id_column)
    all_lines = read_lines(path)
    lines = without_comments(all_lines)
    header = header_in(lines, (word_column, tag_column, id_column), path)
    names = [name.strip() for name in header.cells]
    sentences = sentences_of([line for line in lines if line is not header])
    word = column_number(word_column, names, WORD_NAMES)
    tag = column_number(tag_column, names, TAG_NAMES)
    comments, extra = len(all_lines) - len(lines), 0
    has_header_line = bool(names) and kind_of(path) != CSV
    if names and is_table_of(sentences, names, word, tag, id_column):
        note_skipped(path, has_header_line, comments, extra)
        rows = named_rows(path, names, itertools.chain(*sentences))
        word, tag = (names[int(n) - 1] if n else "" for n in (word, tag))
        return rows_of_words(rows, word, tag, tagged, id_column)
    if have_ids(sentences):
        width = {len(line.cells) for lines in sentences for line in lines}
        word, tag = word or "2", tag or "4" * (width == {CONLLU_COLUMNS})
        extra = sum(map(len, sentences))
        sentences = [[x for x in s if has_word(x)] for s in sentences]
        extra -= sum(map(len, sentences))
    note_skipped(path, has_header_line, comments, extra)
    return [sentence_of(path, s, word or "1", tag, tagged) for s in sentences]


def find_scheme(tags: Iterable[str]) -> str:
    """Return the scheme of a set of tags: `CLASSES`, or a key of `SCHEMES`.

    The scheme is `CLASSES` if at least half of the tags, except `O`, do not
    mark entities.
    """
    inside = {*tags} - {OUTSIDE}
    roles = [split_tag(tag)[0] for tag in inside]
    marks = {*roles} - {OUTSIDE}
    if 2 * roles.count(OUTSIDE) >= len(inside):
        return CLASSES
    if not marks & {"B", "S"}:
        return "IO"  # also IOE, in which any tag may follow any other
    return "BIOES" if marks & {"E", "S"} else "BIO"


def all_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the classes that the tags of a data set require, in order.

    If tags mark entities, `O` comes first, followed by the tags of each type
    and by any tags without a type. Each type has all prefixes of the scheme,
    even prefixes that do not occur with it. If tags do not mark entities, they
    are sorted, but `O`, if present, comes first.
    """
    tags = {*tags}
    if find_scheme(tags) == CLASSES:
        return tuple(sorted(tags, key=lambda tag: (tag != OUTSIDE, tag)))
    untyped = sorted(tag for tag in tags - {OUTSIDE} if not split_tag(tag)[1])
    matches = [match for match in map(TAG.fullmatch, tags) if match]
    letters = {match[1] for match in matches}
    prefixes = next((x for x in FAMILIES if letters <= {*x}), sorted(letters))
    types = sorted({(match[2] or "") + (match[3] or "") for match in matches})
    return (OUTSIDE, *(p + kind for kind in types for p in prefixes), *untyped)


def entity_spans(tags: Sequence[str]) -> list[list]:
    """Return `[first word, last word, type]` for each entity in tags.

    In every scheme, tags are interpreted as in CoNLL's script `conlleval`, even
    if a tag cannot follow the previous tag.
    """
    spans: list[list] = []
    before, closed = "", True
    for i, (role, kind) in enumerate(map(split_tag, tags)):
        if kind and (closed or kind != before or role in ("B", "S")):
            spans.append([i, i, kind])
        elif kind:
            spans[-1][1] = i
        before, closed = kind, role in ("E", "S")
    return spans


def invalid_transitions(tags: Sequence[str], scheme: str) -> list[int]:
    """Return the indices of words whose tags cannot follow the previous tag.

    An unclosed entity counts as an error at the following word, or at
    `len(tags)` if the sentence ends within the entity.
    """
    if scheme not in SCHEMES:
        return []
    begins, _, ends = SCHEMES[scheme]
    pairs = [(OUTSIDE, ""), *map(split_tag, tags), (OUTSIDE, "")]
    breaks = []
    for i in range(len(tags) + 1):
        (old_role, old_kind), (role, kind) = pairs[i : i + 2]
        continues = role not in {OUTSIDE, *begins}
        is_open = old_role not in {OUTSIDE, *ends}
        may_continue = old_role not in {OUTSIDE, *"ES"} and old_kind == kind
        if continues and not may_continue or is_open and not continues:
            breaks.append(i)
    return breaks


def only_separates(tags: Sequence[str]) -> bool:
    """Return whether each B follows an entity of the same type, as in IOB1."""
    pairs = [(OUTSIDE, ""), *map(split_tag, tags)]
    return all(
        role != "B" or pairs[i][1] == kind
        for i, (role, kind) in enumerate(pairs[1:])
    )
