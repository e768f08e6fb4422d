"""The jobs, trainer and batches of fine-tuning, for one or several tasks.

The trainer follows a recipe: it can freeze weights and train adversarially.

Shapes: B rows of tokens, T tokens, E embedding width.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.replacing import check_writable
from albert_tf.finetuning import soft_targets
from albert_tf.finetuning.evaluation import bucketed, check_results
from albert_tf.finetuning.finetuning_setup import Job, Settings, prepare
from albert_tf.finetuning.recipe import RecipeConfig, check_freeze, frozen
from albert_tf.finetuning.soft_targets import with_class_weights
from albert_tf.model.config import AlbertConfig
from albert_tf.model.ops import is_tpu
from albert_tf.tasks.batches import length_step, training_batches
from albert_tf.tasks.features import Features
from albert_tf.training import checkpoints, distribution
from albert_tf.training.objectives import Batch, Objective
from albert_tf.training.run import warn_of_warmup
from albert_tf.training.trainer import Trainer, add


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
    """While the block runs, apply a function to word embeddings [B, T, E]."""
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


ENCODER = ("albert/",)


def with_recipe(recipe: RecipeConfig, job: Job) -> Job:
    """Check that a recipe suits a job; return the job with class weights."""
    soft_targets.check_targets(recipe, job.task)
    check_freeze(recipe.freeze, job.config)
    if recipe.teacher:
        soft_targets.load_teacher(recipe.teacher, job)  # checks the teacher
    return with_class_weights(job, recipe.class_weights)


# Settings whose paths may differ between machines.
PATHS = (
    *("model_dir", "output_dir", "ensemble", "teacher"),
    *("data_dir", "train_file", "eval_file", "predict_file"),
)


def require_alike(
    strategy: tf.distribute.Strategy | None, s: Settings, *jobs: Job
) -> None:
    """Raise an error if workers have different settings or examples."""
    if strategy is None:
        return
    configs = (c for c in s.configs() if c is not s.devices)
    values = {k: v for config in configs for k, v in vars(config).items()}
    contents = {
        f"{x.name} examples of {job.task.name}": x.features.checksum()
        for job in jobs
        for x in (*job.train, *job.eval, *job.predict)
    }
    shared = {k: v for k, v in values.items() if k not in PATHS}
    distribution.require_alike(strategy, shared | contents)


def prepare_jobs(
    s: Settings, names: Sequence[str | None]
) -> tuple[tf.distribute.Strategy | None, list[Job]]:
    """Read and check all inputs; return the workers' strategy and the jobs.

    Args:
      s: the settings.
      names: the tasks to use as `DataConfig.task`.
    """
    s.check()
    workers, jobs = distribution.prepare_devices(s.devices), []
    with distribution.raise_everywhere(workers):
        check_results(s.run.output_dir, names, s.run.num_seeds > 1)
        if distribution.is_chief(workers):
            check_writable("output_dir", s.run.output_dir)
        for name in names:
            data = dataclasses.replace(s.data, task=name)
            job = prepare(s.run, data, s.task)
            print(job.summary())
            jobs.append(with_recipe(s.recipe, job) if s.run.do_train else job)
    require_alike(workers, s, *jobs)
    s.advise()
    return workers, jobs


def training_step(s: Settings, strategy, max_length: int) -> int:
    """Return the `step` for rounding up batch lengths, as in `batcher`.

    A step of 0 means that every batch is padded to `max_length` tokens, the
    maximum length of a row.
    """
    by_length = bucketed(s.run, strategy, "train")
    compiled = s.training.jit_compile
    padded = s.run.length_bucketing == "none" or (compiled and not by_length)
    if padded or is_tpu(strategy):
        return 0
    compiled_per_length = compiled or tf.config.list_physical_devices("GPU")
    return length_step(max_length) if compiled_per_length else 1


def make_batches(
    features: Features,
    s: Settings,
    strategy: tf.distribute.Strategy,
    size: int | None = None,
    number: int = 0,
) -> Callable:
    """Return a function that creates training batches, for `Trainer.iterator`.

    Args:
      features: the training examples.
      s: the settings, such as the batch size, the seed and the bucketing.
      strategy: the strategy that trains.
      size: the number of examples in a batch that come from `features`; None
        means all examples.
      number: the task's index; each task is shuffled differently.
    """
    global_batch_size = s.training.train_batch_size
    size = size or global_batch_size
    group = size if bucketed(s.run, strategy, "train") else 0
    step = training_step(s, strategy, features.max_seq_length)

    def batches(start, num_shards, shard, batch_size):
        return training_batches(
            features,
            batch_size=size * batch_size // global_batch_size,
            seed=s.training.random_seed + number,
            start=start // global_batch_size * size,
            num_shards=num_shards,
            shard=shard,
            group=group,
            step=step,
        )

    return batches


def check_partners(s: Settings, job: Job, replicas: int) -> None:
    """Raise an error if micro-batches of one example have no useful loss.

    In a replica's micro-batch, other texts serve as the negatives of single
    texts and of pairs without scores.
    """
    training, examples = s.training, job.training_split.examples
    parts = replicas * training.gradient_accumulation_steps
    require(
        job.task.supports_single_example(examples)
        or training.train_batch_size > parts,
        "`train_batch_size` must be at least 2 examples per replica and "
        "micro-batch, because the other examples serve as negatives.",
        train_batch_size=training.train_batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        replicas=replicas,
    )


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
    if s.run.first_checkpoint:
        first = s.run.first_checkpoint
        checkpoints.restore_model(first, trainer.model, ENCODER)
        distribution.broadcast(strategy, list(trainer.weights.values()))
    return trainer
