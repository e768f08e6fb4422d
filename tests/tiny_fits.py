"""What the tests of `fit` share: labels, and how tiny models learn."""

from albert_tf.training.optimization.keras_optimizers import AdamW, WarmupDecay

LABELS = ("bad", "good")
RATE = 0.01


def optimizer(steps: int, rate: float = 0.003) -> AdamW:
    """Return AdamW with the schedule of a run of some steps."""
    return AdamW(WarmupDecay(rate, steps, num_warmup_steps=5))
