"""Training: optimizers, evaluator, trainer, runs, checkpoints and history."""
