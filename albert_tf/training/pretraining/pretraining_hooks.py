"""What a pretraining run does between its steps."""

import math
from collections.abc import Callable, Sequence

from albert_tf.training.runs.health import SETTLED_STEPS, SPREAD_TEXTS, Monitor
from albert_tf.training.runs.hooks import (
    KeepAverage,
    Measure,
    MeasureSpread,
    Warn,
    standard,
)
from albert_tf.training.runs.run import Hook, Run


def pretraining_hooks(
    run: Run,
    monitor_of: Callable[[Run], Monitor],
    batches: Callable,
    evaluate: Callable | None,
    more: Sequence[Hook],
) -> list[Hook]:
    """Return the hooks of a run.

    Args:
      run: before its first step.
      monitor_of: says what is measured beyond the losses.
      batches: of training examples, see `Phase.reader`; the states of the
        first ones are compared.
      evaluate: see `Evaluate`; None without held-out records.
      more: the user's, behind an evaluation and before a checkpoint.
    """
    training, optimizer = run.trainer.training, run.trainer.optimizer.config
    look = optimizer.peak_step + SETTLED_STEPS
    read, size = run.phases[0].reader(batches), training.eval_batch_size
    number = math.ceil(SPREAD_TEXTS / size)
    texts = MeasureSpread(look, lambda: read(batch_size=size).take(number))
    warnings = [
        Warn(every, monitor_of) for every in (look, training.eval_steps)
    ]
    averages = []
    if optimizer.ema_decay:
        averages.append(KeepAverage(training.save_checkpoints_steps))
    usual = standard(training, evaluate, *warnings, *more, *averages)
    return [Measure(monitor_of), texts, *usual]
