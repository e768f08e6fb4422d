"""Column files in all common layouts; errors name the line."""

import gzip
import json
import lzma

import pytest

from albert_tf.base.errors import InputError
from albert_tf.tasks.conll import read_conll


def read(tmp_path, text, word="", tag="", tags=True, name="t.txt", id=""):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return read_conll(str(path), word, tag, tags, id)


def columns(sentences):
    """Return each sentence's words and tags, as a pair of strings."""
    return [(" ".join(s.words), " ".join(s.tags or ())) for s in sentences]


def test_columns_and_blank_lines(tmp_path):
    """The first column contains words, and the last column contains tags.

    Blank lines end sentences.
    """
    text = (
        "\ufeff-DOCSTART- -X- O O\r\n\r\nEU NNP B-NP B-ORG\r\nand CC O O\n\n\n"
        "# # O O\n"
    )
    first, second = read(tmp_path, text)
    assert first.words == ("EU", "and") and first.tags == ("B-ORG", "O")
    assert second.words == ("#",)  # not a comment, because it has a tag
    assert (first.line, second.line) == (3, 7)
    assert first.where(1).endswith("t.txt:4")


def test_columns_by_number(tmp_path):
    """Flags select columns by number; words between tabs may have spaces.

    If spaces separate the columns, words keep other white space.
    """
    (found,) = read(tmp_path, "1\tNew York\tB-LOC\tx\n", word="2", tag="3")
    assert (found.words, found.tags) == (("New York",), ("B-LOC",))
    (found,) = read(tmp_path, "10\u00a0000  NUM \u3000x O\n", word="1")
    assert (found.words, found.tags) == (("10\u00a0000",), ("O",))


TWO = [("EU rejects", "B-ORG O"), ("# 1", "O O")]
CONLLU = """\
# sent_id = 1
# text = a du b
1\ta\ta\tDET\tDT\t_\t2\tdet\t_\t_
2-3\tdu\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tde\tde\tADP\tIN\t_\t3\tx\t_\t_
3\tle\tle\tDET\tDT\t_\t0\troot\t_\t_
3.1\tb\tb\tNOUN\tNN\t_\t_\t_\t_\t_

1\t.\t.\tPUNCT\t.\t_\t0\troot\t_\t_
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("EU B-ORG\nrejects O\n\n# O\n1 O\n", "t.txt"),
        ("EU\tB-ORG\t\nrejects\tO \n \t\u00a0\n#\tO\n1\tO\t\t\n", "t.txt"),
        ("# id 1\nEU\tB-ORG\nrejects\tO\n\n#\tO\n1\tO\n", "t.txt"),
        ("# a b c\n# d\nEU B-ORG\nrejects O\n-X- O\n# O\n1 O\n", "t.txt"),
        ("word\ttag\nEU\tB-ORG\nrejects\tO\n\n#\tO\n1\tO\n", "t.tsv"),
        (
            "\tword\tpos\ttag\n0\tEU\tN\tB-ORG\n1\trejects\tV\tO\n\n"
            "2\t#\tN\tO\n3\t1\tN\tO\n",
            "t.tsv",
        ),
        ("POS, word ,Tag\nN,EU,B-ORG\nV,rejects,O\n\nN,#,O\nN,1,O\n", "t.csv"),
        ("Word,POS,Tag\nEU,N,B-ORG\nrejects,V,O\n\n#,N,O\n1,N,O\n", "t.csv"),
        ("EU,B-ORG\nrejects,O\n\n#,O\n1,O\n", "t.csv"),
        (
            "Tag,Word,x,pos\n7,EU,8,B-ORG\n7,rejects,8,O\n\n7,#,8,O\n7,1,8,O\n",
            "t.csv",
        ),
        (
            "#\thttp://x [2009]\n1\tEU\tO\tB-ORG\n2\trejects\tO\tO\n\n"
            "#\thttp://y [2009]\n1\t#\tO\tO\n2\t1\tO\tO\n",
            "t.tsv",
        ),
        (
            "Sentence #,Word,POS,Tag\nSentence: 1,EU,N,B-ORG\n,rejects,V,O\n"
            "Sentence: 2,#,N,O\n,1,N,O\n",
            "t.csv",
        ),
        (
            "sentence_id,words,labels\n0,EU,B-ORG\n0,rejects,O\n1,#,O\n1,1,O",
            "t.csv",
        ),
        (
            'tokens,ner_tags\n"[""EU"", ""rejects""]",B-ORG O\n# 1,O O\n',
            "t.csv",
        ),
        ('sentence,word_labels\nEU rejects,"B-ORG,O"\n# 1,"O,O"\n', "t.csv"),
        ("text\ttags\nEU rejects\tB-ORG O\n# 1\tO O\n", "t.tsv"),
        (
            '{"tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"]}\n'
            '{"tokens": "# 1", "ner_tags": "O O"}\n',
            "t.jsonl",
        ),
    ],
)
def test_layouts_of_files(tmp_path, text, name, capsys):
    """For each layout, columns, headers and comments are detected."""
    found = read(tmp_path, text, name=name)
    assert columns(found) == TWO
    note = capsys.readouterr().out
    assert ("comment line" in note) == text.startswith(("# ", "#\t"))


@pytest.mark.parametrize(
    ("words", "tags"),
    [("words", "labels"), ("tokens", "tags"), ("Text", "pos_tags")],
)
def test_columns_of_tables_have_the_names_of_headers(tmp_path, words, tags):
    """Instead of `tokens` and `ner_tags`, tables may use other common names.

    If several columns could contain tags, one must be named `ner_tags`.
    """
    row = {words: ["EU", "said"], tags: ["B-ORG", "O"]}
    found = read(tmp_path, json.dumps(row), name="t.jsonl")
    assert columns(found) == [("EU said", "B-ORG O")]
    row |= {"chunk": ["x", "y"]}
    with pytest.raises(InputError, match="label_column=ner_tags"):
        read(tmp_path, json.dumps(row), name="t.jsonl")
    row |= {"ner_tags": ["O", "O"]}
    found = read(tmp_path, json.dumps(row), name="t.jsonl")
    assert columns(found) == [("EU said", "O O")]


def test_universal_dependencies(tmp_path, capsys):
    """In CoNLL-U files, a word's tag is its universal part of speech.

    Multiword tokens and empty nodes are skipped.
    """
    found = read(tmp_path, CONLLU)
    assert columns(found) == [("a de le", "DET ADP DET"), (".", "PUNCT")]
    assert [found[0].where(i)[-2:] for i in range(3)] == [":3", ":5", ":6"]
    note = capsys.readouterr().out
    assert "2 comment lines, 2 lines of multiword tokens or" in note
    found = read(tmp_path, CONLLU, word="3", tag="5")
    assert columns(found)[0] == ("a de le", "DT IN DT")


def test_columns_by_the_names_of_a_header(tmp_path):
    """Flags may name any column of a header; other names raise an error."""
    text = "a, b ,c\nx,EU,B-ORG\n\ny,said,O\n"
    found = read(tmp_path, text, "b", "c", name="t.csv")
    assert columns(found) == [("EU", "B-ORG"), ("said", "O")]
    found = read(tmp_path, text, "b", "c", name="t.csv", id="a")
    assert len(found) == 2
    with pytest.raises(InputError, match="first line must name.*columns=d"):
        read(tmp_path, text, "d", "c", name="t.csv")


def test_a_word_a_row_needs_a_column_of_sentences(tmp_path):
    """A table with one word per row needs a column of sentence names."""
    rows = '{"tokens": "EU", "ner_tags": "O"}\n' * 2
    with pytest.raises(InputError, match="t.jsonl:1: .*`id_column` must"):
        read(tmp_path, rows, name="t.jsonl")
    with pytest.raises(InputError, match="JSON must have one object per line"):
        read(tmp_path, '[{"tokens": ["EU"], "ner_tags": ["O"]}]')
    rows = '{"tokens": "EU", "ner_tags": "O", "n": 7}\n' * 2
    (found,) = read(tmp_path, rows, name="t.jsonl", id="n")
    assert columns([found]) == [("EU EU", "O O")]


def test_a_word_may_have_spaces_and_a_text_brackets(tmp_path):
    """Words may contain spaces, and a text in brackets is not a list.

    If `id_column` is not set, a row with spaces is a sentence.
    """
    text = "n,word,tag\n1,10 000,O\n1,men,O\n2,EU,B-ORG\n"
    found = read(tmp_path, text, name="t.csv", id="n")
    assert [s.words for s in found] == [("10 000", "men"), ("EU",)]
    text = "sent_id,text,tags\n1,10 000,O O\n1,men,O\n"
    found = read(tmp_path, text, name="t.csv")
    assert [s.words for s in found] == [("10", "000"), ("men",)]
    rows = '{"tokens": "[1, 2] so"}\n{"tokens": "[1]"}\n'
    found = read(tmp_path, rows, tags=False, name="t.jsonl")
    assert [s.words[:2] for s in found] == [("[", "1"), ("[", "1")]


def test_a_text_without_tags_is_divided_into_words(tmp_path):
    """Texts are split at white space, and around punctuation and ideographs."""
    text = json.dumps({"tokens": "In\u00a0\u5317\u4eac2, (e.g.)\n n\u00e9e"})
    found = read(tmp_path, text + "\n", tags=False, name="t.jsonl")
    wanted = "In \u5317 \u4eac 2 , ( e . g . ) n\u00e9e".split()
    assert found[0].words == tuple(wanted)


def test_a_note_counts_the_lines_that_are_left_out(tmp_path, capsys):
    """A note counts skipped lines; words that begin with # are not skipped."""
    assert len(read(tmp_path, "#\t#\n#1\tO\n")[0].words) == 2
    assert len(read(tmp_path, "a\n#b\n", tags=False)[0].words) == 2
    read(tmp_path, "token,tag\nEU,O\n", name="t.csv")
    assert not capsys.readouterr().out
    read(tmp_path, "token tag\n# one two three\nEU O\n")
    note = capsys.readouterr().out
    assert note.endswith("skipped a header, 1 comment line\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("EU B-ORG\n\n#london B-LOC\nis O\n", "EU #london is"),
        ("EU B-ORG\n\n#london place\nis O\n", "EU #london is"),
        ("EU B-ORG\n\n# B-LOC\nis O\n", "EU # is"),
        ("EU B-ORG\n\n# two\nis O\n", "EU is"),
        ("#begin document 1\nEU O\n\n#end document\nis O\n", "EU is"),
        ("#begin document 1\nEU O\n\n#end B-LOC\nis O\n", "EU #end is"),
        ("EU O\n\n#doc\nis O\n\n#end document\nso O\n", "EU is so"),
    ],
)
def test_a_hashtag_is_a_word(tmp_path, text, words):
    """A line that begins with # is usually a comment.

    If the line consists of a word and its tag, it is not a comment.
    """
    found = read(tmp_path, text)
    assert " ".join(word for s in found for word in s.words) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\n\n#\nb\n", "a # b"),
        ("#begin document\na\n\n#b\n# c d\n", "a #b"),
        ("a b\n# c\nd e\n\nf g h\n", "a # d f"),
    ],
)
def test_comments_of_files_to_predict(tmp_path, text, words):
    """Comments are dropped before prediction, but not lines of one word.

    Words are lines with the usual number of columns.
    """
    found = read(tmp_path, text, tags=False)
    assert " ".join(word for s in found for word in s.words) == words


def test_compressed_columns_and_json_lines(tmp_path):
    """Compressed files and JSON lines are recognized under any file name."""
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 the O|2 dog O", "the dog"),
        ("0 the O|1 dog O", "the dog"),
        ("2 the O|3 dog O", "2 3"),
        ("1 the O|3 dog O", "1 3"),
        ("1 the|2 dog", "1 2"),
        ("1-2 du O|1 de O|2 le O|2.1 x O", "de le"),
        ("1.1 x O", "1.1"),
        ("1 the O||1 dog O", "the dog"),
        ("1 the O||2 dog O", "1 2"),
        ("1 the O||the dog O", "1 the"),
        (f"1 the O|{'9' * 5000} dog O", f"1 {'9' * 5000}"),
        (f"1 the O|1-{'2' * 5000} dog O", f"1 1-{'2' * 5000}"),
    ],
)
def test_words_are_numbered_in_every_sentence(tmp_path, text, words):
    """In each sentence, word numbers are consecutive and begin at 0 or 1.

    Otherwise, the cells of the first column are words.
    """
    found = read(tmp_path, text.replace("|", "\n"))
    assert " ".join(word for s in found for word in s.words) == words


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("x" * 61, {}, "t.csv:1: a line must.*line='x{60}'$"),
        ("a,O", {"tag": "9"}, "t.csv:1: `label_column` .* 2 columns.*=9"),
        ("a,O", {"word": "0"}, "t.csv:1: `text_column` .* 2 columns.*=0"),
        ("a,O", {"word": "3"}, "t.csv:1: `text_column` .* 2 columns.*=3"),
        ("x,word,tag\n1", {}, "t.csv:2: `text_column` .* 1 columns.*=2"),
        ("n,word,tag\n1,a,O\n1,b", {"id": "n"}, "t.csv:3: .* 3 columns.*=2$"),
        ("n,word,tag\n1,a,O,x", {"id": "n"}, "t.csv:2: .* 3 columns.*=4$"),
        ("n,tag,tag\n1,O,O", {"id": "n"}, "t.csv: .* unique.*twice=tag$"),
        ("a,O\nNew,York,O", {}, "t.csv:2: .*same number.*=3, before=2$"),
    ],
)
def test_lines_that_lack_columns(tmp_path, text, columns, message):
    """The error for a missing or surplus column names the line."""
    with pytest.raises(InputError, match=message):
        read(tmp_path, text, name="t.csv", **columns)


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize(
    "text", ["to O\nNew York B-LOC\n", "to\tTO\tO\nRome\tNNP\t\n"]
)
def test_no_line_lends_its_word_or_tag_to_another_column(tmp_path, text, tags):
    """Lines of one sentence with different numbers of columns are an error.

    The usual columns, the first and the last, would contain a part of a word,
    or something other than the tag.
    """
    with pytest.raises(InputError, match="t.txt:4: .*same number of columns"):
        read(tmp_path, f"a b c O\n\n{text}", tags=tags)


@pytest.mark.parametrize(
    ("text", "columns", "tags"),
    [
        ("a\tO\tnote\nb\tB-X\n", {"tag": "2"}, ("O", "B-X")),
        ("word\ttag\tnote\na\tO\nb\tB-X\tnote\n", {}, ("O", "B-X")),
        ("a O 1 2\nb B-X 1\n", {"tag": "2"}, ("O", "B-X")),
        ("a,O,note\nb,B-X\n", {"tag": "2", "name": "t.csv"}, ("O", "B-X")),
        ("a\tO\nb\t\n", {"tag": "2", "tags": False}, None),
    ],
)
def test_columns_after_a_known_tag_may_be_missing(
    tmp_path, text, columns, tags
):
    """If the tag column is known, lines may differ in their other columns."""
    [sentence] = read(tmp_path, text, **columns)
    assert sentence.words == ("a", "b") and sentence.tags == tags


def test_a_known_last_tag_does_not_split_words(tmp_path):
    """A word that contains a space is an error if spaces separate columns."""
    with pytest.raises(InputError, match="t.txt:2: .*same number of columns"):
        read(tmp_path, "to O\nNew York B-LOC\n", tag="2")


@pytest.mark.parametrize(
    ("tag", "expected"), [("", "B"), ("2", "x"), ("3", "B"), ("4", "")]
)
def test_a_tag_is_in_the_last_of_several_columns(tmp_path, tag, expected):
    """By default, the last of several columns has the tag.

    For prediction, a column beyond the end of a line means no tag.
    """
    found = read(tmp_path, "a x B\n", tag=tag, tags=False)
    assert columns(found) == [("a", expected)]


def test_empty_tags_do_not_join_sentences(tmp_path):
    """For prediction, a column of empty tags has no effect.

    In a table of sentences, every row is a sentence with or without it; in a
    table of words, the rows of a sentence belong together.
    """
    for text, names in (
        ("tokens,ner_tags\nJo sang,\nShe left Rome,\n", [2, 3]),
        ("tokens\nJo sang\nShe left Rome\n", [2, 3]),
        ("word,tag\nJo,\n sang,\n,\nShe,\nleft ,\nRome,\n", [2, 3]),
    ):
        found = read(tmp_path, text, tags=False, name="t.csv")
        assert [len(s.words) for s in found] == names
        assert not any(s.tags for s in found)


def test_several_words_with_one_tag_are_one_word(tmp_path):
    """A line is a sentence only if it has several words and several tags."""
    lines = "word\ttag\nNew York\tB-LOC\nis\tO\n"
    (found,) = read(tmp_path, lines)
    assert found.words == ("New York", "is")
    lines = "word\ttag\nNew York\tB-LOC\nis\t\n"  # to predict
    (found,) = read(tmp_path, lines, tags=False)
    assert found.words == ("New York", "is") and found.tags is None
