"""Labels follow the same rules in memory, in columns and in files.

Tags and answers are labels, too. Errors name the user's own argument.
"""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
import tiny

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.library import feature_batches, user_data
from albert_tf.tasks.registry import find

TEXTS = ["a good film", "a bad plot", "so it is"]
NAMES = ("bad", "good", "ugly")
TAGS = ("O", "B-x", "I-x")
WORDS = [text.split() for text in TEXTS]
TAGGER = "Tagger", "token_classification"
READER = "QuestionAnswerer", "question_answering"
CHOOSER = "MultipleChoice", "multiple_choice"


def model_of(name, kind, words, **changes):
    """Return a model whose network is never run."""
    task = dataclasses.replace(find(kind).updated(max_seq_length=16), **changes)
    return getattr(albert_tf, name)(tiny.SHALLOW, task, words)


def ways(columns, path):
    """Yield a table as columns, rows, a pandas frame and the path of a file."""
    rows = [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]
    yield columns
    yield rows
    yield pytest.importorskip("pandas").DataFrame(rows)
    (path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    yield str(path / "t.jsonl")


SETS = [["bad", "ugly"], [], ["good"]]


def framed(columns):
    """Return a table as a pandas frame."""
    return pytest.importorskip("pandas").DataFrame(columns)


@pytest.mark.parametrize("form", [dict, framed])
@pytest.mark.parametrize(
    ("model", "kind", "y", "rows"),
    [
        ("Classifier", "classification", {"x": ["ugly", "bad", "good"]}, None),
        (
            "Classifier",
            "classification",
            {"good": [0, 0, 1], "bad": [0, 1, 0], "ugly": [1, 0, 0]},
            [[0, 0, 1], [1, 0, 0], [0, 1, 0]],
        ),
        (
            "Classifier",
            "multilabel",
            {"ugly": [True, True, False], "bad": [True, False, False]}
            | {"good": [False, False, True]},
            [[1, 0, 1], [0, 0, 1], [0, 1, 0]],
        ),
        (
            "Regressor",
            "regression",
            {"good": [0.5, 1.0, 2.0], "ugly": [4, 5, 6], "bad": [7, 8, 9]},
            [[7, 0.5, 4], [8, 1.0, 5], [9, 2.0, 6]],
        ),
    ],
)
def test_labels_of_a_frame_stand_by_their_names(
    words, form, model, kind, y, rows
):
    """Labels are in one column, or in one column per label, in any order."""
    model = model_of(model, kind, words, labels=NAMES)
    found, _ = model.weighted_examples(TEXTS, form(y), None, "eval")
    wanted, _ = model.weighted_examples(
        TEXTS, rows or next(iter(y.values())), None, "eval"
    )
    assert [e.label for e in found] == [e.label for e in wanted]
    if form is dict and rows:
        name, *others = y
        short = {name: y[name][:2]} | {other: y[other] for other in others}
        with pytest.raises(InputError, match=f"same number .*{name}=2"):
            model.weighted_examples(TEXTS, short, None, "eval")
    for other in ({"a": [1, 2, 3], "b": [1, 2, 3]}, y | {"none": [0, 0, 0]}):
        with pytest.raises(InputError, match="or the columns bad, good, ugly"):
            model.weighted_examples(TEXTS, form(other), None, "eval")


@pytest.mark.parametrize(
    ("kind", "labels", "y"),
    [
        ("classification", NAMES, ["ugly", "bad", "good"]),
        ("classification", NAMES, [2, 0, 1]),
        ("classification", NAMES, ["2", "bad", 1.0]),
        ("classification", ("3", "2", "1"), [1, 3, 2]),
        ("multilabel", NAMES, SETS),
        ("multilabel", NAMES, [[0, 2], [], [1]]),
        ("multilabel", NAMES, [[1, 0, 1], [0, 0, 0], [0, 1, 0]]),
        ("multilabel", NAMES, [["0", "ugly"], [], ["1"]]),
    ],
)
def test_classes_by_name_or_number(words, tmp_path, kind, labels, y):
    """Lists, columns and files may contain class names or class indices."""
    wanted = [tuple(row) for row in SETS]
    if kind == "classification":
        wanted = [labels[2], labels[0], labels[1]]
    model = model_of("Classifier", kind, words, labels=labels)
    ways_of = [(TEXTS, y)]
    if all(np.ndim(row) == np.ndim(y[0]) for row in y):
        ways_of += [
            (x, None) for x in ways({"text": TEXTS, "label": y}, tmp_path)
        ]
    for x, labels_beside in ways_of:
        found = model.examples(x, labels_beside, "train")
        assert [example.label for example in found] == wanted
    if not isinstance(y[0], list):
        weights = dict.fromkeys(y, 0.0) | {y[0]: 7.0}
        assert user_data.class_numbers(weights, model.task)[2] == 7.0


@pytest.mark.parametrize(
    "tags",
    [
        [["O", "B-x", "I-x"]] * 3,
        [[0, 1, 2]] * 3,
        [["0", "1", "I-x"]] * 3,
        ["O B-x I-x"] * 3,
    ],
)
def test_tags_by_name_or_number(words, tmp_path, tags):
    """Lists, columns and tables may contain names or indices of tags."""
    model = model_of(*TAGGER, words, labels=TAGS)
    sources = [(WORDS, tags), (TEXTS, tags)]
    for texts in (WORDS, TEXTS):
        table = {"tokens": texts, "ner_tags": tags}
        sources += [(x, None) for x in ways(table, tmp_path)]
    for x, y in sources:
        found = model.examples(x, y, "train")
        assert [example.tags for example in found] == [TAGS] * 3
        assert [list(example.words) for example in found] == WORDS


def test_a_word_a_row_of_a_frame(words):
    """In a frame with a word per row, an id column defines the sentences."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "tokens": [word for row in WORDS for word in row],
            "ner_tags": [tag for _ in WORDS for tag in TAGS],
            "sentence_id": [i for i, row in enumerate(WORDS) for _ in row],
        }
    )
    model = model_of(*TAGGER, words, labels=TAGS)
    found = model.examples(frame, None, "train")
    assert [list(example.words) for example in found] == WORDS
    frame = frame.rename(columns={"sentence_id": "n"})
    with pytest.raises(InputError, match="`id_column` must name the column"):
        model.examples(frame, None, "train")
    model = model_of(*TAGGER, words, labels=TAGS, id_column="n")
    assert len(model.examples(frame, None, "train")) == 3


def test_a_frame_needs_no_names_of_examples(words):
    """A frame may lack the id column that the model's files have."""
    classes = {"text": TEXTS, "label": ["good", "bad", "ugly"]}
    choices = {"context": TEXTS, "question": TEXTS, "choices": [["a", "b"]] * 3}
    for model, columns in (
        (
            model_of("Classifier", "classification", words, labels=NAMES),
            classes,
        ),
        (model_of(*CHOOSER, words), choices | {"label": [0, 1, 1]}),
    ):
        model.task = model.task.with_columns({"id_column": "n"})
        for part in ("train", "eval", "predict"):
            found = model.examples(framed(columns), None, part)
            assert [example.id for example in found] == ["0", "1", "2"]


def test_texts_need_no_names_of_sentences(words):
    """Texts are read even if the model's files have a word in each row."""
    model = model_of(*TAGGER, words, labels=TAGS, id_column="n")
    found = model.examples(TEXTS, None, "predict")
    assert [list(example.words) for example in found] == WORDS
    found = model.examples(TEXTS, [TAGS] * 3, "train")
    assert [example.tags for example in found] == [TAGS] * 3
    assert model.task.id_column == "n"


FOUND, PLACES = ["good", "bad", "so"], [2, 2, 0]
BOTH = list(zip(FOUND, PLACES, strict=True))
ANSWERS = [
    FOUND,
    [[text] for text in FOUND],
    [{"text": [x], "answer_start": [i]} for x, i in BOTH],
    [[{"text": x, "answer_start": i}] for x, i in BOTH],
]


@pytest.mark.parametrize("answers", ANSWERS)
def test_answers_as_texts_or_with_places(words, tmp_path, answers):
    """Answers are in a separate list or in a column of the table.

    The answers are texts, with or without positions in the context.
    """
    model = model_of(*READER, words)
    columns = {"question": ["what"] * 3, "context": TEXTS}
    table = columns | {"answers": answers}
    sources = [((columns["question"], TEXTS), answers)]
    for x, y in [*sources, *((x, None) for x in ways(table, tmp_path))]:
        found = model.examples(x, y, "train")
        assert [example.answers[0] for example in found] == [
            "good",
            "bad",
            "so",
        ]
        assert [example.span[0] for example in found] == PLACES


@pytest.mark.parametrize(
    ("model", "changes", "x", "y"),
    [
        (READER, {}, (["what"] * 3, TEXTS), FOUND),
        (TAGGER, {"labels": TAGS}, WORDS, [TAGS] * 3),
    ],
)
def test_only_training_changes_the_task(words, model, changes, x, y):
    """Examples for training change settings of the task; others do not.

    Such settings are whether questions may be unanswerable, and the scheme of
    the tags.
    """
    model = model_of(*model, words, **changes)
    task = model.task
    for part, labels in (("eval", y), ("predict", None)):
        model.examples(x, labels, part)
        assert model.task == task
    model.examples(x, y, "train")
    assert model.task != task


CLASSES = "Classifier", "classification"
NAMED, TAGGED = {"labels": NAMES}, {"labels": TAGS}
NONE = [0] * 3
FEW = [["a", "b"], ["a"], ["b"]]


@pytest.mark.parametrize(
    ("model", "changes", "x", "y", "message"),
    [
        (CLASSES, NAMED, TEXTS, [0, 1, 3], r"y\[2\]"),
        (CLASSES, NAMED, TEXTS, ["bad", None, "bad"], r"y\[1\]"),
        (
            CLASSES,
            {"labels": ("1", "2")},
            TEXTS,
            [1, 0, 2],
            r"y\[1\].* every number is a name",
        ),
        (("Classifier", "multilabel"), NAMED, TEXTS, FEW, r"y\[0\]"),
        (("Regressor", "regression"), {}, TEXTS, [0, 1, "x"], r"y\[2\]"),
        (TAGGER, TAGGED, WORDS, [NONE, NONE, [0, 9, 0]], r"y\[2\], word 1"),
        (TAGGER, TAGGED, WORDS, [NONE, [0, 0], NONE], r"y\[1\]: every word"),
        (TAGGER, TAGGED, [["a"], [1]], None, r"x\[1\]"),
        (READER, {}, (TEXTS, TEXTS), ["good", "x", "so"], r"y\[1\]: an answer"),
        (CHOOSER, {}, (TEXTS, TEXTS, WORDS), [0, 3, 0], r"y\[1\]"),
        (CHOOSER, {}, (TEXTS, TEXTS, FEW), NONE, r"x\[1\]"),
        (("Embedder", "embedding"), {}, (TEXTS, TEXTS), [0, "x", 1], r"y\[1\]"),
    ],
)
def test_a_mistake_is_named_as_it_was_passed(
    words, model, changes, x, y, message
):
    """The error states the argument and the index, not an internal row."""
    model = model_of(*model, words, **changes)
    with pytest.raises(InputError, match=message) as error:
        model.examples(x, y, "predict" if y is None else "train")
    assert "row" not in str(error.value) and "dict" not in str(error.value)


def test_a_batch_of_raw_texts_is_not_a_sentence(words):
    """Each text of a data set, batched or not, is split into words.

    The elements may be texts, or dicts with a column of texts.
    """
    model = model_of(*TAGGER, words, labels=TAGS)
    tags = tf.ragged.constant([[0, 1, 2]] * 3)

    def predicted(data):
        texts = feature_batches.texts_of(data, model.task)
        found = model.examples(texts, None, "predict")
        return [list(example.words) for example in found]

    texts = tf.data.Dataset.from_tensor_slices(TEXTS)
    both = tf.data.Dataset.from_tensor_slices((TEXTS, tags))
    split = tf.data.Dataset.from_tensor_slices(tf.ragged.constant(WORDS))
    for data in (texts, texts.batch(2), both, both.ragged_batch(2), split):
        assert predicted(data) == WORDS
    assert predicted(split.ragged_batch(2)) == WORDS
    for data in (texts, texts.batch(2), split, split.ragged_batch(2)):
        named = data.map(lambda words: {"tokens": words, "id": "a b"})
        assert predicted(named) == WORDS
    with pytest.raises(InputError, match="the column tokens. .*columns=text$"):
        predicted(texts.map(lambda words: {"text": words}))
    labeled = [both, both.ragged_batch(2)]
    for data in labeled[:]:
        named = data.map(lambda x, y: {"tokens": x, "ner_tags": y})
        sizes = data.map(lambda x, y: {"n": tf.strings.length(x)})
        both_tables = tf.data.Dataset.zip(named, sizes)
        labeled += [named, both_tables.map(lambda a, b: a | b)]
    for data in labeled:
        found = []
        for batch in feature_batches.in_batches(data, model.task):
            found += model.weighted_examples(batch, None, None, "train")[0]
        assert [list(e.words) for e in found] == WORDS
        assert [e.tags for e in found] == [TAGS] * 3


def test_the_scheme_is_that_of_the_labels(words, capsys):
    """The names of the labels determine the scheme of tags.

    Tags that break the scheme cause a single note.
    """
    model = model_of(*TAGGER, words, labels=TAGS)
    assert model.examples([["a"]], [["O"]], "train")
    assert model.task.scheme == "BIO"
    model.examples([["a", "b"]], [["O", "B-x"]], "train")
    assert not capsys.readouterr().out
    broken = [["B-x", "I-x"], ["I-x"]] * 2
    model.examples([["a", "b"], ["c"]] * 2, broken, "train")
    note = capsys.readouterr().out
    assert note.count("Note") == 1 and "2 tags cannot follow" in note
    assert "first at y[1], word 0" in note
    assert model.task.labels == TAGS
