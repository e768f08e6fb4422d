"""CoNLL columns, schemes of tags, and the errors that name a line."""

import gzip
import json
import lzma

import pytest

from albert_tf.base.errors import InputError
from albert_tf.tasks.conll import (
    Sentence,
    all_tags,
    check_tags,
    entity_spans,
    find_scheme,
    read_conll,
)


def tagged(*rows):
    """Return sentences of tags; the words do not matter."""
    return [
        Sentence(tuple("w" * len(row.split())), tuple(row.split()), "f", 1)
        for row in rows
    ]


def read(tmp_path, text, word="", tag="", tags=True):
    path = tmp_path / "t.txt"
    path.write_bytes(text.encode())
    return read_conll(str(path), word, tag, tags)


def test_columns_and_blank_lines(tmp_path):
    """Words stand first and tags last; blank lines end a sentence."""
    text = (
        "\ufeff-DOCSTART- -X- O O\r\n\r\nEU NNP B-NP B-ORG\r\nand CC O O\n\n\n"
        "# # O O\n"
    )
    first, second = read(tmp_path, text)
    assert first.words == ("EU", "and") and first.tags == ("B-ORG", "O")
    assert second.words == ("#",)  # no comment: it has a tag
    assert (first.line, second.line) == (3, 7)
    assert first.where(1).endswith("t.txt:4")


def test_columns_by_number(tmp_path):
    """Columns can be named by their numbers; tabs keep spaces in words.

    Between spaces a word keeps white space of other kinds.
    """
    (found,) = read(tmp_path, "1\tNew York\tB-LOC\tx\n", word="2", tag="3")
    assert (found.words, found.tags) == (("New York",), ("B-LOC",))
    (found,) = read(tmp_path, "10\u00a0000  NUM \u3000x O\n", word="1")
    assert (found.words, found.tags) == (("10\u00a0000",), ("O",))
    with pytest.raises(InputError, match="t.txt:1: `label_column`.*=9"):
        read(tmp_path, "a O\n", tag="9")


def test_words_without_tags(tmp_path):
    """To predict, words are enough; to learn, the line is named."""
    (found,) = read(tmp_path, "a\nb\n", tags=False)
    assert found.tags is None
    with pytest.raises(InputError, match="t.txt:2.*'b'"):
        read(tmp_path, "a O\nb\n")


@pytest.mark.parametrize(
    ("scheme", "rows"),
    [
        ("IO", ["I-A I-A O I-B"]),
        ("IOB1", ["I-A B-A I-A O I-B", "I-A"]),
        ("BIO", ["B-A I-A B-A O", "B-B"]),
        ("BIOES", ["B-A I-A E-A S-B O"]),
    ],
)
def test_schemes_are_recognised(scheme, rows):
    """The prefixes tell the scheme, and legal tags are not refused."""
    sentences = tagged(*rows)
    assert find_scheme(sentences) == scheme
    for sentence in sentences:
        check_tags(sentence, scheme)


@pytest.mark.parametrize(
    ("scheme", "row", "line"),
    [
        ("BIO", "O I-A", 2),
        ("BIO", "B-A I-B", 2),
        ("BIOES", "B-A O", 2),
        ("BIOES", "S-A I-A", 2),
        ("BIOES", "O E-A", 2),
        ("BIOES", "B-A I-B E-B", 2),
        ("BIOES", "B-A B-A E-A", 2),
        ("BIOES", "O B-A", 2),  # the sentence ends within an entity
    ],
)
def test_tags_that_cannot_follow_each_other(scheme, row, line):
    """The message names the line and the scheme."""
    with pytest.raises(InputError, match=f"f:{line}: by the scheme {scheme}"):
        check_tags(tagged(row)[0], scheme)


@pytest.mark.parametrize("tag", ["PER", "X-PER", "B-", "BB-A", ""])
def test_tags_that_are_none(tag):
    """A tag is O, or a prefix, a dash and a type."""
    sentence = Sentence(("a", "b"), ("O", tag), "f", 5)
    with pytest.raises(InputError, match="f:6"):
        find_scheme([sentence])


def test_labels_cover_every_prefix():
    """Each type gets all tags of its scheme, also those not seen."""
    assert all_tags(tagged("B-B I-B", "B-A"), "BIO") == (
        "O",
        *("B-A", "I-A", "B-B", "I-B"),
    )
    assert all_tags(tagged("I-A"), "IO") == ("O", "I-A")
    assert set(all_tags(tagged("S-A"), "BIOES")) == {
        "O",
        *(f"{p}-A" for p in "BIES"),
    }


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("O B-X I-X O", [[1, 2, "X"]]),
        ("I-X I-X I-Y", [[0, 1, "X"], [2, 2, "Y"]]),
        ("B-X B-X", [[0, 0, "X"], [1, 1, "X"]]),
        ("B-X E-X I-X S-Y", [[0, 1, "X"], [2, 2, "X"], [3, 3, "Y"]]),
        (
            "E-X E-X O I-X B-Y I-X",
            [[0, 0, "X"], [1, 1, "X"], [3, 3, "X"], [4, 4, "Y"], [5, 5, "X"]],
        ),
        ("O", []),
    ],
)
def test_spans_of_tags(tags, spans):
    """An entity ends where its kind does, or where a tag says so."""
    assert entity_spans(tags.split()) == spans


def test_compressed_columns_and_json_lines(tmp_path):
    """They have the sentences of the plain file, whatever their names."""
    plain, other = tmp_path / "x.txt", tmp_path / "y.txt"
    plain.write_text("Ann B-PER\nsings O\n\nBob B-PER\n")
    wanted = [(s.words, s.tags) for s in read_conll(str(plain), "", "", True)]
    rows = [{"tokens": words, "ner_tags": tags} for words, tags in wanted]
    lines = "\n".join(map(json.dumps, rows)).encode()
    for data in (
        lzma.compress(plain.read_bytes()),
        lines,
        gzip.compress(lines),
    ):
        other.write_bytes(data)
        found = read_conll(str(other), "", "", True)
        assert [(s.words, s.tags) for s in found] == wanted
