"""Evaluations of several splits, and the files that they write.

Models and tasks are replaced by mocks whose results are given.
"""

import os
from unittest import mock

import numpy as np
import pytest
from tiny_runs import read

from albert_tf.finetuning.evaluation import TaskEvaluator, write_report
from albert_tf.finetuning.finetuning_setup import Job, Split
from albert_tf.tasks.classification import Example
from albert_tf.tasks.predictions import Prediction
from albert_tf.tasks.registry import find


def evaluator_of(task, outputs):
    model = mock.Mock(eval_batch_size=4, **{"predict.return_value": outputs})
    return TaskEvaluator(model, task, bucketed=True)


def test_the_loss_of_a_split_is_weighted():
    """The loss is the mean over labels; only other outputs are predictions."""
    outputs = {
        "logits": np.zeros([3, 2]),
        "task_loss": np.array([1.0, 2.0, 4.0]),
        "loss_weights": np.array([1.0, 3.0, 0.0]),
    }
    task = mock.Mock(**{"score.return_value": {"accuracy": 0.5}})
    split = Split("eval", ["x", "y", "z"], mock.Mock())
    values, predictions = evaluator_of(task, outputs).evaluate(split)
    assert values == {"loss": 1.75, "accuracy": 0.5}
    assert predictions is task.predictions.return_value
    (_, predicted, _), _ = task.predictions.call_args
    assert predicted.keys() == {"logits"}


@pytest.mark.parametrize("name", ["eval", "eval_mismatched"])
def test_only_evaluation_tunes_a_task(name):
    """Test splits use the threshold that an evaluation found.

    Test splits do not tune the threshold, even if they have labels.
    """
    outputs = {"task_loss": np.ones(1), "loss_weights": np.ones(1)}
    task, score = mock.Mock(), {"f1": 0.5}
    tuned = task.tuned.return_value
    final = tuned.tuned.return_value
    for each in (task, tuned, final):
        each.score.return_value = score
    evaluator = evaluator_of(task, outputs)
    examples = ["x"]
    for split in (name, "predict_labeled", "predict"):
        outputs |= {"task_loss": np.ones(1)}
        evaluator.evaluate(Split(split, examples, mock.Mock()))
        assert evaluator.tuned is tuned
    task.tuned.assert_called_once_with(examples, task.predictions.return_value)
    assert task.predictions.call_count == 1
    assert tuned.tuned.mock_calls[0] == mock.call((), ())
    assert final.predictions.call_count == 2
    assert not final.tuned.called and not tuned.predictions.called


MNLI = ("eval_matched", "eval_mismatched", "predict_matched", "predict_x")


def report(folder, values, fingerprint, writes=True, labels=(None,) * 5):
    """Write the report of splits with given metrics; return the result.

    Args:
      folder: the folder of the results.
      values: {split: metrics}.
      fingerprint: the fingerprint of the weights.
      writes: whether to write files.
      labels: the labels of the examples.
    """
    rows = [Example("", "x", "", label) for label in labels]
    examples = {name: rows[: i + 2] for i, name in enumerate(MNLI)}
    splits = {"eval": [], "predict": []}
    for name in values:
        split = Split(name, examples[name], None, f"{name}.tsv")
        splits[name.split("_")[0]].append(split)
    job = Job(find("mnli"), None, None, (), **splits)

    def write(path, examples, predictions):
        with open(f"{path}.tsv", "w") as file:
            file.write(predictions[0].label)
        return [f"{path}.tsv"]

    evaluator = mock.Mock()
    evaluator.evaluate = lambda split: (
        values[split.name],
        [Prediction(split.name, np.zeros(2))],
    )
    evaluator.tuned.write_predictions = write
    return write_report(str(folder), job, evaluator, writes, fingerprint)


def test_the_report_prints_that_all_predictions_are_equal(tmp_path, capsys):
    """A note follows the files of a split with one class for all examples."""
    scores = {"eval_matched": {"accuracy": 0.0}}
    report(tmp_path, scores, "one", labels="ab")
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("eval_predictions_matched.tsv")
    assert second.startswith(
        "  Note: the prediction for all examples is eval_matched;"
    )


def test_each_split_has_metrics_and_files_of_its_own(tmp_path):
    """Each split has separate predictions and, if labeled, metrics.

    Metrics of other weights are dropped. Metrics of the same weights are kept
    unless the split is evaluated again.
    """
    scores = {name: {"accuracy": i / 4} for i, name in enumerate(MNLI[:3])}
    found = report(tmp_path, scores | {"predict_x": {}}, "one")
    expected = {
        name: {"accuracy": i / 4, "examples": i + 2}
        for i, name in enumerate(MNLI[:3])
    }
    assert found == expected
    files = {f"{name}_file": f"{name}.tsv" for name in expected}
    general = {"task": "mnli", "model": "one"}
    assert read(tmp_path) == general | expected | files
    stems = ("eval_predictions_matched", "eval_predictions_mismatched")
    stems += ("predictions_matched", "predictions_x")
    for stem, name in zip(stems, MNLI, strict=True):
        assert (tmp_path / f"{stem}.tsv").read_text() == name
    tables = [f"{stem}.tsv" for stem in stems]
    assert sorted(os.listdir(tmp_path)) == sorted([*tables, "metrics.json"])
    # The same weights: one split is evaluated again, another is unlabeled now.
    again = {"eval_matched": {"accuracy": 1.0}, "predict_matched": {}}
    (tmp_path / "confusion_matched.tsv").write_text("earlier")
    (tmp_path / "eval_confusion_matched.tsv").write_text("earlier")
    report(tmp_path, again, "one")
    left = read(tmp_path)
    assert left["eval_matched"] == {"accuracy": 1.0, "examples": 2}
    assert left["eval_mismatched"] == expected["eval_mismatched"]
    assert not {"predict_matched", "predict_matched_file"} & left.keys()
    assert not (tmp_path / "confusion_matched.tsv").exists()
    assert (tmp_path / "eval_confusion_matched.tsv").exists()
    report(tmp_path, {"eval_matched": {"accuracy": 0.5}}, "two")
    assert "eval_mismatched" not in read(tmp_path)
    assert read(tmp_path)["model"] == "two"
    # An interrupted evaluation leaves a file that does not name the weights.
    interrupted = '{"task": "mnli", "predict_x": {"accuracy": 1.0}}'
    (tmp_path / "metrics.json").write_text(interrupted)
    report(tmp_path, {"eval_matched": {"accuracy": 0.5}}, "two")
    assert "predict_x" not in read(tmp_path)


def test_workers_write_nothing(tmp_path):
    """Only one process writes the report, but all processes return metrics."""
    scores = {"eval_matched": {"accuracy": 0.5}}
    found = report(tmp_path, scores, "", writes=False)
    assert found == {"eval_matched": {"accuracy": 0.5, "examples": 2}}
    assert not os.listdir(tmp_path)


def test_metrics_of_several_splits_have_names():
    """In the history, a metric's name begins with the name of its split."""
    evaluator = evaluator_of(mock.Mock(), {})
    evaluator.evaluate = lambda split: ({"f1": len(split.name)}, None)
    splits = [Split(name, (), None) for name in ("eval", *MNLI[:2])]
    found = evaluator.metrics(splits)
    assert found == {"f1": 4, "matched_f1": 12, "mismatched_f1": 15}
