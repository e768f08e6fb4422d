"""Metrics and predictions of one model or an ensemble, and their files."""

import contextlib
import statistics
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.console import counted
from albert_tf.base.errors import InputError, require
from albert_tf.base.replacing import check_unused
from albert_tf.finetuning.data_notes import prediction_notes
from albert_tf.finetuning.finetuning_setup import (
    FinetuningConfig,
    Job,
    Split,
    metric_name,
)
from albert_tf.model.config import AlbertConfig
from albert_tf.model.ops import is_tpu
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.losses import LOSS_WEIGHTS
from albert_tf.tasks.predictions import sibling
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import load_saved_tokenizer
from albert_tf.training import checkpoints, distribution
from albert_tf.training.evaluator import Evaluator
from albert_tf.training.model_card import write_card
from albert_tf.training.objectives import Batch

METRICS_FILE = "metrics.json"
# Tables that are written only if the labels are known.
LABELED = ("confusion", "entities", "errors")
_STEMS = ("predictions", "nbest_predictions", "null_odds", *LABELED)
# Files that evaluation and prediction write. A user's files may have the same
# names.
RESULT_FILES = (
    METRICS_FILE,
    *(
        f"{part}{stem}.{extension}"
        for part in ("", "eval_")
        for stem in (*_STEMS, "predictions_*")
        for extension in ("tsv", "json", "conll", "npy")
    ),
)
Metrics = dict[str, dict[str, float]]  # {split: {metric: value}}


class TaskEvaluator:
    """An evaluator that measures a model's current weights on a task.

    The attribute `tuned` is the task with the threshold from the last
    evaluation split; predictions for test splits use this threshold.

    Args:
      model: the `Evaluator` of the model.
      task: the model's task.
      bucketed: whether to sort examples by length, which does not change the
        results.
      outputs: a function to use instead of `TaskObjective.measured_outputs`, or
        None.
    """

    def __init__(
        self,
        model: Evaluator,
        task: Task,
        bucketed: bool,
        outputs: Callable | None = None,
    ):
        self.model, self.task, self.bucketed = model, task, bucketed
        self.tuned = task
        self.outputs = outputs or task.objective.measured_outputs

    def evaluate(self, split: Split) -> tuple[dict[str, float], Sequence[Any]]:
        """Return a split's metrics ({} without labels) and predictions."""
        size = self.model.eval_batch_size
        outputs = self.model.predict(
            lambda: evaluation_batches(split.features, size, self.bucketed),
            self.outputs,
        )
        weights = outputs.pop(LOSS_WEIGHTS, None)
        losses = outputs.pop("task_loss", None)
        is_eval = split.name.startswith("eval")
        # The labels of other splits may evaluate a threshold, but never tune
        # it.
        task = self.task if is_eval else self.tuned.tuned((), ())
        predictions = task.predictions(split.examples, outputs, split.features)
        if losses is None:
            return {}, predictions
        scores = task.score(split.examples, predictions)
        if is_eval:
            self.tuned = task.tuned(split.examples, predictions)
        loss = float(np.average(losses, None, weights))
        return {"loss": loss, **scores}, predictions

    def metrics(self, splits: Sequence[Split]) -> dict[str, float]:
        """Return the metrics of several splits, under distinct names."""
        return {
            metric_name(split.name, name): value
            for split in splits
            for name, value in self.evaluate(split)[0].items()
        }


BUCKETED_PARTS = {"none": (), "evaluation": ("eval",), "all": ("train", "eval")}


def bucketed(run: FinetuningConfig, strategy, part: str) -> bool:
    """Return whether a part's batches are bucketed by length.

    Args:
      run: the settings of the run.
      strategy: the devices; on TPUs, batches are never bucketed.
      part: "train" or "eval".
    """
    return part in BUCKETED_PARTS[run.length_bucketing] and not is_tpu(strategy)


def load_evaluator(
    directory: str,
    task: Task,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    dtype: str = "float32",
) -> tuple[Evaluator, str]:
    """Return an evaluator of a model, and the model's fingerprint."""
    config, objective = AlbertConfig.from_model_dir(directory), task.objective
    evaluator = Evaluator(
        strategy, lambda: task.build_model(config, dtype), objective, batch_size
    )
    prefix = checkpoints.restore_weights(evaluator.model, directory)
    distribution.broadcast(strategy, list(evaluator.weights.values()))
    return evaluator, checkpoints.fingerprint(prefix)


def averaged_outputs(task: Task) -> Callable:
    """Return a function that computes an ensemble's mean outputs and losses."""

    objective = task.objective

    def outputs(ensemble, batch: Batch) -> dict[str, tf.Tensor]:
        members = [objective.outputs(x, batch) for x in ensemble.members]
        mean = tf.nest.map_structure(
            lambda *x: tf.reduce_mean(tf.stack(x), axis=0), *members
        )
        return objective.with_losses(mean, batch)

    return outputs


def load_other(directory: str, setting: str, job: Job) -> Task:
    """Check that another fine-tuned model fits a job; return the model's task.

    Args:
      directory: the other model's directory.
      setting: the setting that names the directory.
      job: the job that uses the other model.
    """
    received = {setting: directory}
    require(
        is_finetuned(directory),
        f"`{setting}` must name fine-tuned model directories.",
        **received,
    )
    tokenizer = load_saved_tokenizer(directory)
    require(
        tokenizer.fingerprint() == job.tokenizer.fingerprint(),
        f"All models of a run with `{setting}` must have the same tokenizer.",
        **received,
    )
    config = AlbertConfig.from_model_dir(directory)
    config.check_length("max_seq_length", job.task.config.max_seq_length)
    config.check_pieces(tokenizer.vocab_size, directory)
    return load_task(directory)


def check_members(directories: Sequence[str], job: Job) -> None:
    """Raise an error if the models cannot form an ensemble for the job."""
    require(
        job.task.objective.averages,
        "The outputs of an `ensemble` must be logits; this task's outputs "
        "cannot be averaged.",
        task=job.task.name,
    )
    tasks = [
        load_other(directory, "ensemble", job).without_ids().identity()
        for directory in directories
    ]
    for directory, task in zip(directories, tasks, strict=True):
        require(
            task == tasks[0],
            "The models of an `ensemble` must have the same task, labels, "
            "columns (except `id_column`) and lengths.",
            ensemble=f"{directories[0]},{directory}",
        )


def load_ensemble(
    directories: Sequence[str],
    job: Job,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    dtype: str,
) -> tuple[Evaluator, str]:
    """Return an evaluator of several models, and their fingerprints.

    The evaluator must be used with `averaged_outputs`.
    """
    options = job.task, strategy, batch_size, dtype
    pairs = [load_evaluator(directory, *options) for directory in directories]
    evaluators, fingerprints = zip(*pairs, strict=True)
    members = [evaluator.model for evaluator in evaluators]
    # `Evaluator` needs only these attributes of a model.
    model = types.SimpleNamespace(name="ensemble", weights=(), members=members)
    evaluator = Evaluator(
        strategy, lambda: model, job.task.objective, batch_size
    )
    return evaluator, "; ".join(fingerprints)


def mean_threshold(directories: Sequence[str]) -> float | None:
    """Return the mean `null_score_diff_threshold` of an ensemble's members.

    The result is None if a member has no threshold. The mean is a suitable
    threshold, because the null odds of averaged logits are close to the mean of
    the members' null odds.
    """
    values = [
        load_task(directory).config.null_score_diff_threshold
        for directory in directories
    ]
    return None if None in values else statistics.mean(values)


# Files that an evaluation writes.


def save_threshold(model_dir: str, evaluator: TaskEvaluator) -> None:
    """Save the threshold from an evaluation to a model directory."""
    if evaluator.tuned != evaluator.task:
        value = evaluator.tuned.config.null_score_diff_threshold
        task = load_task(model_dir)
        task.replaced(null_score_diff_threshold=value).save(model_dir)
        print(f"Saved null_score_diff_threshold={value:.6g} to {model_dir}")


def check_results(
    folder: str, tasks: Sequence[str | None], of_seeds: bool
) -> None:
    """Raise an error if a folder has results that a run must not replace.

    A run must not replace the summary of several seeds or tasks, or files that
    no evaluation wrote. Files are from an evaluation if `metrics.json` names
    the task, or if the folder contains a fine-tuned model.

    Args:
      folder: the output folder.
      tasks: the names of the run's tasks.
      of_seeds: whether the run has several seeds.
    """
    metrics: dict = {}
    with contextlib.suppress(InputError):
        metrics = files.read_optional_json(folder, METRICS_FILE)
    require(
        of_seeds or "seeds" not in metrics,
        "Without `num_seeds`, `output_dir` must not contain the results of "
        "several seeds; choose another folder.",
        output_dir=folder,
    )
    stored = str(metrics.get("task")).split(",")
    require(
        len(stored) == 1 or {*stored} == {*tasks},
        "`output_dir` must not contain the results of several tasks, unless "
        "the run trains the same tasks; choose another folder.",
        output_dir=f"{folder} with {', '.join(stored)}",
    )
    if "task" not in metrics and not is_finetuned(folder):
        check_unused(folder, RESULT_FILES)


def stored_metrics(folder: str) -> Metrics:
    """Return the metrics by split in a folder's `metrics.json`, if any.

    `write_report` drops the metrics of earlier weights from this file.
    """
    values = files.read_optional_json(folder, METRICS_FILE)
    return {k: x for k, x in values.items() if isinstance(x, dict)}


def write_metrics(output_dir: str, values: dict) -> None:
    """Write all values except None to `metrics.json`."""
    measured = {k: v for k, v in values.items() if v is not None}
    files.write_json(files.join(output_dir, METRICS_FILE), measured)


def remove_tables(path: str) -> None:
    """Remove a split's tables, which an earlier evaluation with labels wrote.

    Args:
      path: the path of the predictions without the extension.
    """
    for name in LABELED:
        table = f"{sibling(path, name)}.tsv"
        if files.exists(table):
            files.remove(table)


def _print_written(
    task: Task, split: Split, predictions: Sequence, written: Sequence[str]
) -> None:
    """Print the number of a split's predictions, their files and notes."""
    number = counted(len(split.examples), "prediction")
    print(f"{number}: {', '.join(written)}")
    for note in prediction_notes(task, split.examples, predictions):
        print(f"  {note}")


def write_report(
    folder: str,
    job: Job,
    evaluator: TaskEvaluator,
    writes: bool,
    fingerprint: str,
) -> Metrics:
    """Evaluate and predict; return the metrics of the labeled splits.

    Earlier results of the same weights on other splits are kept.

    Args:
      folder: the folder for `metrics.json` and predictions, for instance
        `eval_predictions.tsv` and `predictions_mismatched.tsv`.
      job: the job with the splits.
      evaluator: the evaluator of the model.
      writes: whether this process writes files.
      fingerprint: the fingerprint of the weights.
    """
    metrics, metadata = {}, {"task": job.task.name}
    metrics_file = files.join(folder, METRICS_FILE)
    earlier = files.read_optional_json(folder, METRICS_FILE) if writes else {}
    for split in (*job.eval, *job.predict):
        values, predictions = evaluator.evaluate(split)
        measured = {**values, "examples": len(split.examples)}
        metrics[split.name] = measured if values else None
        metadata[f"{split.name}_file"] = split.source if values else None
        part, _, suffix = split.name.partition("_")
        stem = {"eval": "eval_predictions", "predict": "predictions"}[part]
        path = files.join(folder, "_".join(filter(None, (stem, suffix))))
        if writes:
            if not files.exists(metrics_file):
                # The file marks the folder as the output of an evaluation, so
                # an interrupted run can be repeated.
                write_metrics(folder, metadata)
            written = evaluator.tuned.write_predictions(
                path, split.examples, predictions
            )
            _print_written(job.task, split, predictions, written)
            if not values and split.name in earlier:
                remove_tables(path)
    if writes:
        if earlier.get("model") != fingerprint:
            earlier = {}  # results of different weights
        facts = {"model": fingerprint, **metadata}
        write_metrics(folder, {**earlier, **facts, **metrics})
        if is_finetuned(folder):
            write_card(folder, folder)
    return {name: values for name, values in metrics.items() if values}
