"""The run that trains a fine-tuned model: its hooks, facts and folders.

A run may have one or several tasks.
"""

import dataclasses
from collections.abc import Callable

from albert_tf.base.errors import require
from albert_tf.base.settings import RunFact, facts
from albert_tf.finetuning.evaluation import TaskEvaluator, save_threshold
from albert_tf.finetuning.finetuning_setup import Job, Settings
from albert_tf.finetuning.finetuning_trainer import FinetuningTrainer
from albert_tf.finetuning.recipe import (
    RecipeConfig,
    evaluations_without_gain,
    reductions,
)
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import Task
from albert_tf.training import checkpoint_files, checkpoints, distribution
from albert_tf.training.history import History
from albert_tf.training.hooks import KeepBest, standard
from albert_tf.training.run import Hook, Run
from albert_tf.training.run import train as train_run
from albert_tf.training.training_config import ROUNDING


class EarlyStopping(Hook):
    """A hook that halves the learning rate on plateaus and stops runs early.

    Both decisions depend only on the history, and ignore an additional
    evaluation at `stop_step`, so a resumed run equals an uninterrupted run.
    This hook must follow `Evaluate`.

    Args:
      every: see `Evaluate`.
      recipe: the recipe, which sets the patience.
      metric: the metric that should increase.
    """

    def __init__(self, every: int, recipe: RecipeConfig, metric: str):
        self.every, self.recipe, self.metric = every, recipe, metric

    def values(self, history: History) -> list[float]:
        """Return the metric of all regular evaluations."""
        rows = zip(*history.column("eval", self.metric), strict=True)
        return [value for step, value in rows if step % self.every == 0]

    def ended(self, history: History) -> bool:
        """Return whether the run has ended early."""
        stale = evaluations_without_gain(self.values(history))
        return 0 < self.recipe.early_stopping <= stale

    def begin(self, run):
        recipe, values = self.recipe, self.values(run.history)
        if recipe.plateau_patience:
            number = reductions(values, recipe.plateau_patience)
            run.trainer.rate.factor.assign(0.5**number)
        run.ended_early = self.ended(run.history)
        if run.ended_early:
            run.progress.message(
                f"Ended at step {run.step} of {run.end}: `{self.metric}` has "
                f"not increased in {recipe.early_stopping} evaluations"
            )

    def after(self, run, window):
        self.begin(run)


class KeepThreshold(KeepBest):
    """A `KeepBest` that also saves the threshold of the best evaluation.

    Args:
      every, metric: see `KeepBest`.
      evaluator: the evaluator that found the threshold.
    """

    def __init__(self, every: int, metric: str, evaluator: TaskEvaluator):
        super().__init__(every, metric)
        self.evaluator = evaluator

    def keep(self, run):
        super().keep(run)
        save_threshold(run.output_dir, self.evaluator)


# {part of a job: what happens if a run resumes with different examples}
PART_CHANGES = {
    "train": "training continues with other examples",
    "eval": "`best` compares evaluations of different examples",
}
FIRST_WEIGHTS, TEACHER_WEIGHTS = "first weights", "teacher weights"
RECIPE = "another recipe"


def run_facts(s: Settings, *jobs: Job) -> dict[str, RunFact]:
    """Return {name: fact} to compare when a run resumes; see `Run`."""
    table = facts(*s.configs()) | facts(s.recipe, change=RECIPE)
    first = s.run.first_checkpoint
    value = checkpoints.fingerprint(first) if first else s.run.init
    table[FIRST_WEIGHTS] = RunFact(value, "no effect")
    by_length = s.run.length_bucketing == "all"
    table["length_bucketing=all"] = RunFact(by_length, "other batches")
    for job in jobs:
        table[TEACHER_WEIGHTS] = RunFact(job.teacher, RECIPE)
        for part, change in PART_CHANGES.items():
            for split in getattr(job, part):
                checksum = split.features.checksum()
                value = f"{len(split.examples)} examples, {checksum:08x}"
                name = f"{split.name} data of {job.task.name}"
                table[name] = RunFact(value, change)
    return table


def check_complete(s: Settings, metric: str, *jobs: Job) -> bool:
    """Return whether a run is complete; check that it used these settings.

    The results, flags and model card must not name settings, examples or first
    weights that the run did not use. Different first weights are therefore an
    error. If the run is complete, it is also an error if the training examples
    differ, or if settings change the weights by more than rounding.

    Args:
      s: the settings.
      metric: the metric that determines the best weights.
      *jobs: the tasks, with their examples.
    """
    folder = s.run.output_dir
    last = checkpoint_files.latest(folder, checkpoint_files.read_facts)
    if not last:
        return False
    step = checkpoint_files.number(last)
    earlier, used = checkpoint_files.read_facts(last), run_facts(s, *jobs)
    first = used[FIRST_WEIGHTS].value
    require(
        earlier.get(FIRST_WEIGHTS, first) == first,
        "`output_dir` contains a run that began with other weights; choose "
        "another folder.",
        output_dir=f"{folder} from {earlier.get(FIRST_WEIGHTS)}",
        model_dir=f"{s.run.model_dir} with {first}",
    )
    stopping = EarlyStopping(s.training.eval_steps, s.recipe, metric)
    if step < s.training.num_train_steps and not stopping.ended(
        History(folder, step)
    ):
        return False
    used |= facts(s.optimizer, change="another update rule")
    del used["dtype"]  # may depend on the device
    if TEACHER_WEIGHTS in earlier:
        del used["teacher"]  # its folder, which may have moved
    harmless = ROUNDING, PART_CHANGES["eval"]
    used = {k: v for k, v in used.items() if not v.change.startswith(harmless)}
    changes = checkpoint_files.changes(last, used)
    require(
        not changes,
        "`output_dir` contains a completed run on other training examples "
        "or with other settings; choose another folder, or more steps.",
        output_dir=f"{folder}, where {'; '.join(changes)}",
    )
    return True


def earlier_task(output_dir: str, folder: str, job: Job) -> Task:
    """Return the task of the model in a folder, or else the job's task.

    Args:
      output_dir: the folder of the run.
      folder: the job's folder, which has no weights before the run is complete
        if the run has several tasks.
      job: the job.

    Raises:
      InputError: if the folder contains a model other than the job's.
    """
    has_weights = any(map(checkpoints.has_weights, (output_dir, folder)))
    require(
        is_finetuned(folder) or not has_weights,
        "Any model in `output_dir` must be fine-tuned; choose another folder.",
        output_dir=folder,
    )
    checkpoints.check_claim(folder, job.config)
    earlier = load_task(folder) if has_weights else job.task
    require(
        job.task.identity() == earlier.identity(),
        "`output_dir` contains a model with a different task, labels, "
        "columns or lengths; choose another folder.",
        output_dir=folder,
    )
    return earlier


def claim_folders(
    s: Settings, metric: str, jobs: dict[str, Job]
) -> tuple[Job, ...]:
    """Check folders, then write all files except checkpoints; return the jobs.

    If neither an evaluation nor a flag sets the threshold, a job uses the
    threshold saved with the weights in its folder.

    Args:
      s: the settings.
      metric: see `check_complete`.
      jobs: {folder: job}; each folder is `output_dir` or one of its subfolders.
    """
    output_dir = s.run.output_dir
    earlier = [earlier_task(output_dir, *pair) for pair in jobs.items()]
    is_complete = check_complete(s, metric, *jobs.values())
    first = next(iter(jobs.values()))
    for folder, job in ({output_dir: first} | jobs).items():
        checkpoints.create_model_dir(folder, job.config)
        job.tokenizer.save(folder)
    claimed = []
    for (folder, job), saved in zip(jobs.items(), earlier, strict=True):
        task = job.task
        if task.config.null_score_diff_threshold is None:
            value = saved.config.null_score_diff_threshold
            task = task.replaced(null_score_diff_threshold=value)
        task.save(folder)
        claimed.append(
            job if s.run.do_eval else dataclasses.replace(job, task=task)
        )
    if not is_complete:
        s.write_flags()
    return tuple(claimed)


def run_training(
    s: Settings,
    trainer: FinetuningTrainer,
    batches: Callable,
    evaluate: Callable[[], dict[str, float]],
    keep: KeepBest,
    *jobs: Job,
) -> str:
    """Train; return the checkpoint with the final weights.

    The model then has these weights. If the run is incomplete and can be
    resumed, the result is "".

    Args:
      s: the settings.
      trainer: the trainer.
      batches: see `Trainer.iterator`.
      evaluate: see `Evaluate`; not called without `do_eval`.
      keep: the hook that saves the best weights.
      *jobs: the tasks, with their examples.
    """
    interval = s.training.eval_steps
    run = Run(trainer, s.run.output_dir, run_facts(s, *jobs))
    hooks = standard(s.training, None, *s.hooks)
    if s.run.do_eval:
        early_stopping = EarlyStopping(interval, s.recipe, keep.metric)
        hooks = standard(s.training, evaluate, keep, early_stopping, *s.hooks)
    train_run(run, batches, hooks)
    is_complete = run.ended_early or trainer.step >= s.training.num_train_steps
    rows = run.history.rows
    evaluated = {row["step"] for row in rows if row["split"] == "eval"}
    # Workers read the weights only after the chief has written them.
    with distribution.raise_everywhere(trainer.strategy):
        if is_complete and run.chief and run.step not in evaluated:
            best = checkpoints.for_inference(run.output_dir)
            if s.optimizer.ema_decay or best != run.last_good:
                keep.keep(run)
    with distribution.raise_everywhere(trainer.strategy):
        if not is_complete:
            return ""
        return checkpoints.restore_weights(trainer.model, s.run.output_dir)
