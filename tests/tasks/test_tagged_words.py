"""Tables of words and tags, with one sentence or one word in each row."""

import pytest

from albert_tf.base.errors import InputError
from albert_tf.data.row_files import Row
from albert_tf.tasks.tagged_words import (
    WORD_NAMES,
    column_in,
    group_rows,
    have_words,
    rows_of_words,
    sentence_in,
    tags_in,
    words_in,
)


def rows_of(**columns):
    """Return the rows of a table with the given columns."""
    return [
        Row(f"f:{i}", dict(zip(columns, cells, strict=True)))
        for i, cells in enumerate(zip(*columns.values(), strict=True), 1)
    ]


@pytest.mark.parametrize(
    ("cell", "number", "words"),
    [
        ("it's so", None, "it ' s so"),
        ("it's so", 2, "it's so"),
        ("it's so", 3, "it ' s so"),
        ("it's so", 4, "it ' s so"),
        (["it's", "so"], 3, "it's so"),
        (' ["it\'s", "so"]', None, "it's so"),
        ("[1] so", None, "[ 1 ] so"),
        ("[1]", None, "[ 1 ]"),
        ("", None, ""),
    ],
)
def test_words_of_a_cell(cell, number, words):
    """A text is split at spaces only if the result has one word per tag.

    Otherwise, the text is also split around punctuation.
    """
    (row,) = rows_of(w=[cell])
    tags = None if number is None else ["O"] * number
    assert words_in(row, "w", tags) == tuple(words.split())


@pytest.mark.parametrize(
    ("cell", "tags"),
    [
        ("O B-X", ["O", "B-X"]),
        (" O, B-X ", ["O", "B-X"]),
        ("O", ["O"]),
        (" ", []),
        (["O", None, 1], ["O", None, "1"]),
        ('["O", "B-X"]', ["O", "B-X"]),
    ],
)
def test_tags_of_a_cell(cell, tags):
    """Tags are a list, possibly as JSON, or a text with commas or spaces."""
    (row,) = rows_of(g=[cell])
    assert tags_in(row, "g") == tags


def test_cells_without_words_or_tags():
    """The error for a cell without words or tags names the row and the rule."""
    for value in (3, ["a", 1], {"a": 1}, [0] * 99):
        (row,) = rows_of(w=[value])
        with pytest.raises(InputError, match="f:1: .* a list of texts, or a"):
            words_in(row, "w", None)
        if isinstance(value, list):
            continue
        with pytest.raises(InputError, match="f:1: .* w must be a list of ta"):
            tags_in(row, "w")


@pytest.mark.parametrize(
    ("words", "tags"),
    [
        ("['it\\'s', \"so\"]", "['O', 'B-X']"),
        (" ['its' 'so']\n", "['O' 'B-X']"),
        ("['its'\n 'so']", "[0 3]"),
    ],
)
def test_a_list_in_a_text_is_json(words, tags):
    """A list as Python or NumPy prints it is an error, not words or tags.

    pandas writes such lists to CSV; split at spaces, they would have as many
    words as tags.
    """
    (row,) = rows_of(w=[words], g=[tags])
    for number in (None, 2):
        with pytest.raises(InputError, match="f:1: a list in column w .* JSON"):
            words_in(row, "w", number and ["O"] * number)
    with pytest.raises(InputError, match="f:1: column g must have tags .* JS"):
        tags_in(row, "g")
    quoted, tags = rows_of(w=["['its' she sang]", "[its] 'so'"], g=["O", "B-X"])
    assert words_in(quoted, "w", ["O"] * 3) == ("['its'", "she", "sang]")
    assert tags_in(tags, "g") == ["B-X"]


def test_a_sentence_in_a_row():
    """For prediction, a sentence may lack tags, even if there is a column.

    Any other list of tags must be as long as the list of words.
    """
    empty = {"none": [None], "blank": [" "], "empty": [[]]}
    (row,) = rows_of(w=["a b"], g=[["O", None]], short=[["O"]], **empty)
    for tags in ("g", "none", "absent", "blank", "empty"):
        sentence = sentence_in(row, "w", tags, False)
        assert (sentence.words, sentence.tags) == (("a", "b"), None)
    for tags in ("blank", "empty"):
        with pytest.raises(InputError, match="f:1: every .* words=2, tags=0"):
            sentence_in(row, "w", tags, True)
    with pytest.raises(InputError, match="f:1: every word.*: tag 1=None"):
        sentence_in(row, "w", "g", True)
    for tagged in (True, False):
        with pytest.raises(InputError, match="f:1: every .* words=2, tags=1"):
            sentence_in(row, "w", "short", tagged)
    (row,) = rows_of(w=[""], g=[[]])
    assert sentence_in(row, "w", "g", False).tags == ()


def test_errors_name_the_place_of_words_or_of_tags():
    """If tags were passed separately, errors name the place of the wrong part.

    Words and tags count from 0.
    """

    def row(words=("a", "b"), tags=("O", "B-X")):
        return Row("x[3]", {"w": words, "g": tags}, "y[3]")

    for words in ("['a']", 3):
        with pytest.raises(InputError, match=r"^x\[3\]: "):
            words_in(row(words), "w", None)
    for tags, place in ((3, r"y\[3\]: "), (["O", {}], r"y\[3\], word 1: ")):
        with pytest.raises(InputError, match=f"^{place}"):
            tags_in(row(tags=tags), "g")
    sentence = sentence_in(row(["a", "b"], ["O", "B-X"]), "w", "g", True)
    assert sentence.where(1) == "y[3], word 1"
    sentence = sentence_in(row(["a", "b"]), "w", "absent", False)
    assert sentence.where(0) == "x[3], word 0"


def test_words_are_joined_to_sentences():
    """Successive words with the same sentence name become one sentence.

    An empty cell repeats the name above it.
    """
    rows = rows_of(n=[1, None, "", 1, 2, 1], w=list("abcdef"))
    found = [(row.where, row.values) for row in group_rows(rows, "n")]
    assert found == [
        ("f:1", {"n": [1, None, "", 1], "w": ["a", "b", "c", "d"]}),
        ("f:5", {"n": [2], "w": ["e"]}),
        ("f:6", {"n": [1], "w": ["f"]}),
    ]
    assert not list(group_rows([], "n"))


def test_rows_of_words_may_lack_fields():
    """In JSON lines, a row may lack a field of the sentence's first row."""
    lacking = Row("f:2", {"n": 1, "w": "b"})
    rows = [Row("f:1", {"n": 1, "w": "a", "x": "c"}), lacking]
    (row,) = group_rows(rows, "n")
    assert row.values == {"n": [1, 1], "w": ["a", "b"], "x": ["c", None]}
    rows = [Row("f:1", {"sent_id": 1, "word": "a", "tag": "O"})]
    rows.append(Row("f:2", {"sent_id": 1, "word": "b"}))
    (sentence,) = rows_of_words(rows, "", "", False)
    assert sentence.words == ("a", "b") and sentence.tags is None
    with pytest.raises(InputError, match="f:1: every word must have a tag"):
        rows_of_words(rows, "", "", True)


@pytest.mark.parametrize(
    ("cells", "names", "column", "expected"),
    [
        (["a", "b"], [1, 2], "", True),
        (["a", None], [1, 2], "", True),
        (["a b", "c"], [1, 2], "", False),
        (["a b", "c"], [1, 1], "", False),
        (["a b", "c"], [1, 1], "n", True),
        (["a b", "c"], [1, ""], "n", True),
        (["a b", "c"], [1, None], "n", True),
        (["a b", "c"], [1, 2], "n", False),
        (["a b", "c", "d"], [1, 2, 1], "n", False),
        ([["a"], "b"], [1, 1], "n", False),
        (['["a"]', "b"], [1, 1], "n", False),
    ],
)
def test_rows_with_a_word_each(cells, names, column, expected):
    """In some tables, each row is one word, not a sentence.

    A row is one word if each cell has one word or if rows share a sentence
    name.
    """
    rows = rows_of(w=cells, n=names)
    assert have_words(rows, "w", column) == expected


def test_rows_without_words():
    """A sentence without words is kept only for prediction.

    Other sentences do not affect this rule.
    """
    rows = rows_of(tokens=["", "a b"], ner_tags=[[], ["O", "O"]])
    for tagged, found in ((True, [("a", "b")]), (False, [(), ("a", "b")])):
        sentences = rows_of_words(rows, "", "", tagged)
        assert [s.words for s in sentences] == found
        first = rows_of_words(rows[:1], "", "", tagged)
        assert [s.words for s in first] == found[:-1]
        assert rows_of_words([], "", "", tagged) == []


def test_single_words_are_texts_to_predict():
    """Without sentence names, each word to predict is a separate sentence."""
    for tags in ({}, {"tags": ["O", "O"]}):
        rows = rows_of(tokens=["a", "b"], **tags)
        found = rows_of_words(rows, "", "", False)
        assert [s.words for s in found] == [("a",), ("b",)]
    (found,) = rows_of_words(rows_of(tokens=["a"], tags=["O"]), "", "", True)
    assert (found.words, found.tags) == (("a",), ("O",))


@pytest.mark.parametrize(
    ("names", "requested", "found"),
    [
        (["Words", "x"], "", "Words"),
        (["Words", "x"], "2", "Words"),
        (["Words", "x"], "x", "x"),
        (["Words", "x"], "y", "y"),
        (["Words", "tokens"], "", "tokens"),
        (["Words", "text"], "", "tokens"),
        (["x"], "", "tokens"),
    ],
)
def test_the_column_of_words(names, requested, found):
    """`column_in` returns the requested name, the default or the only match."""
    assert column_in(names, requested, "tokens", WORD_NAMES) == found
