"""Several tasks at once: one shared encoder, a head for each.

A batch has examples of every task, as many as its weight says. At the end
each task has a model directory of its own, `output_dir/TASK`.
"""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.finetuning.directory import (
    claim,
    keep_tuned,
    write_metrics,
    write_report,
)
from albert_tf.finetuning.example_batches import bucketed, make_batches
from albert_tf.finetuning.finetune import (
    make_trainer,
    prepare_job,
    require_alike,
    run_training,
)
from albert_tf.finetuning.finetuning_settings import Settings
from albert_tf.finetuning.job import Job
from albert_tf.finetuning.recipe_trainer import FinetuningTrainer
from albert_tf.finetuning.task_mixture import SharedModel, Together, portions
from albert_tf.tasks.registry import find, is_finetuned
from albert_tf.tasks.scoring import Judge
from albert_tf.training.machines import distribution
from albert_tf.training.machines.workers import vanishing_explained
from albert_tf.training.model_directory import checkpoints
from albert_tf.training.runs.hooks import KeepBest

BEST_METRIC = "mean"  # of the tasks' main metrics


def mixed_batches(
    jobs: dict[str, Job],
    sizes: Sequence[int],
    s: Settings,
    strategy: tf.distribute.Strategy,
) -> Callable:
    """Return what makes batches of all tasks, see `Trainer.iterator`."""
    makers = {
        name: make_batches(
            job.train[0].features, s.run, s.training, strategy, size, number
        )
        for number, ((name, job), size) in enumerate(
            zip(jobs.items(), sizes, strict=True)
        )
    }

    def batches(**place):
        each = {name: make(**place) for name, make in makers.items()}
        return tf.data.Dataset.zip(each).map(
            lambda batch: {
                f"{task}/{name}": value
                for task, features in batch.items()
                for name, value in features.items()
            }
        )

    return batches


def task_names(s: Settings) -> list[str]:
    """Return the tasks' names, or refuse what several tasks cannot have."""
    names = [find(name.strip()).name for name in s.data.task.split(",")]
    official = ("train_file", "eval_file", "predict_file", "main_metric")
    wrong = [name for name in official if getattr(s.data, name)]
    wrong += ["do_train"] * (not s.run.do_train)
    wrong += ["num_seeds"] * (s.run.num_seeds > 1)
    wrong += ["teacher"] * bool(s.recipe.teacher)
    require(
        not wrong and len(set(names)) == len(names),
        "Several tasks, `task=A,B`, must differ, are trained together with "
        "`do_train`, one seed, their official files and metrics, and without "
        "a teacher.",
        task=f"{s.data.task}, {', '.join(wrong) or 'a task twice'}",
    )
    return names


def task_weights(s: Settings, jobs: dict[str, Job]) -> list[float]:
    """Return the weight of each task, together 1."""
    sizes = [len(job.train[0].features) for job in jobs.values()]
    entries = s.recipe.task_weights or sizes
    try:
        weights = [float(entry) for entry in entries]
    except ValueError:
        weights = []
    require(
        len(weights) == len(jobs) and all(w > 0 for w in weights),
        "`task_weights` must be a number above 0 for each task.",
        task_weights=",".join(map(str, entries)),
        task=s.data.task,
    )
    return [weight / sum(weights) for weight in weights]


def prepare_jobs(s: Settings, names: Sequence[str]) -> dict[str, Job]:
    """Return the tasks with their data, checked."""
    jobs = (
        prepare_job(s, dataclasses.replace(s.data, task=name)) for name in names
    )
    return {job.task.name: job for job in jobs}


def make_judge(s: Settings, job: Job, trainer: FinetuningTrainer) -> Judge:
    """Return a judge of one task with the shared model."""
    task = job.task

    def outputs(model, batch):
        return task.head.measured_outputs(model.models[task.name], batch)

    by_length = bucketed(s.run, trainer.strategy, "eval")
    return Judge(trainer.evaluator, task, by_length, outputs)


def all_metrics(
    jobs: dict[str, Job], judges: dict[str, Judge]
) -> dict[str, float]:
    """Return `TASK_metric` of all tasks, and the mean of the main ones."""
    metrics = {
        name: judges[name].metrics(job.eval) for name, job in jobs.items()
    }
    main = [metrics[name][job.best_metric] for name, job in jobs.items()]
    named = {
        f"{name}_{metric}": value
        for name, values in metrics.items()
        for metric, value in values.items()
    }
    return {BEST_METRIC: sum(main) / len(main), **named}


def finish(
    s: Settings,
    jobs: dict[str, Job],
    judges: dict[str, Judge],
    trainer: FinetuningTrainer,
) -> dict[str, dict[str, float]]:
    """Write every task's model directory; return the metrics by split."""
    metrics, chief = {}, distribution.is_chief(trainer.strategy)
    for name, job in jobs.items():
        folder = files.join(s.run.output_dir, name)
        if chief:
            table = trainer.model.encoder() | trainer.model.head(name)
            checkpoints.save(folder, table, trainer.step)
        splits = write_report(folder, job, judges[name], chief, [folder])
        if chief:
            keep_tuned(folder, judges[name])
        metrics |= {f"{name}_{split}": x for split, x in splits.items()}
    if metrics and chief:
        write_metrics(s.run.output_dir, {"task": ",".join(jobs), **metrics})
    return metrics


def make_directories(s: Settings, jobs: dict[str, Job]) -> dict[str, Job]:
    """Make the run's folder and each task's own; return what `claim` does."""
    first, output_dir = next(iter(jobs.values())), s.run.output_dir
    folders = {name: files.join(output_dir, name) for name in jobs}
    require(
        all(map(is_finetuned, folders.values()))
        or not checkpoints.latest(output_dir),
        "`output_dir` must not hold another model than one of these tasks; "
        "choose another folder.",
        output_dir=output_dir,
        task=",".join(jobs),
    )
    checkpoints.claim(output_dir, first.config)
    first.tokenizer.save(output_dir)
    jobs = {
        name: claim(dataclasses.replace(s.run, output_dir=folders[name]), job)
        for name, job in jobs.items()
    }
    s.write_flags()
    return jobs


def train(
    s: Settings,
    jobs: dict[str, Job],
    weights: Sequence[float],
    sizes: Sequence[int],
    strategy: tf.distribute.Strategy,
) -> dict | None:
    """Train all tasks; return the metrics, or None if told to stop."""
    config = next(iter(jobs.values())).config
    tasks = {name: job.task for name, job in jobs.items()}
    trainer = make_trainer(
        s,
        config,
        strategy,
        lambda: SharedModel(config, tasks, s.training.dtype_policy),
        Together(tasks, weights, s.recipe),
    )
    judges = {name: make_judge(s, job, trainer) for name, job in jobs.items()}
    batches = mixed_batches(jobs, sizes, s, strategy)
    keep = KeepBest(s.training.eval_steps, BEST_METRIC)
    over = run_training(
        s, trainer, batches, lambda: all_metrics(jobs, judges), keep
    )
    return finish(s, jobs, judges, trainer) if over else None


@vanishing_explained()
def finetune_together(s: Settings) -> dict[str, dict[str, float]]:
    """Train several tasks at once; return the metrics by task and split.

    Args:
      s: the settings; `data.task` names several tasks.
    """
    s.check()
    names = task_names(s)
    prepared = distribution.prepare_devices(s.devices)
    with distribution.agreed(prepared):
        jobs = prepare_jobs(s, names)
    require_alike(prepared, s, *jobs.values())
    s.advise()
    s = s.planned(sum(len(job.train[0].features) for job in jobs.values()))
    weights = task_weights(s, jobs)
    strategy = prepared or distribution.make_strategy(s.devices)
    s = s.with_dtype(strategy)
    pieces = s.training.gradient_accumulation_steps
    unit = strategy.num_replicas_in_sync * pieces
    sizes = portions(weights, s.training.train_batch_size, unit)
    shown = ", ".join(f"{n} of {k}" for k, n in zip(jobs, sizes, strict=True))
    print(f"A batch has {shown}")

    def begin():
        nonlocal jobs
        jobs = make_directories(s, jobs)

    with checkpoints.claimed(strategy, s.run.output_dir, begin):
        return train(s, jobs, weights, sizes, strategy) or {}
