"""Train several tasks that share an encoder, with mixed batches."""

import types
from collections.abc import Callable, Sequence

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.settings import FLAG_FILE
from albert_tf.finetuning.evaluation import (
    Metrics,
    TaskEvaluator,
    bucketed,
    save_threshold,
    stored_metrics,
    write_metrics,
    write_report,
)
from albert_tf.finetuning.finetuning_run import claim_folders, run_training
from albert_tf.finetuning.finetuning_setup import Job, Settings
from albert_tf.finetuning.finetuning_trainer import (
    FinetuningTrainer,
    make_batches,
    make_trainer,
    prepare_jobs,
)
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.finetuning.soft_targets import objective_of
from albert_tf.model.albert import AlbertModel
from albert_tf.model.config import AlbertConfig
from albert_tf.model.ops import fold_in
from albert_tf.tasks.registry import find, is_finetuned
from albert_tf.tasks.task import Task
from albert_tf.training import checkpoint_files, checkpoints, distribution
from albert_tf.training.hooks import KeepBest
from albert_tf.training.objectives import Batch
from albert_tf.training.workers import explaining_lost_workers


class SharedModel:
    """Models of several tasks with one shared encoder.

    The class has the attributes that a `Trainer` needs. A head's variables are
    named `TASK/...`; the encoder's variables have their usual names.
    """

    name = "shared"

    def __init__(self, config: AlbertConfig, tasks: dict[str, Task], dtype):
        self.albert = AlbertModel(config, dtype=dtype)
        self.albert.build()
        self.models = {
            name: task.build_model(config, dtype, self.albert)
            for name, task in tasks.items()
        }

    def head_variables(self, name: str) -> dict[str, tf.Variable]:
        """Return {name: variable} for a task's head."""
        table = checkpoints.named_variables(self.models[name])
        shared = {id(v) for v in self.encoder_variables().values()}
        return {k: v for k, v in table.items() if id(v) not in shared}

    def encoder_variables(self) -> dict[str, tf.Variable]:
        """Return {name: variable} for the encoder."""
        return checkpoints.named_variables(self.albert)

    @property
    def weights(self) -> list:
        """All weights, with the attributes `path` and `value` as in Keras."""
        table = self.encoder_variables()
        for task in self.models:
            head = self.head_variables(task).items()
            table |= {f"{task}/{name}": v for name, v in head}
        return [
            types.SimpleNamespace(path=f"{self.name}/{name}", value=v)
            for name, v in table.items()
        ]


def part_of(batch: Batch, task: str) -> Batch:
    """Return a task's part of a batch."""
    prefix = f"{task}/"
    return {
        name.removeprefix(prefix): value
        for name, value in batch.items()
        if name.startswith(prefix)
    }


class MultitaskObjective:
    """The weighted mean of the tasks' losses.

    Args:
      tasks: the tasks by name.
      weights: the tasks' weights, which add up to 1.
      recipe: the recipe, which determines whether to smooth labels.
    """

    def __init__(
        self,
        tasks: dict[str, Task],
        weights: Sequence[float],
        recipe: RecipeConfig,
    ):
        self.objectives = {
            name: objective_of(task, recipe) for name, task in tasks.items()
        }
        self.task_weights = dict(zip(tasks, weights, strict=True))
        named = self.objectives.items()
        self.terms = tuple(f"{n}_{x}" for n, o in named for x in o.terms)
        self.metrics = tuple(f"{n}_{x}" for n, o in named for x in o.metrics)

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return {term: the sum of its examples' loss weights in a batch}."""
        return {
            f"{name}_{term}": weight
            for name, objective in self.objectives.items()
            for term, weight in objective.weights(part_of(batch, name)).items()
        }

    def losses(self, model: SharedModel, batch: Batch, seed):
        """Return {term: weighted sum of losses}, and the tasks' metrics."""
        sums, metrics = {}, {}
        for i, (name, objective) in enumerate(self.objectives.items()):
            losses, shown = objective.losses(
                model.models[name], part_of(batch, name), fold_in(seed, i)
            )
            weight = self.task_weights[name]
            sums |= {f"{name}_{k}": x * weight for k, x in losses.items()}
            metrics |= {f"{name}_{k}": pair for k, pair in shown.items()}
        return sums, metrics


def portions(weights: Sequence[float], size: int, unit: int) -> list[int]:
    """Return the number of examples that each task contributes to a batch.

    Args:
      weights: the tasks' weights, which add up to 1.
      size: the number of examples in a batch.
      unit: a number that must divide all portions, so replicas and
        micro-batches receive equal parts.
    """
    units = size // unit
    require(
        units >= len(weights),
        "`train_batch_size` must have room for one example of every task "
        "per replica and micro-batch.",
        train_batch_size=size,
        tasks=len(weights),
    )
    counts = [1] * len(weights)
    while sum(counts) < units:
        deficits = [w * units - n for w, n in zip(weights, counts, strict=True)]
        counts[deficits.index(max(deficits))] += 1
    return [n * unit for n in counts]


BEST_METRIC = "mean"  # the mean over the tasks' main metrics


def mixed_batches(
    jobs: dict[str, Job],
    sizes: Sequence[int],
    s: Settings,
    strategy: tf.distribute.Strategy,
) -> Callable:
    """Return a function that creates mixed batches, for `Trainer.iterator`."""
    pairs = enumerate(zip(jobs.items(), sizes, strict=True))
    makers = {
        name: make_batches(job.training_split.features, s, strategy, size, i)
        for i, ((name, job), size) in pairs
    }

    def batches(**options):
        datasets = {name: make(**options) for name, make in makers.items()}
        return tf.data.Dataset.zip(datasets).map(
            lambda batch: {
                f"{task}/{name}": value
                for task, features in batch.items()
                for name, value in features.items()
            }
        )

    return batches


def task_names(s: Settings) -> list[str]:
    """Return the tasks' names; check that the settings suit several tasks."""
    names = [find(name.strip()).name for name in s.data.task.split(",")]
    official = ("train_file", "eval_file", "predict_file", "main_metric")
    unsupported = [name for name in official if getattr(s.data, name)]
    unsupported += ["do_train"] * (not s.run.do_train)
    unsupported += ["num_seeds"] * (s.run.num_seeds > 1)
    unsupported += ["teacher"] * bool(s.recipe.teacher)
    require(
        not unsupported and len(set(names)) == len(names),
        "Several tasks, `task=A,B`, must be different and need `do_train`; "
        "they do not support several seeds, your own files, `main_metric` or "
        "a teacher.",
        task=f"{s.data.task}, {', '.join(unsupported) or 'a task twice'}",
    )
    return names


def sizes_of(jobs: dict[str, Job]) -> list[int]:
    """Return each task's number of training examples."""
    return [len(job.training_split.features) for job in jobs.values()]


def task_weights(s: Settings, jobs: dict[str, Job]) -> list[float]:
    """Return the weights of the tasks, which add up to 1."""
    entries = s.recipe.task_weights or sizes_of(jobs)
    try:
        weights = [float(entry) for entry in entries]
    except ValueError:
        weights = []
    require(
        len(weights) == len(jobs) and all(w > 0 for w in weights),
        "`task_weights` must have one positive number per task.",
        task_weights=",".join(map(str, entries)),
        task=s.data.task,
    )
    return [weight / sum(weights) for weight in weights]


def task_evaluator(
    s: Settings, job: Job, trainer: FinetuningTrainer
) -> TaskEvaluator:
    """Return a `TaskEvaluator` of the shared model for one task."""
    task = job.task

    def outputs(model, batch):
        return task.objective.measured_outputs(model.models[task.name], batch)

    by_length = bucketed(s.run, trainer.strategy, "eval")
    return TaskEvaluator(trainer.evaluator, task, by_length, outputs)


def all_metrics(
    jobs: dict[str, Job], evaluators: dict[str, TaskEvaluator]
) -> dict[str, float]:
    """Return {TASK_metric: value}, and the mean of the tasks' main metrics."""
    metrics = {
        name: evaluators[name].metrics(job.eval) for name, job in jobs.items()
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
    evaluators: dict[str, TaskEvaluator],
    trainer: FinetuningTrainer,
    final: str,
) -> Metrics:
    """Write every task's model directory; return the metrics by split.

    Args:
      s: the settings.
      jobs: the jobs by task.
      evaluators: the evaluators by task.
      trainer: the trainer, whose model has the final weights.
      final: the checkpoint with the final weights.
    """
    metrics, chief = {}, distribution.is_chief(trainer.strategy)
    fingerprint, measured = "", {"task": ",".join(jobs)}
    flags = files.join(s.run.output_dir, FLAG_FILE)
    for name, job in jobs.items():
        folder = files.join(s.run.output_dir, name)
        if chief:
            model = trainer.model
            table = model.encoder_variables() | model.head_variables(name)
            step = checkpoint_files.number(final)
            saved = checkpoints.save(folder, table, step)
            fingerprint = checkpoints.fingerprint(saved)
            if files.exists(flags):  # for the card
                files.copy(flags, files.join(folder, FLAG_FILE))
        splits = write_report(folder, job, evaluators[name], chief, fingerprint)
        if chief:
            save_threshold(folder, evaluators[name])
            stored = stored_metrics(folder).items()
            measured |= {f"{name}_{split}": x for split, x in stored}
        metrics |= {f"{name}_{split}": x for split, x in splits.items()}
    if chief:
        write_metrics(s.run.output_dir, measured)
    return metrics


def claim_task_folders(s: Settings, jobs: dict[str, Job]) -> dict[str, Job]:
    """Create the folders of the run and its tasks; return the tasks' jobs."""
    output_dir = s.run.output_dir
    folders = {files.join(output_dir, name): job for name, job in jobs.items()}
    resumes = checkpoints.has_weights(output_dir)
    require(
        all(map(is_finetuned, folders)) or not resumes,
        "`output_dir` must not contain a model of different tasks; choose "
        "another folder.",
        output_dir=output_dir,
        task=",".join(jobs),
    )
    for folder in folders:
        require(
            resumes or not checkpoints.has_weights(folder),
            "A task's folder in `output_dir` must not contain another run's "
            "model; choose another folder.",
            output_dir=output_dir,
            model=folder,
        )
    return dict(zip(jobs, claim_folders(s, BEST_METRIC, folders), strict=True))


def train(
    s: Settings,
    jobs: dict[str, Job],
    weights: Sequence[float],
    sizes: Sequence[int],
    strategy: tf.distribute.Strategy,
) -> dict | None:
    """Train all tasks; return metrics, or None if training is incomplete."""
    config = next(iter(jobs.values())).config
    tasks = {name: job.task for name, job in jobs.items()}
    trainer = make_trainer(
        s,
        config,
        strategy,
        lambda: SharedModel(config, tasks, s.training.dtype_policy),
        MultitaskObjective(tasks, weights, s.recipe),
    )
    evaluators = {
        name: task_evaluator(s, job, trainer) for name, job in jobs.items()
    }
    batches = mixed_batches(jobs, sizes, s, strategy)
    keep = KeepBest(s.training.eval_steps, BEST_METRIC)
    final = run_training(
        s,
        trainer,
        batches,
        lambda: all_metrics(jobs, evaluators),
        keep,
        *jobs.values(),
    )
    return finish(s, jobs, evaluators, trainer, final) if final else None


@explaining_lost_workers()
def finetune_together(s: Settings) -> Metrics:
    """Train several tasks at once; return the metrics by task and split.

    Args:
      s: the settings; `data.task` names several tasks.
    """
    workers, prepared = prepare_jobs(s, task_names(s))
    jobs = {job.task.name: job for job in prepared}
    s = s.planned(sum(sizes_of(jobs)))
    weights = task_weights(s, jobs)
    strategy = workers or distribution.make_strategy(s.devices)
    s = s.with_dtype(strategy)
    micro_batches = s.training.gradient_accumulation_steps
    unit = strategy.num_replicas_in_sync * micro_batches
    sizes = portions(weights, s.training.train_batch_size, unit)
    shown = ", ".join(f"{n} of {k}" for k, n in zip(jobs, sizes, strict=True))
    print(f"A batch has {shown}")

    def begin():
        nonlocal jobs
        jobs = claim_task_folders(s, jobs)

    with checkpoints.locked_model_dir(strategy, s.run.output_dir, begin):
        return train(s, jobs, weights, sizes, strategy) or {}
