"""Several tasks at once: one shared encoder, a head for each.

A batch has examples of every task, as many as its weight says. At the end
each task has a model directory of its own, `output_dir/TASK`.
"""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.finetuning.class_weights import with_class_weights
from albert_tf.finetuning.directory import claim, keep_tuned
from albert_tf.finetuning.distillation import check_targets
from albert_tf.finetuning.finetune import (
    Settings,
    bucketed,
    make_trainer,
    planned,
    run_training,
)
from albert_tf.finetuning.job import Job, prepare
from albert_tf.finetuning.recipe_trainer import FinetuningTrainer
from albert_tf.finetuning.recipes import check_freeze
from albert_tf.finetuning.task_mixture import SharedModel, Together, portions
from albert_tf.tasks.batches import training_batches
from albert_tf.tasks.scoring import Judge, report, write_metrics
from albert_tf.training import checkpoints
from albert_tf.training.distribution import (
    agreed,
    is_chief,
    make_strategy,
    prepare_devices,
)
from albert_tf.training.hooks import KeepBest
from albert_tf.training.run import claimed

BEST_METRIC = "mean"  # of the tasks' main metrics


def mixed_batches(
    jobs: dict[str, Job], sizes: Sequence[int], s: Settings, by_length: bool
) -> Callable:
    """Return what makes the training batches, see `Run`."""
    whole = s.training.train_batch_size

    def batches(start, num_shards, shard, batch_size):
        def own(i, job, size):
            return training_batches(
                job.train[0].features,
                batch_size=size * batch_size // whole,
                seed=s.training.random_seed + i,
                start=start // whole * size,
                num_shards=num_shards,
                shard=shard,
                group=size if by_length else 0,
            )

        parts = {
            name: own(i, job, size)
            for i, ((name, job), size) in enumerate(
                zip(jobs.items(), sizes, strict=True)
            )
        }
        return tf.data.Dataset.zip(parts).map(
            lambda batch: {
                f"{task}/{name}": value
                for task, part in batch.items()
                for name, value in part.items()
            }
        )

    return batches


def task_names(s: Settings) -> list[str]:
    """Return the tasks' names, or refuse what several tasks cannot have."""
    names = [name.strip() for name in s.data.task.split(",")]
    refused = {
        "do_train": not s.run.do_train,
        "num_seeds": s.run.num_seeds > 1,
        "teacher": bool(s.recipe.teacher),
        "train_file": bool(s.data.train_file),
        "eval_file": bool(s.data.eval_file),
        "predict_file": bool(s.data.predict_file),
        "main_metric": bool(s.data.main_metric),
    }
    wrong = [name for name, is_wrong in refused.items() if is_wrong]
    if wrong or len(set(names)) < len(names):
        raise InputError(
            "Several tasks, `task=A,B`, must differ, are trained together "
            "with `do_train`, one seed, their official files and metrics, "
            "and without a teacher. Received: "
            f"task={s.data.task}, {', '.join(wrong) or 'a task twice'}"
        )
    return names


def task_weights(s: Settings, jobs: dict[str, Job]) -> list[float]:
    """Return the weight of each task, together 1."""
    given = s.recipe.task_weights or [
        len(job.train[0].features) for job in jobs.values()
    ]
    try:
        weights = [float(weight) for weight in given]
    except ValueError:
        weights = []
    if len(weights) != len(jobs) or not all(w > 0 for w in weights):
        raise InputError(
            "`task_weights` must be a number above 0 for each task. "
            f"Received: task_weights={','.join(map(str, given))}, "
            f"task={s.data.task}"
        )
    return [weight / sum(weights) for weight in weights]


def prepare_jobs(s: Settings, names: Sequence[str]) -> dict[str, Job]:
    """Return the tasks with their data, checked."""
    jobs = {}
    for name in names:
        data = dataclasses.replace(s.data, task=name)
        job = prepare(s.run, data, s.task, s.conversion)
        check_targets(s.recipe, job.task)
        print(job.summary())
        job = with_class_weights(job, s.recipe.class_weights)
        jobs[job.task.name] = job
    return jobs


def make_judges(
    s: Settings, jobs: dict[str, Job], trainer: FinetuningTrainer, strategy
) -> dict[str, Judge]:
    """Return a judge for each task, all with the shared model."""
    by_length = bucketed(s.run, strategy, "eval")

    def judge(name, task):
        def outputs(model, batch):
            return task.measured_outputs(model.models[name], batch)

        return Judge(trainer.evaluator, task, by_length, outputs)

    return {name: judge(name, job.task) for name, job in jobs.items()}


def all_metrics(
    jobs: dict[str, Job], judges: dict[str, Judge]
) -> dict[str, float]:
    """Return `TASK_metric` of all tasks, and the mean of the main ones."""
    values, main = {}, []
    for name, job in jobs.items():
        own = judges[name].metrics(job.eval)
        main.append(own[job.best_metric])
        values |= {f"{name}_{metric}": x for metric, x in own.items()}
    return {BEST_METRIC: sum(main) / len(main), **values}


def finish(
    s: Settings,
    jobs: dict[str, Job],
    judges: dict[str, Judge],
    trainer: FinetuningTrainer,
    chief: bool,
) -> dict[str, dict[str, float]]:
    """Write every task's model directory; return the metrics by split."""
    metrics = {}
    for name, job in jobs.items():
        folder = files.join(s.run.output_dir, name)
        table = trainer.model.encoder() | trainer.model.head(name)
        if chief:
            checkpoints.save(folder, table, trainer.step)
        own = report(judges[name], (*job.eval, *job.predict), folder, chief)
        if own and chief:
            values = {"task": name, **own}
            write_metrics(folder, values, checkpoints.fingerprint(folder))
            keep_tuned(folder, judges[name])
        metrics |= {f"{name}_{split}": values for split, values in own.items()}
    if metrics and chief:
        write_metrics(s.run.output_dir, {"task": ",".join(jobs), **metrics})
    return metrics


def make_directories(s: Settings, jobs: dict[str, Job]) -> dict[str, Job]:
    """Make the run's folder and each task's own; return what `claim` does."""
    first = next(iter(jobs.values()))
    checkpoints.claim(s.run.output_dir, first.config)
    first.tokenizer.save(s.run.output_dir)
    s.write_flags()
    return {
        name: claim(
            dataclasses.replace(
                s.run, output_dir=files.join(s.run.output_dir, name)
            ),
            job,
        )
        for name, job in jobs.items()
    }


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
    judges = make_judges(s, jobs, trainer, strategy)
    by_length = bucketed(s.run, strategy, "train")
    batches = mixed_batches(jobs, sizes, s, by_length)
    keep = KeepBest(s.training.eval_steps, BEST_METRIC)
    over = run_training(
        s, trainer, batches, lambda: all_metrics(jobs, judges), keep
    )
    if not over:
        return None
    with agreed(strategy):
        checkpoints.restore_weights(trainer.model, s.run.output_dir)
    return finish(s, jobs, judges, trainer, is_chief(strategy))


def finetune_together(*configs) -> dict[str, dict[str, float]]:
    """Train several tasks at once; return the metrics by task and split.

    Args:
      *configs: the fields of `Settings`; `data.task` names several tasks.
    """
    s = Settings(*configs)
    s.check()
    names = task_names(s)
    prepared = prepare_devices(s.devices)
    with agreed(prepared):
        jobs = prepare_jobs(s, names)
    check_freeze(s.recipe.freeze, next(iter(jobs.values())).config)
    examples = sum(len(job.train[0].features) for job in jobs.values())
    optimizer, training = planned(s.run, s.optimizer, s.training, examples)
    s = dataclasses.replace(s, optimizer=optimizer, training=training)
    weights = task_weights(s, jobs)
    strategy = prepared or make_strategy(s.devices)
    unit = strategy.num_replicas_in_sync * training.gradient_accumulation_steps
    sizes = portions(weights, training.train_batch_size, unit)
    shown = ", ".join(f"{n} of {k}" for k, n in zip(jobs, sizes, strict=True))
    print(f"A batch has {shown}")

    def begin():
        nonlocal jobs
        jobs = make_directories(s, jobs)

    with claimed(strategy, s.run.output_dir, begin):
        return train(s, jobs, weights, sizes, strategy) or {}
