"""The moving average of the weights that a run evaluates and keeps."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

AVERAGE = "optimizer/average/"  # a checkpoint's prefix of averaged weights


class WeightAverage:
    """A mean of weights over steps; must be made in the strategy's scope.

    Args:
      decay: largest share of the mean that a step leaves; 0 is no average.
      weights: {name: variable}.

    Attributes:
      means: {name: variable}, empty without an average.
    """

    def __init__(self, decay: float, weights: dict[str, tf.Variable]):
        self.decay, self.weights = decay, weights if decay else {}
        self.means = {
            name: tf.Variable(tf.zeros_like(w), trainable=False)
            for name, w in self.weights.items()
        }

    def state(self) -> dict[str, tf.Variable]:
        """Return {name: variable} of what a resume needs."""
        return {f"{AVERAGE}{name}": mean for name, mean in self.means.items()}

    def move(self, strategy, t: tf.Tensor) -> None:
        """Move the means: mean <- d mean + (1 - d) w, across the replicas.

        d is (t - 1) / (t + 9) up to `decay` at step t counted from 1, so that
        the mean begins with the first weights.
        """
        d = tf.minimum(self.decay, (t - 1.0) / (t + 9.0))

        def assign(mean, w, d):
            return mean.assign(d * mean + (1.0 - d) * w)

        for name, mean in self.means.items():
            strategy.extended.update(mean, assign, (self.weights[name], d))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Have the means in the variables of the weights for a while."""
        current = {n: tf.identity(w) for n, w in self.weights.items()}
        try:
            for name, mean in self.means.items():
                self.weights[name].assign(tf.identity(mean))
            yield
        finally:
            for name, value in current.items():
                self.weights[name].assign(value)
