"""The model directory that a run writes: threshold, metrics and predictions.

With several seeds, each has a folder, and metrics have a median and a spread.
"""

import dataclasses
import statistics
from collections.abc import Sequence

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.finetuning.evaluation import METRICS_FILE, TaskEvaluator
from albert_tf.finetuning.finetuning_settings import FinetuningConfig, seed_dir
from albert_tf.finetuning.job import Job
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.model_card import write_card

Metrics = dict[str, dict[str, float]]  # by split


def create_output_dir(run: FinetuningConfig, job: Job) -> Job:
    """Create the output's model directory, or raise an error if it is taken.

    Returns:
      The job. If neither an evaluation nor a flag sets its threshold, it has
      the threshold saved with the existing weights.
    """
    task, resumes = job.task, checkpoint_files.latest(run.output_dir)
    require(
        is_finetuned(run.output_dir) or not resumes,
        "`output_dir` must not contain a model that is not fine-tuned; choose "
        "another folder.",
        output_dir=run.output_dir,
    )
    checkpoints.create_model_dir(run.output_dir, job.config)
    if resumes:
        earlier = load_task(run.output_dir)
        require(
            task.identity() == earlier.identity(),
            "`output_dir` contains a model with another task, or other labels, "
            "columns or lengths; choose another folder.",
            output_dir=run.output_dir,
        )
        if task.config.null_score_diff_threshold is None:
            value = earlier.config.null_score_diff_threshold
            task = task.replaced(null_score_diff_threshold=value)
    job.tokenizer.save(run.output_dir)
    task.save(run.output_dir)
    return job if run.do_eval else dataclasses.replace(job, task=task)


def keep_tuned(model_dir: str, judge: TaskEvaluator) -> None:
    """Save the threshold that an evaluation found with its weights."""
    if judge.tuned != judge.task:
        value = judge.tuned.config.null_score_diff_threshold
        task = load_task(model_dir)
        task.replaced(null_score_diff_threshold=value).save(model_dir)
        print(f"null_score_diff_threshold={value:.6g} of {model_dir}")


def write_metrics(output_dir: str, values: dict, model: str = "") -> None:
    """Write `metrics.json`, which has the figures of a single model.

    Args:
      output_dir: the folder to write to.
      values: the measured values.
      model: identifies the weights. Results of an earlier run with the same
        weights on other splits stay in the file; without a name, none do.
    """
    path = files.join(output_dir, METRICS_FILE)
    earlier = {}
    if model and files.exists(path):
        earlier = files.read_json_object(path, METRICS_FILE)
    if earlier.get("model") != model:
        earlier = {}
    named = {"model": model} if model else {}
    files.write_json(path, earlier | named | values)


def write_report(
    folder: str,
    job: Job,
    judge: TaskEvaluator,
    writes: bool,
    models: Sequence[str],
) -> Metrics:
    """Evaluate and predict; return the metrics of the labelled splits.

    Args:
      folder: the folder for `metrics.json` and predictions, for instance
        `eval_predictions.tsv`, `predictions.tsv` and, with several splits,
        `predictions_mismatched.tsv`.
      job: has the splits.
      judge: has the model.
      writes: whether this process writes files.
      models: the directories of the weights.
    """
    metrics = {}
    for split in (*job.eval, *job.predict):
        values, predictions = judge.judge(split)
        if values:
            metrics[split.name] = {**values, "examples": len(split.examples)}
        part, _, suffix = split.name.partition("_")
        stem = {"eval": "eval_predictions", "predict": "predictions"}[part]
        path = files.join(folder, "_".join(filter(None, (stem, suffix))))
        if writes:
            written = judge.tuned.write_predictions(
                path, split.examples, predictions
            )
            print(f"{len(split.examples)} predictions: {', '.join(written)}")
    if writes:
        model = "; ".join(map(checkpoints.fingerprint, models))
        write_metrics(folder, {"task": job.task.name, **metrics}, model)
        if is_finetuned(folder):
            write_card(folder, folder)
    return metrics


def mean_threshold(directories: Sequence[str]) -> float | None:
    """Return the mean of an ensemble's thresholds, None if any lacks one.

    The null odds of averaged logits are close to the mean of the members' odds.
    """
    values = [
        load_task(directory).config.null_score_diff_threshold
        for directory in directories
    ]
    return None if None in values else statistics.mean(values)


def summary(runs: dict[int, Metrics]) -> Metrics:
    """Return the median, minimum and maximum of each metric over all runs."""
    spread = {"median": statistics.median, "min": min, "max": max}
    first = next(iter(runs.values()))
    return {
        f"{split}_{name}": {
            metric: function([run[split][metric] for run in runs.values()])
            for metric in values
        }
        for split, values in first.items()
        for name, function in spread.items()
    }


def write_summary(
    output_dir: str, task: str, best_metric: tuple[str, str], runs: dict
) -> Metrics:
    """Write `metrics.json` for all seeds; return the summary.

    Args:
      output_dir: the folder that contains the runs' folders.
      task: the task's name.
      best_metric: the split and the metric that determine the best run.
      runs: {seed: metrics by split}.
    """
    values = summary(runs)
    about = {"task": task, "seeds": list(runs)}
    split, metric = best_metric
    if split in next(iter(runs.values())):
        best = max(runs, key=lambda seed: runs[seed][split][metric])
        about["best"] = seed_dir(output_dir, best)
    each = {str(seed): run for seed, run in runs.items()}
    write_metrics(output_dir, {**about, **values, "runs": each})
    return values
