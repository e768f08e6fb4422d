"""Tables, tagged words and questions of any text are read as written."""

import csv
import dataclasses
import io
import json
import sys

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from properties import examples, texts

from albert_tf.data.table_sources import as_source, rows_of
from albert_tf.tasks.conll import read_conll
from albert_tf.tasks.predictions import write_tsv
from albert_tf.tasks.registry import find, load_task
from albert_tf.tasks.squad import Reader
from albert_tf.tasks.tables import Columns, read_rows

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder for files."""
    return tmp_path_factory.mktemp("tables")


HEADS = ["NA", "nan", "null", '"', '""', "a b", "1.0", "-", "PAR1"]
TEXT = texts(*HEADS, most=6)
# With a single column, a blank line might be a row, so there are two columns.
TABLES = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3)
NAMES = ("text", "b c")


def written(table, **how):
    """Return the text that Python's csv module writes for a table."""
    content = io.StringIO(newline="")
    csv.writer(content, **how).writerows([NAMES, *table])
    return content.getvalue()


# Python quotes carriage returns only if lines end in them.
STYLES = (
    ("\r\n", csv.QUOTE_MINIMAL),
    ("\r\n", csv.QUOTE_ALL),
    ("\n", csv.QUOTE_ALL),
)


@examples(15)
@given(table=TABLES, style=st.sampled_from(STYLES))
@example(table=[("\r", "a\rb\r\n")], style=STYLES[2])
def test_csv(folder, table, style):
    """Cells of a CSV file may contain any text."""
    assume(sys.version_info >= (3, 11) or "\0" not in f"{table}")
    content = written(table, lineterminator=style[0], quoting=style[1])
    assume(content.count("\0") * 20 < len(content))
    (folder / "x.csv").write_text(content, encoding="utf-8", newline="")
    rows = [row.values for row in read_rows(str(folder / "x.csv"), Columns())]
    assert rows == [dict(zip(NAMES, cells, strict=True)) for cells in table]


CELL = texts(*HEADS, without="\t\n\r\0", most=6)


@examples(15)
@given(
    table=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=3),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_tsv(folder, table, end):
    """Cells of a TSV file may contain any text without tabs or line ends."""
    content = "".join("\t".join(cells) + end for cells in (NAMES, *table))
    (folder / "x.tsv").write_text(content, encoding="utf-8", newline="")
    rows = [row.values for row in read_rows(str(folder / "x.tsv"), Columns())]
    assert rows == [dict(zip(NAMES, cells, strict=True)) for cells in table]


@examples(10)
@given(table=TABLES)
@example(table=[("\ufeffa\t\r\n", " ")])
def test_our_own_tsv(folder, table):
    """Tables that we write are read back, with spaces for tabs and breaks."""
    path = write_tsv(str(folder / "own.tsv"), [NAMES, *table])
    spaces = str.maketrans("\t\n\r", "   ")
    table = [[cell.translate(spaces) for cell in cells] for cells in table]
    rows = [row.values for row in read_rows(path, Columns())]
    assert rows == [dict(zip(NAMES, cells, strict=True)) for cells in table]


VALUE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT
)
OBJECT = st.dictionaries(TEXT, VALUE | st.lists(VALUE, max_size=3), max_size=4)


@examples(15)
@given(rows=st.lists(OBJECT, min_size=1, max_size=4), escaped=st.booleans())
def test_json_lines(folder, rows, escaped):
    """JSON lines may contain objects with any names and values."""
    lines = [json.dumps(row, ensure_ascii=escaped) for row in rows]
    (folder / "x.jsonl").write_text(
        "\n".join(lines), encoding="utf-8", newline=""
    )
    found = read_rows(str(folder / "x.jsonl"), Columns())
    assert [row.values for row in found] == rows


@examples(15)
@given(
    table=st.lists(st.tuples(TEXT, st.none() | TEXT, st.integers(-9, 9))),
    names=st.lists(TEXT, min_size=3, max_size=3, unique=True),
)
def test_columns(folder, table, names):
    """Parquet, Arrow, pandas and columns in memory have the same rows."""
    assume(table)
    columns = dict(zip(names, map(list, zip(*table, strict=True)), strict=True))
    arrow, path = pyarrow.table(columns), str(folder / "x.parquet")
    parquet.write_table(arrow, path)
    wanted = [dict(zip(names, cells, strict=True)) for cells in table]
    for source in (path, arrow, pandas.DataFrame(columns), columns, wanted):
        found = rows_of(as_source("x", source))
        assert [row.values for row in found] == wanted, type(source)


COLUMN = texts(*HEADS, most=3).filter(bool)


@examples(10)
@given(
    labels=st.lists(TEXT, min_size=2, max_size=4, unique=True).map(tuple),
    columns=st.tuples(COLUMN, COLUMN, st.tuples(COLUMN)),
)
def test_a_task_is_read_as_written(folder, labels, columns):
    """Labels and columns of any text come back from `task.json`."""
    names = ("text_column", "text_pair_column", "label_column")
    task = dataclasses.replace(find("classification"), labels=labels)
    task = task.updated(**dict(zip(names, columns, strict=True)))
    task.save(str(folder))
    assert load_task(str(folder)) == task


# Words of column files contain no white space that separates columns or lines.
WORD = texts("#", "1", "1-2", "O", without=" \t\n\r\0", most=4).filter(
    str.strip
)
TAG = st.sampled_from(["O", "B-PER", "I-PER", "B-X-Y", "#"])
SENTENCE = st.lists(st.tuples(WORD, TAG), min_size=1, max_size=5)


@examples(40)
@given(
    sentences=st.lists(SENTENCE, min_size=1, max_size=4),
    divider=st.sampled_from([" ", "\t", "  ", "\t_\t"]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_column_files(folder, sentences, divider, end):
    """A file with a word and its tag on each line has the words as written.

    A first word with # might be a comment, unless tabs divide the columns.
    """
    words = [word for sentence in sentences for word, _ in sentence]
    assume(not words[0].startswith("\ufeff"))
    comments = any(x[0][0].startswith("#") for x in sentences)
    assume("\t" in divider or not comments)
    blocks = [
        "".join(f"{word}{divider}{tag}{end}" for word, tag in sentence)
        for sentence in sentences
    ]
    (folder / "x.txt").write_text(
        end.join(blocks), encoding="utf-8", newline=""
    )
    found = read_conll(str(folder / "x.txt"), "", "", True)
    assert [[*zip(s.words, s.tags, strict=True)] for s in found] == sentences


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question about a context, with answer spans."""

    text: str
    context: str
    spans: tuple[tuple[int, int], ...]

    def json(self, name):
        """Return the question as a dict in the format of SQuAD."""
        answers = [
            {"text": self.context[a:b], "answer_start": a}
            for a, b in self.spans
        ]
        return {
            "id": name,
            "question": self.text,
            "answers": answers,
            "is_impossible": not answers,
        }


@st.composite
def questions(draw):
    """Return a strategy for questions with up to three answer spans."""
    context = draw(TEXT)
    place = st.integers(0, len(context))
    spans = draw(st.lists(st.tuples(place, place).map(sorted), max_size=3))
    spans = tuple((a, b) for a, b in spans if a < b)
    return Asked(draw(TEXT), context, spans)


@examples(15)
@given(
    asked=st.lists(questions(), min_size=1, max_size=4),
    names=st.lists(texts(most=4).filter(bool), min_size=4, unique=True),
    escaped=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_squad_files(folder, asked, names, escaped, indent):
    """Questions and answers of any text are read as written, even from rows."""
    made = [q.json(name) for q, name in zip(asked, names, strict=False)]
    paragraphs = [
        {"context": q.context, "qas": [qa]}
        for q, qa in zip(asked, made, strict=True)
    ]
    data = {"version": "x", "data": [{"title": "", "paragraphs": paragraphs}]}
    text = json.dumps(data, ensure_ascii=escaped, indent=indent)
    (folder / "x.json").write_text(text, encoding="utf-8", newline="")
    rows = [
        json.dumps({"context": q.context, **qa}, ensure_ascii=escaped)
        for q, qa in zip(asked, made, strict=True)
    ]
    (folder / "x.jsonl").write_text("\n".join(rows), "utf-8", newline="")
    for name in ("x.json", "x.jsonl"):
        found = Reader(str(folder / name), "train", True).questions()
        for question, q, id in zip(found, asked, names, strict=False):
            answers = tuple(q.context[a:b] for a, b in q.spans)
            span = q.spans[0] if answers else (0, 0)
            assert (question.id, question.text) == (id, q.text)
            assert (question.context, question.answers) == (q.context, answers)
            assert question.span == tuple(span)
        assert len(found) == len(asked)
