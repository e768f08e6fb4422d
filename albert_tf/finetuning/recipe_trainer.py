"""A trainer that follows a recipe: frozen parts, adversaries.

Shapes: B rows of tokens, T tokens, E embedding width.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from albert_tf.base.settings import Fact, facts
from albert_tf.finetuning.recipes import (
    RecipeConfig,
    evaluations_without_gain,
    frozen,
    reductions,
)
from albert_tf.model.config import AlbertConfig
from albert_tf.training.runs.run import Hook
from albert_tf.training.step.accumulation import add
from albert_tf.training.step.evaluator import Batch
from albert_tf.training.step.trainer import Trainer


def adversary(gradient: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Return r = epsilon g / ||g|| of each row, [B, T, E].

    The fast gradient method on word embeddings,
    https://arxiv.org/abs/1605.07725, equation 5. Rows without a gradient, as
    padding, are not moved.
    """
    g = tf.cast(gradient, tf.float32)
    norm = tf.sqrt(tf.reduce_sum(tf.square(g), axis=[1, 2], keepdims=True))
    return tf.cast(epsilon * tf.math.divide_no_nan(g, norm), gradient.dtype)


@contextlib.contextmanager
def words_changed(embeddings, change: Callable) -> Iterator[None]:
    """Put a function over the word embeddings [B, T, E] while tracing."""
    embeddings.perturb = change
    try:
        yield
    finally:
        embeddings.perturb = None


class FinetuningTrainer(Trainer):
    """A trainer with a recipe; without one it is a `Trainer`.

    Args:
      *trainer: those of `Trainer`; its model has its encoder as `albert`.
      recipe: the recipe.
      config: the architecture, which says what the groups of layers are.
    """

    def __init__(
        self, *trainer: Any, recipe: RecipeConfig, config: AlbertConfig
    ):
        self.recipe = recipe
        super().__init__(
            *trainer,
            trainable=lambda name: not frozen(name, recipe.freeze, config),
        )

    def facts(self) -> dict[str, Fact]:
        return super().facts() | facts(self.recipe, "another recipe")

    # Adversarial training.

    def _micro_gradients(self, batch: Batch, divisors: dict, seed):
        """Add the gradients of the loss at adversarial word embeddings.

        The loss is L(e) + L(e + r), r being constant, with the same dropout.
        """
        epsilon = self.recipe.fgm_epsilon
        if not epsilon:
            return super()._micro_gradients(batch, divisors, seed)
        embeddings, words = self.model.albert.embeddings, []
        with tf.GradientTape() as tape:
            with words_changed(embeddings, lambda x: words.append(x) or x):
                loss, report = self._loss(batch, divisors, seed)
        every = self._differentiate(tape, loss, words)
        gradients, of_words = every[: -len(words)], every[-len(words) :]
        moves = [tf.stop_gradient(adversary(g, epsilon)) for g in of_words]
        # Calls of a shared encoder come in the same order again.
        with tf.GradientTape() as tape:
            with words_changed(embeddings, lambda x: x + moves.pop(0)):
                again, _ = self._loss(batch, divisors, seed)
        return add(gradients, self._differentiate(tape, again)), report


class FollowEvaluations(Hook):
    """Lower the rate on a plateau; end the run where nothing gets better.

    Both follow from the history alone, without the evaluation at `stop_step`,
    so that a resumed run does what an unbroken one does. Stands behind
    `Evaluate`.

    Args:
      every: as of `Evaluate`.
      recipe: says how long to wait.
      metric: what should get larger.
    """

    def __init__(self, every: int, recipe: RecipeConfig, metric: str):
        self.every, self.recipe, self.metric = every, recipe, metric

    def begin(self, run):
        recipe = self.recipe
        rows = zip(*run.history.column("eval", self.metric), strict=True)
        values = [value for step, value in rows if step % self.every == 0]
        if recipe.plateau_patience:
            number = reductions(values, recipe.plateau_patience)
            run.trainer.rate.factor.assign(0.5**number)
        waited = evaluations_without_gain(values)
        patience = recipe.early_stopping
        run.ended_early = 0 < patience <= waited

    def after(self, run, stretch):
        self.begin(run)
