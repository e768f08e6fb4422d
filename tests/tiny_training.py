"""Tiny training runs with the usual hooks."""

import json
import types

import tiny

from albert_tf.training import run
from albert_tf.training.hooks import KeepBest, standard
from albert_tf.training.run import Hook, Run


class Crash(Hook):
    """A hook that fails at a step, as if the machine had crashed."""

    def __init__(self, step, every=0):
        self.step, self.every = step, every

    def after(self, run, window):
        if run.step >= self.step:
            raise KeyboardInterrupt


def set_cluster(monkeypatch, cluster, index=0):
    """Set TF_CONFIG of a worker in a cluster, {job: addresses}."""
    task = {"type": "worker", "index": index}
    config = json.dumps({"cluster": cluster, "task": task})
    monkeypatch.setenv("TF_CONFIG", config)


def stopped_clock(monkeypatch, module):
    """Replace a module's clock; return the new clock, whose time is `now`."""
    clock = types.SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(module, "time", clock)
    return clock


def make_run(output_dir, **kwargs):
    return Run(tiny.new_trainer(**kwargs), str(output_dir))


def go(started, *hooks, evaluate=None, batches=tiny.train_batches):
    """Train with the usual and additional hooks; return the trainer."""
    trainer = started.trainer
    eval_steps = trainer.training.eval_steps
    evaluator = trainer.evaluator
    evaluate = evaluate or (lambda: evaluator.evaluate(tiny.eval_batches))
    keep = KeepBest(eval_steps, "mlm_accuracy")
    usual = standard(trainer.training, evaluate, keep)
    run.train(started, batches, [*hooks, *usual])
    return trainer
