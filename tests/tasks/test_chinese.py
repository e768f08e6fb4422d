"""Chinese data sets in their official layouts, and submission files."""

import json

import pytest
import tiny_tasks

from albert_tf.base.errors import InputError
from albert_tf.data.row_files import Row
from albert_tf.tasks.classification import Example, marked_spans
from albert_tf.tasks.predictions import Prediction, write_submission
from albert_tf.tasks.registry import find
from albert_tf.tasks.task import read_splits
from albert_tf.tasks.task_config import DataConfig

PAIR = {"sentence1": "甲", "sentence2": "乙"}
WSC = {
    "text": "他说树很高",
    "target": {
        "span1_text": "树",
        "span1_index": 2,
        "span2_text": "他",
        "span2_index": 0,
    },
}
# {data set: (a row, its text, pair and label)}
ROWS = {
    "tnews": (
        {"sentence": "新闻", "label": 104, "keywords": "x"},
        ("新闻", "", "104"),
    ),
    "iflytek": ({"sentence": "应用", "label": "118"}, ("应用", "", "118")),
    "afqmc": (PAIR | {"label": "1"}, ("甲", "乙", "1")),
    "cmnli": (PAIR | {"label": "neutral"}, ("甲", "乙", "neutral")),
    "ocnli": (PAIR | {"label": "entailment"}, ("甲", "乙", "entailment")),
    "csl": (
        {"keyword": ["词", "语"], "abst": "文摘", "label": "0"},
        ("词 语", "文摘", "0"),
    ),
    "cluewsc": (WSC | {"label": "true"}, ("[他]说_树_很高", "", "true")),
}


def write_clue(folder, name, row):
    unlabeled = {k: v for k, v in row.items() if k != "label"} | {"id": 7}
    train = "train.50k.json" if name == "ocnli" else "train.json"
    for file, value in (
        (train, row),
        ("dev.json", row),
        ("test.json", unlabeled),
    ):
        path = folder / name / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("name", ROWS)
def test_layouts_of_clue(tmp_path, name):
    """Rows are read with texts, ids and, except for prediction, labels."""
    row, expected = ROWS[name]
    write_clue(tmp_path, name, row)
    task, data = find(name), DataConfig(data_dir=str(tmp_path))
    for part in ("train", "eval", "predict"):
        (found,) = read_splits(task, data, part)[""]
        label = None if part == "predict" else expected[2]
        assert (found.text, found.text_pair) == expected[:2]
        assert found.label == label
        assert found.id == ("7" if part == "predict" else "0")
    assert expected[2] in task.labels


@pytest.mark.parametrize("name", ["cmnli", "ocnli"])
def test_rows_without_an_agreed_label(tmp_path, name, capsys):
    """Rows without an agreed label are skipped and counted.

    All other rows keep their row numbers.
    """
    path = tmp_path / "d.json"
    rows = [PAIR | {"label": x} for x in ("-", "neutral", "-")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [e.id for e in find(name).read("eval", str(path))] == ["1"]
    assert "skipped 2 examples" in capsys.readouterr().out


def test_tables(tmp_path):
    """LCQMC has no header; the header of ChnSentiCorp names the columns."""
    path = tiny_tasks.write_tsv(tmp_path / "t.txt", ("甲", "乙", "1"))
    (found,) = find("lcqmc").read("train", path)
    assert (found.text, found.text_pair, found.label) == ("甲", "乙", "1")
    path = tiny_tasks.write_tsv(
        tmp_path / "d.tsv", ("qid", "label", "text_a"), ("0", "1", "好")
    )
    (found,) = find("chnsenticorp").read("eval", path)
    assert (found.text, found.label) == ("好", "1")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (("b", 1), ("d", 3), "a_b_c[d]e"),
        (("d", 3), ("b", 1), "a[b]c_d_e"),
        (("ab", 0), ("cd", 2), "_ab_[cd]e"),
        (("e", 4), ("a", 0), "[a]bcd_e_"),
    ],
)
def test_spans_are_marked(first, second, expected):
    """Underscores mark the noun; brackets mark the pronoun, in any order."""
    target = {
        f"span{i}_{k}": v
        for i, span in ((1, first), (2, second))
        for k, v in zip(("text", "index"), span, strict=True)
    }
    row = Row("f:1", {"text": "abcde", "target": target})
    assert marked_spans(row).values["text"] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": 3}, "column text must contain text"),
        ({"target": None}, "`target` must be an object"),
        ({"target": {}}, "`span1_text` must be a string"),
        ({"span1_text": ""}, "must be in the text"),
        ({"span2_index": "0"}, "`span2_index` must be a whole number"),
        ({"span1_index": True}, "`span1_index` must be a whole number"),
        ({"span1_index": 3}, "`span1_text` must be .* where the text has '很'"),
        ({"span1_index": -3}, "`span1_text` must be"),
        ({"span2_index": 99}, "`span2_text` must be"),
    ],
)
def test_spans_that_are_not_in_the_text(change, message):
    """The error names the row in which a field is missing or malformed."""
    spans = {k: v for k, v in change.items() if k in WSC["target"]}
    row = {"target": WSC["target"] | spans, "text": WSC["text"]} | change
    with pytest.raises(InputError, match=f"f:1: .*{message}"):
        marked_spans(Row("f:1", row))


@pytest.mark.parametrize(
    ("name", "stem", "file", "expected"),
    [
        ("cola", "predictions", "CoLA.tsv", "index\tprediction\n3\t{}\n"),
        (
            "mnli",
            "predictions_mismatched",
            "MNLI-mm.tsv",
            "index\tprediction\n3\t{}\n",
        ),
        (
            "csl",
            "predictions",
            "csl_predict.json",
            '{{"id": 3, "label": "{}"}}\n',
        ),
    ],
)
def test_files_for_evaluation_servers(tmp_path, name, stem, file, expected):
    """Predictions for test files are also written in the official format."""
    task = find(name)
    label = task.labels[1]
    write_submission(str(tmp_path / stem), task.submissions, ["3"], [label])
    text = (tmp_path / file).read_text()
    assert text == expected.format(label)
    assert not write_submission(
        str(tmp_path / "eval_predictions"), task.submissions, ["3"], [label]
    )


def test_a_task_writes_its_submission_and_its_confusion(tmp_path):
    """Unlabeled texts get a submission; labeled texts, a confusion table."""
    task = find("rte")
    guess = Prediction("entailment", [0.7, 0.3])
    unlabeled = Example("9", "a", "b", None)
    labeled = Example("9", "a", "b", "not_entailment")
    task.write_predictions(str(tmp_path / "predictions"), [unlabeled], [guess])
    assert (tmp_path / "RTE.tsv").read_text() == (
        "index\tprediction\n9\tentailment\n"
    )
    assert not (tmp_path / "confusion.tsv").exists()
    task.write_predictions(
        str(tmp_path / "eval_predictions"), [labeled], [guess]
    )
    assert (tmp_path / "eval_confusion.tsv").read_text().splitlines()[1:] == [
        "entailment\t0\t0",
        "not_entailment\t1\t0",
    ]
