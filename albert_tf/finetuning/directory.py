"""The model directory that a run writes, its weights and their threshold."""

import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence

from albert_tf.base.errors import require
from albert_tf.finetuning.job import FinetuningConfig, Job
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.scoring import Judge, report, write_metrics
from albert_tf.tasks.task import Task
from albert_tf.training import checkpoints
from albert_tf.training.model_card import write_card


def same_task(one: Task, other: Task) -> bool:
    """Return whether two tasks differ in their thresholds at most."""
    # As JSON, for tuples are lists there.
    first, second = (
        json.dumps(task.identity(), sort_keys=True) for task in (one, other)
    )
    return first == second


def claim(run: FinetuningConfig, job: Job) -> Job:
    """Make the output's model directory, or refuse another run's.

    Returns:
      The job. Where no evaluation tunes its threshold and no flag gives it,
      it has that of the weights that are there.
    """
    task, resumes = job.task, checkpoints.latest(run.output_dir)
    require(
        is_finetuned(run.output_dir) or not resumes,
        "`output_dir` must not hold a model that is not fine-tuned; choose "
        "another folder.",
        output_dir=run.output_dir,
    )
    checkpoints.claim(run.output_dir, job.config)
    if resumes:
        earlier = load_task(run.output_dir)
        require(
            same_task(task, earlier),
            "`output_dir` holds a model of another task, or other labels, "
            "columns or lengths; choose another folder.",
            output_dir=run.output_dir,
        )
        if task.config.null_score_diff_threshold is None:
            value = earlier.config.null_score_diff_threshold
            task = task.with_null_threshold(value)
    job.tokenizer.save(run.output_dir)
    task.save(run.output_dir)
    return job if run.do_eval else dataclasses.replace(job, task=task)


def weights_of(run: FinetuningConfig) -> str:
    """Return what tells the evaluated weights from others."""
    source = run.output_dir if run.do_train else run.source_dir
    directories = run.ensemble or [source]
    return "; ".join(map(checkpoints.fingerprint, directories))


def keep_tuned(model_dir: str, judge: Judge) -> None:
    """Write the threshold that an evaluation found beside its weights."""
    if judge.tuned != judge.task:
        value = judge.tuned.config.null_score_diff_threshold
        load_task(model_dir).with_null_threshold(value).save(model_dir)
        print(f"null_score_diff_threshold={value:.6g} of {model_dir}")


def write_report(
    folder: str, job: Job, judge: Judge, writes: bool, weights: Callable
) -> dict[str, dict[str, float]]:
    """Evaluate and predict; return the metrics by split.

    Args:
      folder: where predictions and `metrics.json` are written.
      job: has the splits.
      judge: has the model.
      writes: whether this process does.
      weights: returns what tells the model's weights from others.
    """
    metrics = report(judge, (*job.eval, *job.predict), folder, writes)
    if writes:
        write_metrics(folder, {"task": job.task.name, **metrics}, weights())
        if is_finetuned(folder):
            write_card(folder, folder)
    return metrics


def mean_threshold(directories: Sequence[str]) -> float | None:
    """Return the mean of the thresholds of an ensemble, None if one has none.

    The null odds of averaged logits are about the mean of the members'.
    """
    values = [
        load_task(directory).config.null_score_diff_threshold
        for directory in directories
    ]
    return None if None in values else statistics.mean(values)
