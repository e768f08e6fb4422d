"""Examples with texts, pairs or triplets, and metrics of vectors."""

import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.model.task_heads import two_crops
from albert_tf.tasks.embedding import Texts, cosines
from albert_tf.tasks.registry import find

TASK = find("embedding")


def written(tmp_path, name, rows):
    """Write a file of JSON lines or text; return its path."""
    lines = rows if name.endswith(".txt") else map(json.dumps, rows)
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_what_a_file_holds(tmp_path, capsys):
    """Lines are texts; tables have texts, pairs, triplets or rated pairs.

    If pairs are rated, a third text is ignored, and a note is printed.
    """
    row = {"text": "a", "text_pair": "b"}
    files = {
        "x.txt": ["\ufeffone\u2028line", "", "x\ty\r"],
        "text.jsonl": [{"text": "a"}],
        "pair.jsonl": [row],
        "triplet.jsonl": [row | {"negative": "c"}],
        "scored.jsonl": [row | {"negative": "c", "score": 2}],
    }
    read = {
        name: TASK.read("train", written(tmp_path, name, rows))
        for name, rows in files.items()
    }
    assert read == {
        "x.txt": [Texts("0", ("one\u2028line",)), Texts("1", ("x\ty",))],
        "text.jsonl": [Texts("0", ("a",))],
        "pair.jsonl": [Texts("0", ("a", "b"), None, True)],
        "triplet.jsonl": [Texts("0", ("a", "b", "c"), None, True)],
        "scored.jsonl": [Texts("0", ("a", "b"), 2.0, True)],
    }
    (note,) = capsys.readouterr().out.splitlines()
    assert "scored.jsonl" in note and "negative is ignored" in note
    pairs = TASK.read("predict", written(tmp_path, "p.jsonl", [row]))
    assert pairs == [Texts("0", ("a", "b"), None, False)]


def test_every_line_to_predict_has_a_vector(tmp_path):
    """For prediction, each line is an example, even a blank line."""
    path = written(tmp_path, "x.txt", ["a", "", "b\r", " ", ""])
    found = [example.texts for example in TASK.read("predict", path)]
    assert found == [("a",), ("",), ("b",), (" ",), ("",)]
    assert not TASK.read("predict", written(tmp_path, "x.txt", ["", " "]))


PAIR = {"text": "a", "text_pair": "b"}


@pytest.mark.parametrize(
    ("part", "rows", "columns", "message"),
    [
        ("eval", [{"text": "a"}], {}, "must be pairs.*text_pair_column"),
        ("train", [PAIR], {"text_pair_column": "z"}, "text_pair_column=z"),
        ("train", [PAIR], {"label_column": ("z",)}, "label_column=z"),
        ("train", [PAIR | {"score": "x"}], {}, ":1: the label.*label='x'"),
        ("train", [PAIR | {"score": "inf"}], {}, ":1: .* finite number"),
        ("eval", [PAIR | {"score": "NAN"}], {}, ":1: .* finite number"),
        ("eval", [PAIR | {"score": 1}, PAIR], {}, "all or none"),
        ("train", [{"text": "a"}, PAIR], {}, "same number of texts"),
        ("eval", [PAIR | {"score": None}], {}, "must have a label"),
    ],
)
def test_files_that_are_refused(tmp_path, part, rows, columns, message):
    """The error for an unsuitable file names the column, line or rule."""
    task = TASK.updated(**columns)
    with pytest.raises(InputError, match=message):
        task.read(part, written(tmp_path, "x.jsonl", rows))


def test_the_main_metric_is_one_that_the_examples_have():
    """Rated pairs are evaluated by correlation; other examples, by rank."""
    scored, plain = Texts("", ("a", "b"), 1.0, True), Texts("", ("a", "b"))
    assert TASK.evaluated_on([scored]).main_metric == "spearman"
    other = TASK.evaluated_on([plain])
    assert other.main_metric == "mrr"
    assert other.identity() == TASK.identity()  # runs may resume
    chosen = TASK.updated(main_metric="accuracy")
    assert chosen.evaluated_on([plain]).main_metric == "accuracy"


def test_retrieval_by_hand():
    """Repeated texts count once; ties are misses, so constant vectors fail."""
    east, north, diagonal = np.eye(2)[0], np.eye(2)[1], np.full(2, 0.5**0.5)
    names = {"e": east, "n": north, "d": diagonal}
    examples = [
        Texts("", texts, None, True)
        for texts in (("e", "e2", "n2"), ("d", "e2", "n2"), ("n", "d2", "n2"))
    ]
    vectors = np.array([[names[t[0]] for t in e.texts] for e in examples])
    # For n, d2 ranks after n2; for d, e2 ranks after d2 and ties with n2.
    expected = {"accuracy": 1 / 3, "mrr": (1 + 1 / 3 + 1 / 2) / 3}
    assert TASK.score(examples, vectors) == pytest.approx(expected)
    constant = TASK.score(examples, np.ones_like(vectors))
    assert constant == pytest.approx({"accuracy": 0.0, "mrr": 1 / 3})


def test_pairs_may_have_the_same_match():
    """Each query is compared with its match, even if queries share a match."""
    names = {"e": [1.0, 0.0], "n": [0.0, 1.0], "d": [0.6, 0.8]}
    pairs = ("n", "d"), ("e", "d"), ("n", "e"), ("d", "n")
    examples = [Texts("", pair, None, True) for pair in pairs]
    vectors = np.array([[names[text] for text in pair] for pair in pairs])
    # Of d, e and n, d ranks second for n and for e, e ranks last for n, and n
    # ranks second for d.
    expected = {"accuracy": 0.0, "mrr": (1 / 2 + 1 / 2 + 1 / 3 + 1 / 2) / 4}
    assert TASK.score(examples, vectors) == pytest.approx(expected)


def test_the_length_of_a_vector_changes_no_rank():
    """Texts are ranked by cosine, even if vectors are not of unit length."""
    vectors = np.random.default_rng(0).normal(size=(9, 3, 4))
    lengths = np.geomspace(0.01, 100, 27).reshape(9, 3, 1)
    examples = [
        Texts("", (f"a{i}", f"b{i}", f"c{i}"), None, True) for i in range(9)
    ]
    units = vectors / np.linalg.norm(vectors, axis=2, keepdims=True)
    expected = TASK.score(examples, units)
    assert TASK.score(examples, units * lengths) == pytest.approx(expected)
    assert 0 < expected["mrr"] < 1


def test_scores_are_cosines_for_the_most_alike(tokenizer):
    """The labels of rated pairs are scores divided by the largest score.

    Scores are compared by absolute value.
    """
    examples = [Texts("", ("a", "b"), x, True) for x in (0.0, 2.0, 5.0)]
    features = TASK.features(examples, tokenizer)
    np.testing.assert_allclose(features.arrays["labels"], [0, 0.4, 1])
    assert len(features) == 3 and len(features.lengths) == 6
    examples = [Texts("", ("a", "b"), x, True) for x in (2.0, -4.0)]
    labels = TASK.features(examples, tokenizer).arrays["labels"]
    assert labels.tolist() == [0.5, -1.0]
    zeros = [Texts("", ("a", "b"), 0.0, True)] * 2
    assert TASK.features(zeros, tokenizer).arrays["labels"].tolist() == [0, 0]


def test_columns_of_texts_in_memory():
    """Two lists of texts may have scores; one or three lists may not.

    If columns have names, a score applies to the first two columns.
    """
    names = ("text", "text_pair", "negative")
    for width in (1, 2, 3):
        assert TASK.table(width).texts == names[:width]
    assert TASK.table().texts == names
    for width in (2, None):
        assert TASK.table(width, True) == (names[:2], "score", ())
    for width, labeled in ((4, False), (1, True), (3, True)):
        with pytest.raises(InputError, match=f"tuple of two.*={width}"):
            TASK.table(width, labeled)


def test_how_vectors_are_made():
    """By default, vectors are means that are scaled to length 1."""
    assert TASK.head_arguments == ("mean", True)
    for unit in (True, False):
        task = TASK.updated(pooling="cls", unit_length=unit)
        assert task.head_arguments == ("cls", unit)


def test_which_texts_must_differ():
    """Unrated pairs and triplets in a batch must have different texts.

    A triplet or rated pair has a useful loss even in a batch of one example.
    """
    for texts, score, apart, alone in (
        (("a",), None, None, False),
        (("a", "b"), None, [("a", "b")], False),
        (("a", "b", "c"), None, [("a", "b", "c")], True),
        (("a", "b"), 0.0, None, True),
    ):
        examples = [Texts("", texts, score)]
        assert TASK.distinct_texts(examples) == apart
        assert TASK.supports_single_example(examples) == alone


def test_files_of_vectors(tmp_path):
    """The table of pairs lists the cosines and, if known, the scores."""
    vectors = np.array([[[3.0, 4.0], [4.0, 3.125]], [[1.0, 0.0], [0.0, 0.0]]])
    assert cosines(vectors).tolist() == pytest.approx([0.9653299, 0.0])
    path = str(tmp_path / "predictions")
    for scores, header in (
        ((1.5, 2.0), "id\tprediction\tlabel"),
        ((1.5, None), "id\tprediction"),
    ):
        examples = [Texts(f"n{x}", ("a", "b"), x) for x in scores]
        written = TASK.write_predictions(path, examples, vectors)
        assert written == [f"{path}.npy", f"{path}.tsv"]
        lines = (tmp_path / "predictions.tsv").read_text().splitlines()
        assert lines[0] == header
        label = "\t1.5" if "label" in header else ""
        name, cosine, *_ = lines[1].split("\t")
        assert lines[1] == f"{name}\t{cosine}{label}" and name == "n1.5"
        assert np.float32(cosine) == np.float32(cosines(vectors)[0])
    np.testing.assert_array_equal(np.load(f"{path}.npy"), vectors)
    single = [Texts("", ("a",))] * 2
    assert TASK.write_predictions(path, single, vectors) == [f"{path}.npy"]


def test_the_table_of_triplets_lists_the_cosines_of_matches(tmp_path):
    """The cosine of a triplet compares the first two texts, not the third."""
    vectors = np.array([[[1.0, 0.0], [3.0, 4.0], [0.0, 1.0]]])
    triplets = [Texts("n", ("a", "b", "c"), None, True)]
    TASK.write_predictions(str(tmp_path / "x"), triplets, vectors)
    table = (tmp_path / "x.tsv").read_text()
    assert table == "id\tprediction\nn\t0.6\n"


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_crops_are_spans_of_the_text(rate):
    """Each crop of a text is a span that omits the given share of the text.

    The two crops of a text may begin at different positions.
    """
    lengths = np.array([12, 7, 2, 3])
    inside = np.arange(12) < lengths[:, None]
    ids = np.where(inside, 100 * np.arange(4)[:, None] + np.arange(12), 0)
    inputs = {"input_ids": ids.astype("i4"), "input_mask": inside.astype("i4")}
    made = two_crops(inputs, rate, tf.constant([1, 2]))
    rows, masks = made["input_ids"].numpy(), made["input_mask"].numpy()
    assert rows.shape == (4, 2, 12) and not made["segment_ids"].numpy().any()
    starts = set()
    for number, length in enumerate(lengths):
        width = length - 2 - int(np.float32(rate) * (length - 2))
        for row, mask in zip(rows[number], masks[number], strict=True):
            first, *text, last = row[mask > 0] - 100 * number
            assert (first, last) == (0, length - 1) and len(text) == width
            assert text == list(range(text[0], text[0] + width)) if width else 1
            starts.add((number, text[0] if width else 0))
    assert (len(starts) > 4) == (rate > 0)
    again = two_crops(inputs, rate, tf.constant([1, 2]))["input_ids"]
    np.testing.assert_array_equal(rows, again)
