"""Fine-tuning, evaluation and prediction with a model directory.

With `do_eval`, the final weights are the weights with the best main metric, in
the folder `best/` of the output directory. Without `do_eval`, they are the last
weights or, with `ema_decay`, a moving average of the weights.
"""

import dataclasses
import statistics
from collections.abc import Iterable

import keras
import numpy as np
import tensorflow as tf

from albert_tf.base import files, program
from albert_tf.base.errors import require
from albert_tf.finetuning import evaluation
from albert_tf.finetuning.evaluation import Metrics, TaskEvaluator, bucketed
from albert_tf.finetuning.finetuning_run import (
    KeepThreshold,
    claim_folders,
    run_training,
)
from albert_tf.finetuning.finetuning_setup import (
    CONFIGS,
    DEFAULTS,
    MEANS,
    Job,
    Settings,
    seed_dir,
)
from albert_tf.finetuning.finetuning_trainer import (
    check_partners,
    make_batches,
    make_trainer,
    prepare_jobs,
)
from albert_tf.finetuning.multitask import finetune_together
from albert_tf.finetuning.soft_targets import objective_of, teach
from albert_tf.tasks.registry import is_finetuned
from albert_tf.tasks.task import Task
from albert_tf.training import checkpoints, distribution
from albert_tf.training.evaluator import Evaluator
from albert_tf.training.history import RunResult
from albert_tf.training.hooks import StopInTime, check_hooks
from albert_tf.training.optimizer import with_rate
from albert_tf.training.run import Hook
from albert_tf.training.workers import explaining_lost_workers


def train(
    s: Settings, job: Job, strategy: tf.distribute.Strategy
) -> tuple[Evaluator, str]:
    """Train; return an evaluator, and the fingerprint of the final weights.

    If training is incomplete, the fingerprint is "".

    Args:
      s: the settings, with every number of steps filled in.
      job: the job, whose output directory is locked.
      strategy: the devices.
    """
    check_partners(s, job, strategy.num_replicas_in_sync)
    trainer = make_trainer(
        s,
        job.config,
        strategy,
        lambda: job.task.build_model(job.config, s.training.dtype_policy),
        objective_of(job.task, s.recipe),
    )
    features = job.training_split.features
    batches = make_batches(features, s, strategy)
    by_length = bucketed(s.run, strategy, "eval")
    evaluator = TaskEvaluator(trainer.evaluator, job.task, by_length)
    keep = KeepThreshold(s.training.eval_steps, job.best_metric, evaluator)
    final = run_training(
        s, trainer, batches, lambda: evaluator.metrics(job.eval), keep, job
    )
    return trainer.evaluator, final and checkpoints.fingerprint(final)


def load(
    s: Settings, job: Job, strategy: tf.distribute.Strategy
) -> tuple[Evaluator, str]:
    """Return an evaluator of one or more models, and their fingerprint."""
    options = strategy, s.training.eval_batch_size, s.training.dtype_policy
    if s.run.ensemble:
        return evaluation.load_ensemble(s.run.ensemble, job, *options)
    return evaluation.load_evaluator(s.run.source_dir, job.task, *options)


def train_in_output_dir(
    s: Settings, job: Job, strategy: tf.distribute.Strategy
) -> tuple[Job, Evaluator, str]:
    """Train in the locked output directory; see `train`."""
    s = s.planned(len(job.training_split.features))

    def claim():
        nonlocal job
        (job,) = claim_folders(s, job.best_metric, {s.run.output_dir: job})

    with checkpoints.locked_model_dir(strategy, s.run.output_dir, claim):
        return job, *train(s, job, strategy)


def evaluate_and_predict(
    s: Settings,
    job: Job,
    model: Evaluator,
    fingerprint: str,
    strategy: tf.distribute.Strategy,
) -> Metrics:
    """Write metrics and predictions; return the metrics by split."""
    outputs = evaluation.averaged_outputs(job.task) if s.run.ensemble else None
    by_length = bucketed(s.run, strategy, "eval")
    evaluator = TaskEvaluator(model, job.task, by_length, outputs)
    folder, chief = s.run.output_dir, distribution.is_chief(strategy)
    metrics = evaluation.write_report(
        folder, job, evaluator, chief, fingerprint
    )
    if chief and s.run.in_place:
        evaluation.save_threshold(folder, evaluator)
    return metrics


def summary(runs: dict[int, Metrics]) -> Metrics:
    """Return each metric's median, spread and range over all runs.

    Args:
      runs: {seed: metrics by split}, of at least two seeds.

    Returns:
      {name: {metric: value}}, with names such as `eval_median` and `eval_max`;
      `eval_std` contains the sample standard deviations (divisor: runs - 1).
    """
    spread = {
        "median": statistics.median,
        "std": lambda values: float(np.std(values, ddof=1)),
        "min": min,
        "max": max,
    }
    first = next(iter(runs.values()))
    return {
        f"{split}_{name}": {
            metric: function([run[split][metric] for run in runs.values()])
            for metric in values
        }
        for split, values in first.items()
        for name, function in spread.items()
    }


def write_summary(output_dir: str, task: Task, seeds: Iterable[int]) -> Metrics:
    """Write the `metrics.json` of all seeds; return the summary.

    The summary covers the splits for which all seeds have results from the same
    file.

    Args:
      output_dir: the folder that contains the runs' folders.
      task: the task.
      seeds: the seeds of the runs.
    """
    folders = {seed: seed_dir(output_dir, seed) for seed in seeds}
    stored = {k: evaluation.stored_metrics(x) for k, x in folders.items()}
    contents = [
        files.read_optional_json(folder, evaluation.METRICS_FILE)
        for folder in folders.values()
    ]
    first = next(iter(stored.values()))
    splits = [
        split
        for split in first
        if all(split in run for run in stored.values())
        and len({values.get(f"{split}_file") for values in contents}) == 1
    ]
    runs = {seed: {k: run[k] for k in splits} for seed, run in stored.items()}
    values = summary(runs)
    metadata = {"task": task.name, "seeds": list(runs)}
    # If the runs were evaluated, the evaluation determines the best run.
    split = min(splits, key=lambda k: not k.startswith("eval"), default="")
    if split and task.main_metric in first[split]:
        best = max(runs, key=lambda seed: runs[seed][split][task.main_metric])
        metadata["best"] = folders[best]
    by_seed = {str(seed): run for seed, run in runs.items()}
    evaluation.write_metrics(
        output_dir, {**metadata, **values, "runs": by_seed}
    )
    return values


def run_job(
    s: Settings, job: Job, strategy: tf.distribute.Strategy
) -> Metrics | None:
    """Train, evaluate and predict; return the metrics by split.

    The result is None if training is incomplete.
    """
    if s.run.do_train:
        job, model, fingerprint = train_in_output_dir(s, job, strategy)
    else:
        model, fingerprint = load(s, job, strategy)
    if not fingerprint:
        return None  # a later run resumes training
    return evaluate_and_predict(s, job, model, fingerprint, strategy)


def run_seeds(
    s: Settings, job: Job, strategy: tf.distribute.Strategy
) -> Metrics:
    """Run each seed in a separate folder; return the summary of the runs.

    The result is empty if a run is incomplete, and in workers other than the
    chief.
    """
    require(
        not is_finetuned(s.run.output_dir),
        "With `num_seeds`, `output_dir` must not be a model directory.",
        output_dir=s.run.output_dir,
    )
    runs, time_limit = {}, StopInTime(s.training.max_hours)
    s = dataclasses.replace(s, hooks=(*s.hooks, time_limit))
    first = s.training.random_seed
    for seed in range(first, first + s.run.num_seeds):
        if time_limit.stopped:
            return {}
        seed_settings = s.with_seed(seed)
        print(f"Seed {seed}: {seed_settings.run.output_dir}", flush=True)
        runs[seed] = run_job(seed_settings, job, strategy)
        keras.backend.clear_session()
    if None in runs.values() or not distribution.is_chief(strategy):
        return {}
    return write_summary(s.run.output_dir, job.task, runs)


def for_ensemble(s: Settings, job: Job) -> Job:
    """Check an ensemble's members; return the job with their mean threshold.

    A threshold set by a flag takes precedence. With `do_eval`, the job has no
    threshold, because the evaluation tunes one.
    """
    evaluation.check_members(s.run.ensemble, job)
    if s.task.null_score_diff_threshold is not None:
        return job
    mean = evaluation.mean_threshold(s.run.ensemble)
    threshold = None if s.run.do_eval else mean
    task = job.task.replaced(null_score_diff_threshold=threshold)
    return dataclasses.replace(job, task=task)


@explaining_lost_workers()
def finetune_task(s: Settings) -> Metrics:
    """Train, evaluate and predict on one task; return the metrics by split."""
    workers, (job,) = prepare_jobs(s, [s.data.task])
    if s.run.ensemble:
        job = for_ensemble(s, job)
    strategy = workers or distribution.make_strategy(s.devices)
    s = s.with_dtype(strategy)
    if s.recipe.teacher and s.run.do_train:
        by_length = bucketed(s.run, strategy, "eval")
        size = s.training.eval_batch_size
        job = teach(job, s.recipe, strategy, size, by_length)
    run = run_seeds if s.run.num_seeds > 1 else run_job
    return run(s, job, strategy) or {}


# Names that the released fine-tuning scripts use for the same settings.
RELEASED_NAMES = {
    "task_name": "task",
    "train_step": "num_train_steps",
    "warmup_step": "num_warmup_steps",
    "dropout_prob": "classifier_dropout",
    "dev_file": "eval_file",
}


@program.command(
    *CONFIGS, defaults=DEFAULTS, means=MEANS, aliases=RELEASED_NAMES
)
def finetune(*configs, hooks: Iterable[Hook] | Hook = ()) -> RunResult:
    """Fine-tune, evaluate and predict with a model directory.

    The keyword arguments are the flags of `finetune.py`. Instead of files of
    examples, you can pass tables in memory.

    Args:
      hooks: hooks to call between steps, in addition to the standard hooks.

    Returns:
      The directory, the metrics of each split and the run's history.
    """
    s = Settings(*configs, hooks=hooks and check_hooks(hooks))
    optimizer = with_rate(s.optimizer, s.training)
    s = dataclasses.replace(s, optimizer=optimizer)
    several = "," in (s.data.task or "")
    metrics = finetune_together(s) if several else finetune_task(s)
    for split, values in metrics.items():
        for name, value in values.items():
            print(f"{split} {name} = {value:.6g}")
    return RunResult(files.absolute(s.run.output_dir), metrics)


cli = finetune.program.cli
