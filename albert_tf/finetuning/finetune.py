"""A fine-tuning run: a model directory and a task in, a model directory out.

The weights that count are those with the best main metric, in `best/` of the
output directory; without `do_eval` while training, the last ones, or their
average.
"""

import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.finetuning import directory, distillation, ensemble
from albert_tf.finetuning.class_weights import with_class_weights
from albert_tf.finetuning.example_batches import bucketed, make_batches
from albert_tf.finetuning.finetuning_settings import Settings
from albert_tf.finetuning.job import Job, prepare
from albert_tf.finetuning.recipe_trainer import (
    FinetuningTrainer,
    FollowEvaluations,
)
from albert_tf.finetuning.recipes import check_freeze
from albert_tf.finetuning.soft_targets import objective_of
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.registry import is_finetuned
from albert_tf.tasks.scoring import Judge
from albert_tf.tasks.task_config import DataConfig
from albert_tf.training.machines import distribution
from albert_tf.training.machines.workers import vanishing_explained
from albert_tf.training.model_directory import checkpoints
from albert_tf.training.runs.announcement import warn_of_warmup
from albert_tf.training.runs.hooks import KeepBest, StopInTime, standard
from albert_tf.training.runs.run import Run
from albert_tf.training.runs.run import train as train_run
from albert_tf.training.step.evaluator import Evaluator, Objective

ENCODER = ("albert/",)

# Whose files may lie elsewhere on each machine.
PATHS = (
    *("model_dir", "output_dir", "ensemble", "teacher"),
    *("data_dir", "train_file", "eval_file", "predict_file"),
)


def require_alike(
    strategy: tf.distribute.Strategy | None, s: Settings, *jobs: Job
) -> None:
    """Refuse workers of which one has other settings or other examples."""
    if strategy is None:
        return
    configs = (c for c in s.configs() if c is not s.devices)
    values = {k: v for config in configs for k, v in vars(config).items()}
    contents = {
        f"{x.name} examples of {job.task.name}": x.features.fingerprint()
        for job in jobs
        for x in (*job.train, *job.eval, *job.predict)
    }
    alike = {k: v for k, v in values.items() if k not in PATHS}
    distribution.require_alike(strategy, alike | contents)


def prepare_job(s: Settings, data: DataConfig) -> Job:
    """Return a task with its data, all of it checked before it is learnt."""
    job = prepare(s.run, data, s.task)
    distillation.check_targets(s.recipe, job.task)
    check_freeze(s.recipe.freeze, job.config)
    print(job.summary())
    return with_class_weights(job, s.recipe.class_weights)


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
        recipe=s.recipe,
        config=config,
    )
    warn_of_warmup(trainer)
    if s.run.init == "model_dir":
        checkpoints.restore_weights(trainer.model, s.run.model_dir, ENCODER)
        distribution.share(strategy, list(trainer.weights.values()))
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
        directory.keep_tuned(run.output_dir, self.judge)


def run_training(
    s: Settings,
    trainer: FinetuningTrainer,
    batches: Callable,
    evaluate: Callable[[], dict[str, float]],
    keep: KeepBest,
) -> bool:
    """Train; return whether the run is over rather than told to stop.

    If it is, the model has the weights that count.

    Args:
      s: the settings.
      trainer: the model.
      batches: see `Trainer.iterator`.
      evaluate: see `Evaluate`; not called without `do_eval`.
      keep: keeps the best weights.
    """
    run, every = Run(trainer, s.run.output_dir), s.training.eval_steps
    hooks = standard(s.training, None, *s.hooks)
    if s.run.do_eval:
        follow = FollowEvaluations(every, s.recipe, keep.metric)
        hooks = standard(s.training, evaluate, keep, follow, *s.hooks)
    train_run(run, batches, hooks)
    over = run.ended_early or trainer.step >= s.training.num_train_steps
    rows = run.history.rows
    evaluated = {row["step"] for row in rows if row["split"] == "eval"}
    # No worker reads what the chief has not written yet.
    with distribution.agreed(trainer.strategy):
        if over and run.chief and run.step not in evaluated:
            best = checkpoints.for_inference(run.output_dir)
            if s.optimizer.ema_decay or best != run.last_good:
                keep.keep(run)
    with distribution.agreed(trainer.strategy):
        if over:
            checkpoints.restore_weights(trainer.model, s.run.output_dir)
    return over


def train(
    s: Settings, job: Job, strategy: tf.distribute.Strategy
) -> Evaluator | None:
    """Train; return the model with the weights that count, if it is over."""
    trainer = make_trainer(
        s,
        job.config,
        strategy,
        lambda: job.task.head.build_model(job.config, s.training.dtype_policy),
        objective_of(job.task, s.recipe),
    )
    batches = make_batches(job.train[0].features, s.run, s.training, strategy)
    by_length = bucketed(s.run, strategy, "eval")
    judge = Judge(trainer.evaluator, job.task, by_length)
    keep = KeepTuned(s.training.eval_steps, job.best_metric, judge)
    over = run_training(
        s, trainer, batches, lambda: judge.metrics(job.eval), keep
    )
    return trainer.evaluator if over else None


def load(s: Settings, job: Job, strategy: tf.distribute.Strategy) -> Evaluator:
    """Return a fine-tuned model to evaluate and to predict with."""
    how = strategy, s.training.eval_batch_size, s.training.dtype_policy
    if s.run.ensemble:
        return ensemble.load_ensemble(s.run.ensemble, job, *how)
    return ensemble.load_evaluator(s.run.source_dir, job.task, *how)


def run_job(
    s: Settings, job: Job, strategy: tf.distribute.Strategy
) -> dict[str, dict[str, float]] | None:
    """Train, evaluate and predict; None if training was told to stop."""
    if s.run.do_train:
        s = s.planned(len(job.train[0].features))

        def begin():
            nonlocal job
            job = directory.claim(s.run, job)
            s.write_flags()

        with checkpoints.claimed(strategy, s.run.output_dir, begin):
            evaluator = train(s, job, strategy)
        if evaluator is None:
            return None  # a later run goes on
    else:
        evaluator = load(s, job, strategy)
    outputs = ensemble.averaged_outputs(job.task) if s.run.ensemble else None
    by_length = bucketed(s.run, strategy, "eval")
    judge = Judge(evaluator, job.task, by_length, outputs)
    folder, chief = s.run.output_dir, distribution.is_chief(strategy)
    models = s.run.ensemble or [folder if s.run.in_place else s.run.source_dir]
    metrics = directory.write_report(folder, job, judge, chief, models)
    if chief and s.run.in_place:
        directory.keep_tuned(folder, judge)
    return metrics


def run_seeds(
    s: Settings, job: Job, strategy: tf.distribute.Strategy
) -> dict[str, dict[str, float]]:
    """Run with each seed in its own folder; return median and spread."""
    require(
        not is_finetuned(s.run.output_dir),
        "With `num_seeds`, `output_dir` must not be a model directory itself.",
        output_dir=s.run.output_dir,
    )
    runs, together = {}, StopInTime(s.training.max_hours)
    s = dataclasses.replace(s, hooks=(*s.hooks, together))
    first = s.training.random_seed
    for seed in range(first, first + s.run.num_seeds):
        if together.stopped:
            return {}
        one = s.with_seed(seed)
        print(f"Seed {seed}: {one.run.output_dir}", flush=True)
        runs[seed] = run_job(one, job, strategy)
        keras.backend.clear_session()
    if not all(runs.values()) or not distribution.is_chief(strategy):
        return {}
    names = (job.eval or job.predict)[0].name, job.task.main_metric
    return directory.write_summary(s.run.output_dir, job.task.name, names, runs)


@vanishing_explained()
def finetune(s: Settings) -> dict[str, dict[str, float]]:
    """Train, evaluate and predict as asked; return the metrics by split."""
    s.check()
    prepared = distribution.prepare_devices(s.devices)
    with distribution.agreed(prepared):
        job = prepare_job(s, s.data)
    require_alike(prepared, s, job)
    s.advise()
    if s.run.ensemble:
        ensemble.check_members(s.run.ensemble, job)
        if s.task.null_score_diff_threshold is None:
            mean = directory.mean_threshold(s.run.ensemble)
            # Evaluation finds one that fits the averages.
            task = job.task.replaced(
                null_score_diff_threshold=None if s.run.do_eval else mean
            )
            job = dataclasses.replace(job, task=task)
    taught = s.recipe.teacher and s.run.do_train
    if taught:
        distillation.load_teacher(s.recipe.teacher, job)  # or refuse it
    strategy = prepared or distribution.make_strategy(s.devices)
    s = s.with_dtype(strategy)
    if taught:
        size = s.training.eval_batch_size
        by_length = bucketed(s.run, strategy, "eval")
        job = distillation.teach(job, s.recipe, strategy, size, by_length)
    run = run_seeds if s.run.num_seeds > 1 else run_job
    return run(s, job, strategy) or {}
