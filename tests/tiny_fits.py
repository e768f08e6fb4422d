"""Labels, optimizers and compiled models for the tests of `fit`."""

import keras

from albert_tf.training.keras_optimizers import AdamW, WarmupDecay

LABELS = ("bad", "good")
RATE = 0.01


def optimizer(steps: int, rate: float = 0.003) -> AdamW:
    """Return AdamW with a schedule for `steps` steps."""
    return AdamW(WarmupDecay(rate, steps, num_warmup_steps=5))


def compiled(cls, path, *labels, rate=0.0, metrics=None, seed=1, **settings):
    """Return a model with a new head, which is compiled to run eagerly.

    Args:
      cls: the class of the model.
      path: the model directory.
      *labels: the labels of the model, if it has labels.
      rate: the learning rate of AdamW, or a different optimizer.
      metrics: the argument `metrics` of `compile`.
      seed: the seed of the new head and of dropout.
      **settings: passed to `load`.
    """
    keras.utils.set_random_seed(seed)
    model = cls.load(path, *labels, **settings)
    rate = AdamW(rate) if isinstance(rate, float) else rate
    model.compile(rate, metrics=metrics, run_eagerly=True)
    return model
