"""Labels and an optimizer for the tests of `fit`."""

from albert_tf.training.keras_optimizers import AdamW, WarmupDecay

LABELS = ("bad", "good")
RATE = 0.01


def optimizer(steps: int, rate: float = 0.003) -> AdamW:
    """Return AdamW with a schedule for `steps` steps."""
    return AdamW(WarmupDecay(rate, steps, num_warmup_steps=5))
