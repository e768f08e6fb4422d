"""A fine-tuning run: a model directory and a task in, a model directory out.

The weights that count are those with the best main metric, in `best/` of the
output directory; without `do_eval` while training, the last ones, or their
average.
"""

import dataclasses
import math
from collections.abc import Callable

import keras
import tensorflow as tf

from albert_tf.base import files, settings
from albert_tf.base.errors import InputError
from albert_tf.finetuning.class_weights import with_class_weights
from albert_tf.finetuning.directory import (
    claim,
    keep_tuned,
    mean_threshold,
    weights_of,
)
from albert_tf.finetuning.distillation import check_targets, load_teacher, teach
from albert_tf.finetuning.ensemble import (
    averaged_outputs,
    check_members,
    load_ensemble,
)
from albert_tf.finetuning.feature_cache import ConversionConfig
from albert_tf.finetuning.job import FinetuningConfig, Job, prepare
from albert_tf.finetuning.recipe_trainer import (
    FinetuningTrainer,
    FollowEvaluations,
)
from albert_tf.finetuning.recipes import (
    RecipeConfig,
    check_freeze,
)
from albert_tf.finetuning.seeds import seed_dir, write_summary
from albert_tf.finetuning.soft_targets import objective_of
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.batches import training_batches
from albert_tf.tasks.scoring import Judge, report, write_metrics
from albert_tf.tasks.task import DataConfig, TaskConfig
from albert_tf.training import checkpoints
from albert_tf.training.distribution import (
    DistributionConfig,
    agreed,
    is_chief,
    is_tpu,
    make_strategy,
    prepare_devices,
)
from albert_tf.training.evaluator import Evaluator, Objective
from albert_tf.training.hooks import KeepBest, standard
from albert_tf.training.optimizers import OptimizerConfig
from albert_tf.training.run import Run, claimed
from albert_tf.training.run import train as train_run
from albert_tf.training.trainer import TrainingConfig

ENCODER = ("albert/",)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that is said about a fine-tuning run."""

    run: FinetuningConfig
    data: DataConfig
    task: TaskConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    devices: DistributionConfig
    recipe: RecipeConfig = RecipeConfig()
    conversion: ConversionConfig = ConversionConfig()

    def check(self) -> None:
        """Refuse what does not go together, before anything is read."""
        evaluates = self.run.do_train and self.run.do_eval
        schedule, init = self.optimizer.schedule, self.run.init
        self.recipe.check_run(evaluates, schedule, init)
        if self.recipe.task_weights and "," not in (self.data.task or ""):
            raise InputError(
                "`task_weights` needs several tasks, `task=A,B`. Received: "
                f"task={self.data.task}"
            )

    def with_seed(self, seed: int) -> "Settings":
        """Return the settings of one of several runs, in its own folder."""
        folder = seed_dir(self.run.output_dir, seed)
        return dataclasses.replace(
            self,
            run=dataclasses.replace(self.run, output_dir=folder, num_seeds=1),
            training=dataclasses.replace(self.training, random_seed=seed),
        )

    def flagfile(self) -> str:
        """Return the flags that replay the run."""
        configs = (getattr(self, f.name) for f in dataclasses.fields(self))
        return settings.flagfile(*configs)

    def write_flags(self) -> None:
        """Write `run.flags` into the output directory."""
        path = files.join(self.run.output_dir, settings.FLAG_FILE)
        files.write_text(path, self.flagfile())


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


def bucketed(run: FinetuningConfig, strategy, part: str) -> bool:
    """Return whether batches of "train" or "eval" go together by length."""
    parts = {"none": (), "evaluation": ("eval",), "all": ("train", "eval")}
    return part in parts[run.length_bucketing] and not is_tpu(strategy)


def make_trainer(
    s: Settings,
    config: AlbertConfig,
    strategy: tf.distribute.Strategy,
    build_model: Callable,
    objective: Objective,
) -> FinetuningTrainer:
    """Return a trainer with its first weights."""
    keras.utils.set_random_seed(s.training.random_seed)
    trainer = FinetuningTrainer(
        strategy,
        build_model,
        objective,
        s.optimizer,
        s.training,
        s.recipe,
        config,
    )
    if s.run.init == "model_dir":
        checkpoints.restore_weights(trainer.model, s.run.model_dir, ENCODER)
    return trainer


class KeepTuned(KeepBest):
    """Keep the threshold of the best evaluation beside its weights.

    Args:
      every, metric: see `KeepBest`.
      judge: has the threshold.
    """

    def __init__(self, every: int, metric: str, judge: Judge):
        super().__init__(every, metric)
        self.judge = judge

    def keep(self, run):
        super().keep(run)
        keep_tuned(run.output_dir, self.judge)


def run_training(
    s: Settings,
    trainer: FinetuningTrainer,
    batches,
    evaluate: Callable[[], dict[str, float]],
    keep: KeepBest,
) -> bool:
    """Train; return whether the run is over rather than told to stop.

    Args:
      s: the settings.
      trainer: the model.
      batches: see `Trainer.iterator`.
      evaluate: see `Evaluate`; not called without `do_eval`.
      keep: keeps the best weights.
    """
    run, every = Run(trainer, s.run.output_dir), s.training.eval_steps
    hooks = standard(s.training, None)
    if s.run.do_eval:
        follow = FollowEvaluations(every, s.recipe, keep.metric)
        hooks = standard(s.training, evaluate, keep, follow)
    train_run(run, batches, hooks)
    over = run.ended_early or trainer.step >= s.training.num_train_steps
    # No worker reads what the chief has not written yet.
    with agreed(trainer.strategy):
        if over and trainer.averages and not s.run.do_eval and run.chief:
            keep.keep(run)
    return over


def train(
    s: Settings, job: Job, strategy: tf.distribute.Strategy
) -> Evaluator | None:
    """Train; return the model with the weights that count, if it is over."""
    trainer = make_trainer(
        s,
        job.config,
        strategy,
        lambda: job.task.build_model(job.config, s.training.dtype_policy),
        objective_of(job.task, s.recipe),
    )
    by_length = bucketed(s.run, strategy, "train")

    def batches(start, num_shards, shard, batch_size):
        return training_batches(
            job.train[0].features,
            batch_size=batch_size,
            seed=s.training.random_seed,
            start=start,
            num_shards=num_shards,
            shard=shard,
            group=s.training.train_batch_size if by_length else 0,
        )

    sorts = bucketed(s.run, strategy, "eval")
    judge = Judge(trainer.evaluator, job.task, sorts)
    keep = KeepTuned(s.training.eval_steps, job.best_metric, judge)
    over = run_training(
        s, trainer, batches, lambda: judge.metrics(job.eval), keep
    )
    if not over:
        return None
    with agreed(strategy):
        checkpoints.restore_weights(trainer.model, s.run.output_dir)
    return trainer.evaluator


def load(s: Settings, job: Job, strategy: tf.distribute.Strategy) -> Evaluator:
    """Return a fine-tuned model to evaluate and to predict with."""
    dtype, size = s.training.dtype_policy, s.training.eval_batch_size
    if s.run.ensemble:
        return load_ensemble(s.run.ensemble, job, strategy, size, dtype)
    evaluator = Evaluator(
        strategy,
        lambda: job.task.build_model(job.config, dtype),
        job.task,
        size,
    )
    checkpoints.restore_weights(evaluator.model, s.run.source_dir)
    return evaluator


def run_job(
    s: Settings, job: Job, strategy: tf.distribute.Strategy
) -> dict[str, dict[str, float]] | None:
    """Train, evaluate and predict; None if training was told to stop."""
    if s.run.do_train:
        examples = len(job.train[0].features)
        optimizer, training = planned(s.run, s.optimizer, s.training, examples)
        s = dataclasses.replace(s, optimizer=optimizer, training=training)

        def begin():
            nonlocal job
            job = claim(s.run, job)
            s.write_flags()

        with claimed(strategy, s.run.output_dir, begin):
            evaluator = train(s, job, strategy)
        if evaluator is None:
            return None  # a later run goes on
    else:
        evaluator = load(s, job, strategy)
    outputs = averaged_outputs(job.task) if s.run.ensemble else None
    by_length = bucketed(s.run, strategy, "eval")
    judge = Judge(evaluator, job.task, by_length, outputs)
    chief = is_chief(strategy)
    splits = (*job.eval, *job.predict)
    metrics = report(judge, splits, s.run.output_dir, chief)
    if chief:
        values = {"task": job.task.name, **metrics}
        write_metrics(s.run.output_dir, values, weights_of(s.run))
        if s.run.in_place:
            keep_tuned(s.run.output_dir, judge)
    return metrics


def run_seeds(
    s: Settings, job: Job, strategy: tf.distribute.Strategy
) -> dict[str, dict[str, float]]:
    """Run with each seed in its own folder; return median and spread."""
    runs = {}
    first = s.training.random_seed
    for seed in range(first, first + s.run.num_seeds):
        print(f"Seed {seed}: {seed_dir(s.run.output_dir, seed)}", flush=True)
        metrics = run_job(s.with_seed(seed), job, strategy)
        if metrics is None:
            return {}
        runs[seed] = metrics
        keras.backend.clear_session()
    if not runs[first] or not is_chief(strategy):
        return {}
    names = (job.eval or job.predict)[0].name, job.task.main_metric
    return write_summary(s.run.output_dir, job.task.name, names, runs)


def finetune(*configs) -> dict[str, dict[str, float]]:
    """Train, evaluate and predict as asked; return the metrics by split.

    Args:
      *configs: the fields of `Settings`.
    """
    s = Settings(*configs)
    s.check()
    prepared = prepare_devices(s.devices)
    with agreed(prepared):
        job = prepare(s.run, s.data, s.task, s.conversion)
    check_targets(s.recipe, job.task)
    check_freeze(s.recipe.freeze, job.config)
    if s.run.ensemble:
        check_members(s.run.ensemble, job)
        if s.task.null_score_diff_threshold is None:
            value = None if s.run.do_eval else mean_threshold(s.run.ensemble)
            task = job.task.with_null_threshold(value)
            job = dataclasses.replace(job, task=task)
    if s.recipe.teacher and s.run.do_train:
        load_teacher(s.recipe.teacher, job)
    print(job.summary())
    job = with_class_weights(job, s.recipe.class_weights)
    strategy = prepared or make_strategy(s.devices)
    if s.recipe.teacher and s.run.do_train:
        by_length = bucketed(s.run, strategy, "eval")
        size = s.training.eval_batch_size
        job = teach(job, s.recipe, s.conversion, strategy, size, by_length)
    run = run_seeds if s.run.num_seeds > 1 else run_job
    return run(s, job, strategy) or {}
