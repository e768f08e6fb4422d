"""What comes between and after the steps of a run, made once to time it."""

import time
from collections.abc import Callable
from typing import Any

from albert_tf.training.runs import hooks
from albert_tf.training.runs.run import Hook


class Rehearse(Hook):
    """Tell a clock what an evaluation and the curves take: make both once.

    Args:
      evaluate: evaluates so many batches.
      batches: of a whole evaluation; 0 is none.
    """

    def __init__(self, evaluate: Callable[[int], Any], batches: int):
        self.evaluate, self.batches = evaluate, batches

    def begin(self, run):
        clock, names = run.clock, run.trainer.evaluator.names
        if self.batches:
            self.evaluate(1)  # compiles
            number, start = min(self.batches, 4), time.monotonic()
            self.evaluate(number)
            share = (time.monotonic() - start) / number
            clock.evaluation = share * self.batches / clock.step_seconds
        start = time.monotonic()
        for _ in range(2 * run.chief):  # the first one imports
            start = time.monotonic()
            hooks.draw_curves(run.history, run.output_dir, names)
        clock.closing = time.monotonic() - start
        clock.turn(run.step, {}, over=False, phases=len(run.phases) - 1)
