"""Properties of every kind of task: names, settings and `task.json`."""

import dataclasses
import json
from pathlib import Path

import pytest
import tiny

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.library import models
from albert_tf.model.albert import AlbertModel
from albert_tf.model.task_heads import MODELS
from albert_tf.tasks.losses import OBJECTIVES
from albert_tf.tasks.registry import KINDS, TASKS, find, load_task

TESTDATA = Path(__file__).parents[1] / "testdata"
# Files that earlier versions of fine-tuning wrote.
WRITTEN = json.loads((TESTDATA / "task_json.json").read_text())


def test_writings_of_a_name():
    """SST-2 is found in any spelling.

    The error for an unknown name lists all tasks.
    """
    assert find("SST_2") is find("sst2") is find("sst-2")
    with pytest.raises(InputError, match="classification, multilabel.*rte"):
        find("nothing")


def test_every_table_has_every_kind():
    """Each kind has a model, a loss and a Keras class."""
    classes = [getattr(models, name, None) for name in albert_tf.PUBLIC]
    tables = {
        "task_heads.MODELS": MODELS,
        "losses.OBJECTIVES": OBJECTIVES,
        "models": {k for c in classes for k in getattr(c, "kinds", ())},
    }
    missing = {name: {*KINDS} - {*table} for name, table in tables.items()}
    assert missing == dict.fromkeys(tables, set())


LONG = {"max_seq_length": 16, "max_query_length": 4}


@pytest.mark.parametrize(
    ("name", "legal", "changed"),
    [
        ("multiple_choice", {"max_seq_length": 16}, ("max_qa_length", 13, 14)),
        ("token_classification", {"max_seq_length": 8}, ("doc_stride", 6, 7)),
        ("squad-2.0", LONG, ("doc_stride", 9, 10)),
        (
            "squad-2.0",
            LONG | {"doc_stride": 3},
            ("max_query_length", 10, 11),
        ),
        ("squad-1.1", LONG | {"doc_stride": 9}, ("max_qa_length", None, 5)),
        (
            "squad-1.1",
            LONG | {"doc_stride": 9},
            ("null_score_diff_threshold", None, 0.0),
        ),
        ("squad-1.1", LONG | {"doc_stride": 9}, ("temperature", None, 0.1)),
        ("rte", {}, ("doc_stride", None, 8)),
    ],
)
def test_lengths_that_fit(name, legal, changed):
    """Lengths that skip words raise errors; the largest legal values do not.

    Settings that do not apply to a kind of task also raise errors.
    """
    setting, most, wrong = changed
    find(name).updated(**legal | {setting: most})
    with pytest.raises(InputError, match=f"{setting}={wrong}"):
        find(name).updated(**legal | {setting: wrong})


LENGTHS = ("doc_stride", "max_query_length", "max_answer_length")
# For each kind, lengths that are large and small for inputs of 96 tokens.
OWN = {
    "question_answering": (
        {"max_query_length": 48, "doc_stride": 40},
        {"max_query_length": 10, "doc_stride": 30},
    ),
    "multiple_choice": ({"max_qa_length": 60}, {"max_qa_length": 30}),
    "token_classification": ({"doc_stride": 70}, {"doc_stride": 40}),
}
CASES = [(k, own) for k in sorted(KINDS) for own in OWN.get(k, [{}])]


@pytest.mark.parametrize(("kind", "own"), CASES)
def test_shorter_inputs_have_lengths_that_fit(kind, own):
    """Lengths for shorter inputs do not exceed defaults and skip no words.

    For the default input length or more, lengths are the defaults.
    """
    task = find(kind).updated(max_seq_length=96, **own)
    for length in range(5, 130):
        config = task.updated(max_seq_length=length).config
        assert config.max_seq_length == length
        others = dataclasses.replace(config, max_seq_length=96)
        if length >= 96:
            assert others == task.config
        for name in (*LENGTHS, "max_qa_length"):
            value = getattr(config, name)
            assert value is None or 1 <= value <= getattr(task.config, name)
        if kind == "question_answering":
            room = length - 3 - config.max_query_length
            assert config.doc_stride <= room
            assert config.max_answer_length <= room
        if kind == "multiple_choice":
            assert config.max_qa_length <= length - 3
        if kind == "token_classification":
            assert config.doc_stride <= length - 2


def test_lengths_that_are_given_stay():
    """Default lengths adapt to given ones; impossible lengths are rejected."""

    def shorter(**lengths):
        task = find("squad-1.1").updated(max_seq_length=32, **lengths)
        return task.config

    c = shorter(max_query_length=20)
    assert (c.max_query_length, c.doc_stride) == (20, 9)
    c = shorter(doc_stride=5)
    assert (c.max_query_length, c.doc_stride) == (8, 5)
    with pytest.raises(InputError, match="doc_stride=22"):
        shorter(doc_stride=22)
    for length, lengths in ((5, (1, 1, 1)), (7, (1, 3, 3)), (8, (2, 3, 3))):
        c = find("squad-1.1").updated(max_seq_length=length).config
        found = c.max_query_length, c.doc_stride, c.max_answer_length
        assert found == lengths
    for length, most in ((4, 1), (5, 2), (6, 3), (20, 10)):
        c = find("multiple_choice").updated(max_seq_length=length).config
        assert c.max_qa_length == most
    with pytest.raises(InputError, match="at least 5.*max_seq_length=4"):
        find("squad-1.1").updated(max_seq_length=4)


@pytest.mark.parametrize("kind", sorted({task.kind for task in TASKS.values()}))
def test_lengths_fit_the_positions_of_a_model(kind):
    """A task is shortened to the model's number of positions.

    If the positions suffice for the default length, the task does not change.
    """
    task = find(kind)
    usual = task.config.max_seq_length
    assert task.within(usual) is task.within(usual + 1) is task
    assert task.within(usual - 1) == task.updated(max_seq_length=usual - 1)


TWO = {"label_column": ("a", "b")}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("squad-1.1", {"text_column": "a"}, "not apply.*text_column=a"),
        ("classification", {"choice_columns": ("a",)}, "not apply.*choice"),
        ("token_classification", {"header": False}, "`header` does not apply"),
        ("classification", TWO, "one column.*label_column=a,b"),
        ("multiple_choice", TWO, "one column.*label_column=a,b"),
        ("token_classification", TWO, "one column.*label_column=a,b"),
        ("classification", {"main_metric": "bleu"}, "macro_f1, matt.*=bleu"),
        ("token_classification", {"main_metric": "bleu"}, "recall.*=bleu"),
        ("race", {"main_metric": "f1"}, "accuracy.*main_metric=f1"),
        ("squad-2.0", {"main_metric": "average"}, "best_f1.*=average"),
    ],
)
def test_columns_and_metrics_that_a_kind_lacks(name, data, message):
    """A column or metric that a kind of task does not support is rejected."""
    with pytest.raises(InputError, match=message):
        find(name).updated(**data)


def test_the_metric_of_the_best_checkpoint_can_be_chosen():
    """A flag replaces the main metric and changes nothing else."""
    task = find("mrpc").updated(main_metric="f1")
    assert (task.main_metric, find("mrpc").main_metric) == ("f1", "accuracy")
    assert task.predict_columns == find("mrpc").predict_columns


def with_labels(task):
    """Return a task with labels if fine-tuning would find them in the data."""
    if not task.has_classes or task.labels:
        return task
    return dataclasses.replace(task, labels=("no", "yes"))


@pytest.mark.parametrize("name", TASKS)
def test_task_json_holds_the_whole_task(tmp_path, name):
    """A task that is read from its `task.json` equals the original."""
    task = with_labels(find(name).updated(max_seq_length=400))
    task.save(str(tmp_path))
    assert load_task(str(tmp_path)) == task
    assert task.config.temperature == find(name).config.temperature


@pytest.mark.parametrize("name", WRITTEN)
def test_task_json_of_earlier_versions(tmp_path, name):
    """Files from earlier versions are read and written back.

    The only additions are newer settings, which are empty.
    """
    path = tmp_path / "task.json"
    path.write_text(json.dumps(WRITTEN[name]))
    task = load_task(str(tmp_path))
    task.save(str(tmp_path))
    again = json.loads(path.read_text())
    # Settings that later versions added are null.
    later = again["config"].keys() - WRITTEN[name]["config"].keys()
    assert {again["config"].pop(setting) for setting in later} <= {None}
    later = again.keys() - WRITTEN[name].keys()
    assert {again.pop(field) for field in later} <= {""}
    assert again == WRITTEN[name]
    assert load_task(str(tmp_path)) == task


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"kind": "other"}', '{"kind": "regression", "more": 1}'],
)
def test_a_damaged_task_json(tmp_path, text):
    """A `task.json` that fine-tuning cannot have written raises an error."""
    (tmp_path / "task.json").write_text(text)
    with pytest.raises(InputError, match="task.json"):
        load_task(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("squad-2.0", {"impossible": "false"}),
        ("squad-2.0", {"scoring": None}),
        ("conll2003", {"labels": "BIO"}),
        ("conll2003", {"labels": ["O", 1]}),
        ("multiple_choice", {"number": "4"}),
        ("multiple_choice", {"number": True}),
        ("multiple_choice", {"config": {"max_seq_length": "128"}}),
        ("multiple_choice", {"layout": {"columns": {"header": "false"}}}),
    ],
)
def test_a_field_of_another_type(tmp_path, name, changes):
    """A value of the wrong type, such as a string for a number, is rejected."""
    path = tmp_path / "task.json"
    path.write_text(json.dumps(WRITTEN[name] | changes))
    with pytest.raises(InputError, match="task.json must.*` must be (a |true)"):
        load_task(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("squad-2.0", {"scoring": "squad3"}, "scoring"),
        ("squad-2.0", {"main_metric": "accuracy"}, "main_metric"),
        ("squad-2.0", {"submission": "../x.json"}, "submission"),
        ("squad-2.0", {"submission": "/x.json"}, "submission"),
        ("squad-2.0", {"submission": ".."}, "submission"),
        ("sst-2", {"submissions": {"": "../SST-2.tsv"}}, "submission"),
        ("sst-2", {"layout": "wsc"}, "layout"),
        ("sst-2", {"scores": ["accuracy", "recall"]}, "scores"),
        ("sst-2", {"main_metric": ""}, "main_metric"),
        ("conll2003", {"scheme": "BIX"}, "scheme"),
        ("multiple_choice", {"layout": {"reader": "json"}}, "reader"),
        ("sst-2", {"labels": []}, "labels"),
        ("mnli", {"labels": ["a", "b", "a"]}, "labels"),
        ("conll2003", {"labels": ["O", "\ud800"]}, "labels"),
    ],
)
def test_a_value_that_a_kind_cannot_have(tmp_path, name, changes, field):
    """An illegal name in `task.json`, such as an unknown metric, is rejected.

    The same holds for labels that a model cannot have, and for a submission
    that would be written outside the output folder.
    """
    with_labels(find(name)).save(str(tmp_path))
    assert load_task(str(tmp_path)).name == find(name).name
    path = tmp_path / "task.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | changes))
    with pytest.raises(InputError, match=f"task.json must.*`{field}`"):
        load_task(str(tmp_path))


def test_a_setting_that_a_kind_needs(tmp_path):
    """In `task.json`, only settings without a default may be null."""
    task, path = WRITTEN["squad-2.0"], tmp_path / "task.json"
    for name in ("null_score_diff_threshold", "pooling", "doc_stride"):
        config = task["config"] | {name: None}
        path.write_text(json.dumps(task | {"config": config}))
        if name != "doc_stride":
            assert getattr(load_task(str(tmp_path)).config, name) is None
    with pytest.raises(InputError, match="`doc_stride` must have"):
        load_task(str(tmp_path))


def test_a_model_has_the_settings_of_its_task():
    """The task's dropout rate, a precision and a shared encoder are passed on.

    The encoder has other dropout rates.
    """
    task = with_labels(find("classification").updated(classifier_dropout=0.25))
    albert = AlbertModel(tiny.SHALLOW, dtype="float32")
    albert.build()
    model = task.build_model(tiny.SHALLOW, "float32", albert)
    assert model.albert is albert and model.classifier_dropout == 0.25
    model = task.build_model(tiny.SHALLOW, "mixed_bfloat16")
    assert model.albert.dtype_policy.name == "mixed_bfloat16"


def test_a_threshold_is_not_part_of_the_identity():
    """Runs whose tasks differ only in the threshold have the same task."""
    task = find("squad-2.0")
    tuned = task.replaced(null_score_diff_threshold=1.5)
    assert tuned.identity() == task.identity()
    assert tuned.description() != task.description()


def test_a_label_in_a_list():
    """In a column of labels, a list with one item is replaced by the item."""
    labels = [[1], 2, [1, 2], [], "x"]
    cells = find("multiple_choice").cells_and_shares(labels)[0]
    assert cells == [1, 2, [1, 2], [], "x"]


def test_the_task_of_another_model():
    """A task rejects a model of another kind or with different labels."""
    for name in ("ax", "classification"):
        task = find(name).for_model(find("mnli"))
        assert task.labels == find("mnli").labels
    assert find("multiple_choice").for_model(find("race")).number == 4
    with pytest.raises(InputError, match="entailment, neutral"):
        find("rte").for_model(find("mnli"))
    other = dataclasses.replace(find("mnli"), labels=find("mnli").labels[::-1])
    with pytest.raises(InputError, match="neutral, entailment"):
        find("ax").for_model(other)
    with pytest.raises(InputError, match="kind.*classification"):
        find("sts-b").for_model(find("mnli"))


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("classification", {"text_column": "x", "label_column": ("x",)}),
        ("classification", {"text_pair_column": "label"}),
        ("regression", {"text_column": "label"}),
        ("token_classification", {"text_column": "1", "label_column": ("1",)}),
        ("multiple_choice", {"choice_columns": ("x",), "label_column": ("x",)}),
    ],
)
def test_labels_are_not_among_the_texts(name, columns):
    """A model must not read the labels; this error names their column."""
    with pytest.raises(InputError, match="column of the texts. .*label_column"):
        find(name).updated(**columns)
