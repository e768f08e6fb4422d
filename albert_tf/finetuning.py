"""A fine-tuning run: a model directory and a task in, a model directory out.

The weights that count are those with the best main metric, in `best/` of the
output directory; without `do_eval` while training, the last ones.
"""

import dataclasses
import json
import math

import keras
import tensorflow as tf

from albert_tf import checkpoints, files, settings
from albert_tf.distribution import (
    DistributionConfig,
    is_chief,
    make_strategy,
    prepare_devices,
)
from albert_tf.errors import InputError
from albert_tf.evaluation import Evaluator
from albert_tf.finetuning_job import FinetuningConfig, Job, prepare
from albert_tf.loop import Run
from albert_tf.optimization import OptimizerConfig
from albert_tf.scoring import Judge, report, write_metrics
from albert_tf.tasks.base import DataConfig, TaskConfig
from albert_tf.tasks.features import training_batches
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.training import Trainer, TrainingConfig

ENCODER = ("albert/",)


def planned(
    run: FinetuningConfig,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
    examples: int,
) -> tuple[OptimizerConfig, TrainingConfig]:
    """Work out steps, warm-up and cadence where the flags leave them open."""
    epoch = math.ceil(examples / training.train_batch_size)
    steps = training.num_train_steps
    if steps is None:
        wanted = examples * run.num_train_epochs / training.train_batch_size
        steps = max(1, math.ceil(wanted))
    warmup = optimizer.num_warmup_steps
    if warmup is None:
        warmup = int(steps * run.warmup_proportion)
    return (
        dataclasses.replace(optimizer, num_warmup_steps=warmup),
        dataclasses.replace(
            training,
            num_train_steps=steps,
            eval_steps=training.eval_steps or epoch,
        ),
    )


def claim(run: FinetuningConfig, job: Job) -> None:
    """Make the output's model directory, or refuse another run's."""
    checkpoints.claim(run.output_dir, job.config)
    if is_finetuned(run.output_dir) and checkpoints.latest(run.output_dir):
        # As JSON, for tuples are lists there.
        new, old = (
            json.dumps(task.description(), sort_keys=True)
            for task in (job.task, load_task(run.output_dir))
        )
        if new != old:
            raise InputError(
                "`output_dir` holds a model of another task, or other labels, "
                "columns or lengths; choose another folder. "
                f"Received: output_dir={run.output_dir}"
            )
    job.tokenizer.save(run.output_dir)
    job.task.save(run.output_dir)


def train(
    run: FinetuningConfig,
    job: Job,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
    strategy: tf.distribute.Strategy,
) -> Trainer:
    """Train, and return the trainer, which has the best weights at the end."""
    keras.utils.set_random_seed(training.random_seed)
    trainer = Trainer(
        strategy,
        lambda: job.task.build_model(job.config, training.dtype_policy),
        job.task,
        optimizer,
        training,
    )
    if run.init == "model_dir":
        checkpoints.restore_weights(trainer.model, run.model_dir, ENCODER)

    def batches(start, num_shards, shard, batch_size):
        return training_batches(
            job.train[0].features,
            batch_size=batch_size,
            seed=training.random_seed,
            start=start,
            num_shards=num_shards,
            shard=shard,
        )

    judge = Judge(trainer, job.task)
    Run(
        trainer,
        run.output_dir,
        batches,
        (lambda: judge.metrics(job.eval)) if run.do_eval else None,
        job.best_metric if run.do_eval else None,
    ).train()
    if trainer.step == training.num_train_steps:
        checkpoints.restore_weights(trainer.model, run.output_dir)
    return trainer


def load(
    run: FinetuningConfig,
    job: Job,
    training: TrainingConfig,
    strategy: tf.distribute.Strategy,
) -> Evaluator:
    """Return a fine-tuned model to evaluate and to predict with."""
    evaluator = Evaluator(
        strategy,
        lambda: job.task.build_model(job.config, training.dtype_policy),
        job.task,
        training.eval_batch_size,
    )
    checkpoints.restore_weights(evaluator.model, run.source_dir)
    return evaluator


def finetune(
    run: FinetuningConfig,
    data: DataConfig,
    task_config: TaskConfig,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
    devices: DistributionConfig,
) -> dict[str, dict[str, float]]:
    """Train, evaluate and predict as asked; return the metrics by split."""
    prepare_devices(devices)
    job = prepare(run, data, task_config)
    print(job.summary())
    if run.do_train:
        examples = len(job.train[0].features)
        optimizer, training = planned(run, optimizer, training, examples)
        claim(run, job)
        replay = settings.flagfile(
            run, data, task_config, optimizer, training, devices
        )
        path = files.join(run.output_dir, settings.FLAG_FILE)
        files.write_text(path, replay)
    strategy = make_strategy(devices)
    if run.do_train:
        evaluator = train(run, job, optimizer, training, strategy)
        if evaluator.step < training.num_train_steps:
            return {}  # told to stop; a later run goes on
    else:
        evaluator = load(run, job, training, strategy)
    chief = is_chief(strategy)
    judge = Judge(evaluator, job.task)
    metrics = report(judge, (*job.eval, *job.predict), run.output_dir, chief)
    if metrics and chief:
        write_metrics(run.output_dir, {"task": job.task.name, **metrics})
    return metrics
