"""Fine-tuning on tables equals fine-tuning on files of their rows."""

import gzip
import json

import pytest
import tiny_runs

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.data.table_sources import as_source
from albert_tf.finetuning import finetuning_setup
from albert_tf.tasks.registry import find
from albert_tf.tasks.task import read_splits, with_settings
from albert_tf.tasks.task_config import DataConfig

STEPS = {"num_train_steps": 3, "eval_steps": 2, "steps_per_loop": 1}


class Count(albert_tf.Hook):
    """A hook that records beginnings, steps and ends in `seen`."""

    def __init__(self):
        self.seen = []

    def begin(self, run):
        self.seen.append("begin")

    def after(self, run, window):
        self.seen.append(run.step)

    def end(self, run):
        self.seen.append("end")


@pytest.mark.slow
def test_a_frame_trains_as_its_file(
    pretrained, opinions, tmp_path, monkeypatch
):
    """Training on a frame or on its file results in equal metrics and files.

    Hooks are called at every step. The result has the history even if the
    current folder has changed.
    """
    pandas = pytest.importorskip("pandas")
    frames = {
        name: value
        if name == "task"
        else pandas.DataFrame(tiny_runs.predictions(value))
        for name, value in opinions.items()
    }
    monkeypatch.chdir(tmp_path)
    results, count = [], Count()
    for name, data in (("file", opinions), ("frame", frames)):
        results.append(
            albert_tf.finetune(
                model_dir=pretrained,
                output_dir=name,
                do_train=True,
                do_eval=True,
                do_predict=True,
                hooks=[count] if name == "frame" else [],
                **tiny_runs.DEFAULTS | STEPS | data,
            )
        )
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    one, two = results
    assert one.metrics == two.metrics and set(one.metrics) == {
        "eval",
        "predict",
    }
    assert two.output_dir == str(tmp_path / "frame")
    for name in ("predictions.tsv", "eval_predictions.tsv", "task.json"):
        a, b = (tmp_path / x / name for x in ("file", "frame"))
        assert a.read_text() == b.read_text()
    assert count.seen == ["begin", 1, 2, 3, "end"]
    assert two.history.column("eval", "accuracy")[0] == [2, 3]
    flags = (tmp_path / "frame" / "run.flags").read_text()
    assert "# --train_file=train_file (DataFrame)\n" in flags


def examples(kind, source, **columns):
    data = DataConfig(train_file=as_source("train_file", source), **columns)
    task = with_settings(find(kind), data)
    return read_splits(task, data, "train")[""]


def test_questions_of_a_table(tmp_path):
    """Hugging Face's rows of SQuAD are read like an equivalent SQuAD file."""
    qa = {
        "id": "q1",
        "question": "Who?",
        "answers": [{"text": "Ann", "answer_start": 4}],
    }
    none = {"id": "q2", "question": "Why?", "answers": []}
    path = tmp_path / "t.json"
    paragraph = {"context": "It, Ann saw.", "qas": [qa, none]}
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    rows = [
        {
            "context": paragraph["context"],
            **row,
            "answers": {
                "text": [a["text"] for a in row["answers"]],
                "answer_start": [a["answer_start"] for a in row["answers"]],
            },
        }
        for row in (qa, none)
    ]
    wanted = examples("question_answering", str(path))
    assert examples("question_answering", rows) == wanted
    rows[1]["answers"] = {"text": ["a"], "answer_start": []}
    with pytest.raises(InputError, match=r"\(list\), row 1: every answer must"):
        examples("question_answering", rows)
    rows[1]["context"] = 3
    with pytest.raises(InputError, match="row 1: `context` must be a string"):
        examples("question_answering", rows)
    del rows[1]["context"]
    match = "row 1: .* `question` and `context`. .*columns=id, question, answ"
    with pytest.raises(InputError, match=match):
        examples("question_answering", rows)
    path = tmp_path / "t.csv"
    path.write_text("question;context;answers\nWho?;Ann saw.;Ann\n")
    match = "t.csv:2: .*must be a comma in .csv .*=question;context;answers"
    with pytest.raises(InputError, match=match):
        examples("question_answering", str(path))


CLASSES = ["pos", "neg", "odd", "neu"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def labels_of(pretrained, task, source):
    """Return the labels of a task that is trained on a table."""
    how = {"model_dir": pretrained, "output_dir": "o", "do_train": True}
    s = tiny_runs.build(**how, task=task, max_seq_length=8, train_file=source)
    return finetuning_setup.prepare(s.run, s.data, s.task).task.labels


@pytest.mark.parametrize(
    "kind", ["memory", "stream", "folder", "parquet", "arrow"]
)
def test_classes_of_a_data_set_keep_their_numbers(kind, pretrained, tmp_path):
    """The labels are the classes that a data set defines, in its order.

    The numbers in its label column are therefore the model's class numbers.
    """
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=CLASSES)
    features = {"text": datasets.Value("string"), "label": label}
    rows = datasets.Dataset.from_dict(
        {"text": ["a", "b", "c"], "label": [3, 1, 0]},
        features=datasets.Features(features),
    )
    if kind == "folder":
        rows.save_to_disk(tmp_path / "rows")
    if kind == "parquet":
        rows.to_parquet(tmp_path / "rows")
    source = {
        "memory": rows,
        "stream": rows.to_iterable_dataset(),
        "arrow": rows.with_format("arrow")[:],
    }.get(kind, str(tmp_path / "rows"))
    labels = labels_of(pretrained, "classification", source)
    assert labels == tuple(CLASSES)


@pytest.mark.parametrize(
    ("task", "column", "names"),
    [
        ("token_classification", "ner_tags", TAGS),
        ("token_classification", "pos_tags", TAGS),  # the only usual name
        ("multilabel", "label", CLASSES),
    ],
)
def test_classes_in_lists_keep_their_numbers(task, column, names, pretrained):
    """Tags and sets of classes have the order that a data set defines."""
    datasets = pytest.importorskip("datasets")
    text = datasets.Value("string")
    features = {
        "text": text,
        "tokens": datasets.Sequence(text),
        column: datasets.Sequence(datasets.ClassLabel(names=names)),
    }
    rows = {"text": ["a b", "c"], "tokens": [["a", "b"], ["c"]]}
    rows[column] = [[3, 0], [1]]
    features = datasets.Features(features)
    source = datasets.Dataset.from_dict(rows, features=features)
    assert labels_of(pretrained, task, source) == tuple(names)


def test_a_task_with_its_own_classes_keeps_them(pretrained):
    """The order of RTE's classes is its own, not the order of a data set."""
    datasets = pytest.importorskip("datasets")
    names = ["not_entailment", "entailment"]
    text = datasets.Value("string")
    features = dict.fromkeys(("index", "sentence1", "sentence2"), text)
    features["label"] = datasets.ClassLabel(names=names)
    rows = dict.fromkeys(features, ["a", "b"]) | {"label": [1, 0]}
    features = datasets.Features(features)
    source = datasets.Dataset.from_dict(rows, features=features)
    assert labels_of(pretrained, "rte", source) == tuple(names[::-1])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.parquet", "none", "must be an existing file"),
        ("rows.parquet.gz", "packed", "neither compressed nor a pipe"),
        ("rows.parquet", "damaged", "must not be damaged"),
        ("rows.parquet", "single", "must have at least two labels"),
    ],
)
def test_errors_of_tables_with_classes(
    name, content, message, pretrained, tmp_path
):
    """A table is read before the classes that its schema defines.

    The errors are therefore the same as for any other table. A data set that
    defines only one class raises the same error as a file with one label.
    """
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    label = {"_type": "ClassLabel", "names": ["only"]}
    label = None if content == "damaged" else label
    stored = json.dumps({"info": {"features": {"label": label}}})
    table = pyarrow.table({"text": ["a", "b", "c"], "label": [0, 0, 0]})
    table = table.replace_schema_metadata({"huggingface": stored})
    path = tmp_path / name
    if content != "none":
        parquet.write_table(table, path)
    if content == "packed":
        path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(InputError, match=message):
        labels_of(pretrained, "classification", str(path))


def test_tags_of_a_table(tmp_path):
    """Lists of words and tags are read like an equivalent CoNLL file."""
    path = tmp_path / "t.conll"
    path.write_text("Ann B-P\nsaw O\n\nBob B-P\n")
    rows = {"tokens": [["Ann", "saw"], ["Bob"]], "ner_tags": [["B-P", "O"]] * 2}
    with pytest.raises(InputError, match="row 1: every word .*words=1, tags=2"):
        examples("token_classification", rows)
    rows["ner_tags"][1] = ["B-P"]
    found = examples("token_classification", rows)
    wanted = examples("token_classification", str(path))
    assert [(s.words, s.tags) for s in found] == [
        (s.words, s.tags) for s in wanted
    ]
    assert found[1].where(0) == "train_file (dict), row 1, word 0"
    with pytest.raises(InputError, match="row 0: .*tokens, ner_tags"):
        examples("token_classification", rows, text_column="words")
    rows["ner_tags"][0] = ["O", {}]
    with pytest.raises(InputError, match="row 0, word 1: a label must be"):
        examples("token_classification", rows)


def test_choices_of_a_table():
    """Choices are a list in one column, or each choice has a column."""
    row = {"context": "c", "question": "q", "label": 1}
    one = examples("multiple_choice", [row | {"choices": ["3", "4"]}])
    two = examples(
        "multiple_choice", [row | {"a": 3, "b": 4}], choice_columns=("a", "b")
    )
    assert one == two and one[0].choices == ("3", "4")
    of_race = examples(
        "race", [row | {"b": 4, "a": 3}], choice_columns=("a", "b")
    )
    assert of_race == one


def test_columns_without_names(tmp_path):
    """Columns whose names are numbers can be selected by these numbers."""
    rows = {0: ["a", "b"], 1: ["x", "y"]}
    with pytest.raises(InputError, match="one of the columns 0, 1. Received"):
        examples("classification", rows)
    columns = {"text_column": "0", "label_column": ("1",)}
    found = examples("classification", rows, **columns)
    assert [(e.text, e.label) for e in found] == [("a", "x"), ("b", "y")]
    rows[1].append("z")
    with pytest.raises(InputError, match="same length. Received: 0=2, 1=3"):
        examples("classification", rows, **columns)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"text": "a", "label": "x"}, {"text": 3, "label": "y"}],
            "must contain",
        ),
        ([{"text": "a", "label": "x"}, {"text": None, "label": "y"}], "null"),
        ([{"text": "a", "label": "x"}, {"txt": "b"}], "columns txt. Received"),
        (
            [{"text": "a", "label": "x"}, {"text": "b", "label": None}],
            "must have a label",
        ),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": {}}], "a label"),
    ],
)
def test_a_bad_row_is_named(rows, message):
    """The error for a bad row names the argument, its type and the row."""
    with pytest.raises(InputError, match=r"^train_file \(list\), row 1: ") as e:
        examples("classification", rows)
    assert message in str(e.value)
