"""Training: optimizers, evaluator, trainer, run, checkpoints, history."""
