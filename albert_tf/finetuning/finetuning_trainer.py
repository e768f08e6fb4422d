"""The trainer, batches and hooks of fine-tuning, for one or several tasks.

The trainer follows a recipe: it can freeze weights and train adversarially.

Shapes: B rows of tokens, T tokens, E embedding width.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from albert_tf.base.errors import InputError, require
from albert_tf.base.settings import RunFact, facts
from albert_tf.finetuning import soft_targets
from albert_tf.finetuning.evaluation import (
    TaskEvaluator,
    bucketed,
    save_threshold,
)
from albert_tf.finetuning.finetuning_setup import (
    FinetuningConfig,
    Job,
    Settings,
)
from albert_tf.finetuning.recipe import (
    RecipeConfig,
    check_freeze,
    evaluations_without_gain,
    frozen,
    reductions,
)
from albert_tf.finetuning.soft_targets import with_class_weights
from albert_tf.model.config import AlbertConfig
from albert_tf.model.ops import is_tpu
from albert_tf.tasks.batches import length_step, training_batches
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.training import checkpoint_files, checkpoints, distribution
from albert_tf.training.evaluator import Batch, Objective
from albert_tf.training.history import History
from albert_tf.training.hooks import KeepBest, standard
from albert_tf.training.run import Hook, Run, warn_of_warmup
from albert_tf.training.run import train as train_run
from albert_tf.training.trainer import Trainer, add
from albert_tf.training.training_config import ROUNDING, TrainingConfig


def adversary(gradient: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Return the perturbation r = epsilon g / ||g|| of each row, [B, T, E].

    The method is the fast gradient method on word embeddings,
    https://arxiv.org/abs/1605.07725, equation 5. For rows without a gradient,
    such as padding, r is 0.
    """
    g = tf.cast(gradient, tf.float32)
    norm = tf.sqrt(tf.reduce_sum(tf.square(g), axis=[1, 2], keepdims=True))
    return tf.cast(epsilon * tf.math.divide_no_nan(g, norm), gradient.dtype)


@contextlib.contextmanager
def perturbed_words(embeddings, change: Callable) -> Iterator[None]:
    """Apply a function to word embeddings [B, T, E] in the `with` block."""
    embeddings.perturb = change
    try:
        yield
    finally:
        embeddings.perturb = None


class FinetuningTrainer(Trainer):
    """A `Trainer` that follows a recipe.

    Args:
      *trainer: the arguments of `Trainer`; the encoder is `model.albert`.
      recipe: the techniques to use.
      config: the architecture, which defines the groups of layers.
    """

    def __init__(
        self, *trainer: Any, recipe: RecipeConfig, config: AlbertConfig
    ):
        self.recipe = recipe
        super().__init__(
            *trainer,
            trainable=lambda name: not frozen(name, recipe.freeze, config),
        )

    def facts(self) -> dict[str, RunFact]:
        recipe_facts = facts(self.recipe, change="another recipe")
        return super().facts() | recipe_facts

    # Adversarial training.

    def _micro_gradients(self, batch: Batch, divisors: dict, seed):
        """Return the gradients of L(e) + L(e + r), and the report of L(e).

        Here, L is the loss, e are the word embeddings, and r is the adversarial
        perturbation, treated as constant. Both terms use the same dropout
        masks. Without adversarial training, the second term is omitted.
        """
        epsilon = self.recipe.fgm_epsilon
        if not epsilon:
            return super()._micro_gradients(batch, divisors, seed)
        embeddings, words = self.model.albert.embeddings, []
        with tf.GradientTape() as tape:
            with perturbed_words(embeddings, lambda x: words.append(x) or x):
                loss, report = self._loss(batch, divisors, seed)
        grads = self._differentiate(tape, loss, words)
        gradients, word_grads = grads[: -len(words)], grads[-len(words) :]
        perturbations = iter(
            [tf.stop_gradient(adversary(g, epsilon)) for g in word_grads]
        )
        # If the model calls the encoder several times, both passes call it in
        # the same order.
        with tf.GradientTape() as tape:
            with perturbed_words(embeddings, lambda x: x + next(perturbations)):
                adv_loss, _ = self._loss(batch, divisors, seed)
        return add(gradients, self._differentiate(tape, adv_loss)), report


class EarlyStopping(Hook):
    """A hook that halves the learning rate on plateaus and stops runs early.

    Both decisions depend only on the history, and ignore an additional
    evaluation at `stop_step`, so a resumed run equals an uninterrupted run.
    This hook must come after `Evaluate`.

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


ENCODER = ("albert/",)


def with_recipe(recipe: RecipeConfig, job: Job) -> Job:
    """Check that a recipe suits a job; return the job with class weights."""
    soft_targets.check_targets(recipe, job.task)
    check_freeze(recipe.freeze, job.config)
    if recipe.teacher:
        soft_targets.load_teacher(recipe.teacher, job)  # checks the teacher
    return with_class_weights(job, recipe.class_weights)


def training_step(
    run: FinetuningConfig, training: TrainingConfig, strategy, max_length: int
) -> int:
    """Return the `step` for rounding up batch lengths, as in `batcher`.

    A step of 0 means that every batch is padded to `max_length` tokens, the
    maximum length of a row.
    """
    by_length, compiled = bucketed(run, strategy, "train"), training.jit_compile
    padded = run.length_bucketing == "none" or (compiled and not by_length)
    if padded or is_tpu(strategy):
        return 0
    compiled_per_length = compiled or tf.config.list_physical_devices("GPU")
    return length_step(max_length) if compiled_per_length else 1


def make_batches(
    features: Features,
    run: FinetuningConfig,
    training: TrainingConfig,
    strategy: tf.distribute.Strategy,
    size: int | None = None,
    number: int = 0,
) -> Callable:
    """Return a function that creates training batches, for `Trainer.iterator`.

    Args:
      features: the training examples.
      run: the run's settings, which determine whether to bucket by length.
      training: the training settings, which include the batch size and seed.
      strategy: the strategy that trains.
      size: the number of a batch's examples that come from `features`; None
        means all examples.
      number: the task's index; each task is shuffled differently.
    """
    global_batch_size = training.train_batch_size
    size = size or global_batch_size
    group = size if bucketed(run, strategy, "train") else 0
    step = training_step(run, training, strategy, features.max_seq_length)

    def batches(start, num_shards, shard, batch_size):
        return training_batches(
            features,
            batch_size=size * batch_size // global_batch_size,
            seed=training.random_seed + number,
            start=start // global_batch_size * size,
            num_shards=num_shards,
            shard=shard,
            group=group,
            step=step,
        )

    return batches


def check_partners(s: Settings, job: Job, replicas: int) -> None:
    """Raise an error if the pairs of an embedding task have no negatives.

    The negatives are the other texts in a replica's micro-batch.
    """
    training, examples = s.training, job.training_split.examples
    contrasts = (
        job.task.distinct_texts(examples) and len(examples[0].texts) == 2
    )
    parts = replicas * training.gradient_accumulation_steps
    require(
        not contrasts or training.train_batch_size > parts,
        "`train_batch_size` must be at least 2 pairs per replica and "
        "micro-batch, because the other pairs serve as negatives.",
        train_batch_size=training.train_batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        replicas=replicas,
    )


def create_output_dir(run: FinetuningConfig, job: Job) -> Job:
    """Create the output directory; raise an error if it contains another model.

    Returns:
      The job. If neither an evaluation nor a flag sets the threshold, the job
      uses the threshold saved with the existing weights.
    """
    task, resumes = job.task, checkpoint_files.latest(run.output_dir)
    require(
        is_finetuned(run.output_dir) or not resumes,
        "Any model in `output_dir` must be fine-tuned; choose another folder.",
        output_dir=run.output_dir,
    )
    checkpoints.create_model_dir(run.output_dir, job.config)
    if resumes:
        earlier = load_task(run.output_dir)
        require(
            task.identity() == earlier.identity(),
            "`output_dir` contains a model with a different task, labels, "
            "columns or lengths; choose another folder.",
            output_dir=run.output_dir,
        )
        if task.config.null_score_diff_threshold is None:
            value = earlier.config.null_score_diff_threshold
            task = task.replaced(null_score_diff_threshold=value)
    job.tokenizer.save(run.output_dir)
    task.save(run.output_dir)
    return job if run.do_eval else dataclasses.replace(job, task=task)


def make_trainer(
    s: Settings,
    config: AlbertConfig,
    strategy: tf.distribute.Strategy,
    build_model: Callable,
    objective: Objective,
) -> FinetuningTrainer:
    """Return a trainer with its initial weights."""
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
        distribution.broadcast(strategy, list(trainer.weights.values()))
    return trainer


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


# {part of a job: what happens if a run resumes with other examples}
PART_CHANGES = {
    "train": "training continues with other examples",
    "eval": "`best` compares evaluations of different examples",
}


def example_facts(*jobs: Job) -> dict[str, RunFact]:
    """Return {name: fact} about the examples, to compare when a run resumes."""
    facts = {}
    for part, change in PART_CHANGES.items():
        for job in jobs:
            for split in getattr(job, part):
                checksum = split.features.data_checksum()
                value = f"{len(split.examples)} examples, {checksum:08x}"
                name = f"{split.name} data of {job.task.name}"
                facts[name] = RunFact(value, change)
    return facts


FIRST_WEIGHTS = "first weights"


def first_weights(run: FinetuningConfig) -> dict[str, RunFact]:
    """Return {name: fact} about the weights with which a run begins."""
    value = run.init
    if value == "model_dir":
        value = checkpoints.fingerprint(run.model_dir)
    return {FIRST_WEIGHTS: RunFact(value, "no effect")}


def check_complete(s: Settings, metric: str, *jobs: Job) -> bool:
    """Return whether a run is complete; check that it used these settings.

    The results, the flags and the model card must not name settings, examples
    or first weights that the run did not use. Other first weights are therefore
    an error, and after a complete run, so are other settings that affect the
    weights by more than rounding, and other training examples.

    Args:
      s: the settings.
      metric: the metric that determines the best weights.
      *jobs: the tasks, with their examples.
    """
    paths = checkpoint_files.listed(s.run.output_dir)
    intact = (
        path
        for path in paths
        if not checkpoint_files.fault(path, checkpoint_files.read_facts)
    )
    last = next(intact, None)
    if not last:
        return False
    step, folder = checkpoint_files.number(last), s.run.output_dir
    earlier = checkpoint_files.read_facts(last)
    initial = first_weights(s.run)[FIRST_WEIGHTS].value
    require(
        earlier.get(FIRST_WEIGHTS, initial) == initial,
        "`output_dir` contains a run that began with other weights; choose "
        "another folder.",
        output_dir=f"{folder} from {earlier.get(FIRST_WEIGHTS)}",
        model_dir=f"{s.run.model_dir} with {initial}",
    )
    stopping = EarlyStopping(s.training.eval_steps, s.recipe, metric)
    if step < s.training.num_train_steps and not stopping.ended(
        History(folder, step)
    ):
        return False
    used = facts(s.optimizer, s.recipe, change="another recipe")
    used |= facts(s.training) | example_facts(*jobs)
    del used["dtype"]  # may depend on the device
    harmless = ROUNDING, PART_CHANGES["eval"]
    used = {k: v for k, v in used.items() if not v.change.startswith(harmless)}
    for change in checkpoint_files.changes(last, used):
        raise InputError(
            "`output_dir` contains a complete run on other training examples "
            "or with other settings; choose another folder, or more steps. "
            f"Received: output_dir={folder}, where {change}"
        )
    return True


def run_training(
    s: Settings,
    trainer: FinetuningTrainer,
    batches: Callable,
    evaluate: Callable[[], dict[str, float]],
    keep: KeepBest,
    *jobs: Job,
) -> bool:
    """Train; return whether the run is complete.

    After a complete run, the model has its final weights. An incomplete run can
    be resumed.

    Args:
      s: the settings.
      trainer: the trainer.
      batches: see `Trainer.iterator`.
      evaluate: see `Evaluate`; not called without `do_eval`.
      keep: the hook that saves the best weights.
      *jobs: the tasks, with their examples.
    """
    interval = s.training.eval_steps
    run_facts = (
        facts(*s.configs()) | example_facts(*jobs) | first_weights(s.run)
    )
    run = Run(trainer, s.run.output_dir, run_facts)
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
        if is_complete:
            checkpoints.restore_weights(trainer.model, s.run.output_dir)
    return is_complete
