"""What a run prints before it begins."""

from collections.abc import Sequence

from albert_tf.training.pretraining.phases import Phase, table_of
from albert_tf.training.step.trainer import Trainer


def warn_of_warmup(trainer: Trainer) -> None:
    """Warn if the run ends before its warm-up does."""
    optimizer = trainer.optimizer.config
    steps = trainer.training.num_train_steps
    if steps < optimizer.peak_step:
        print(
            f"Warning: the rate gets to {optimizer.learning_rate:g} after "
            f"{optimizer.peak_step:,} steps of warm-up, and the run ends after "
            f"{steps:,}; see --num_warmup_steps"
        )


def describe_run(trainer: Trainer, run_phases: Sequence[Phase]) -> None:
    """Print what is about to be trained."""
    first = run_phases[0]
    optimizer = trainer.optimizer
    size = sum(v.shape.num_elements() for v in trainer.weights.values())
    excluded = list(filter(optimizer.spared, optimizer.names))
    replicas = trainer.strategy.num_replicas_in_sync
    has_ratio = optimizer.config.optimizer == "lamb"
    print(
        f"{size:,} parameters, {replicas} replica{'s' * (replicas > 1)}, "
        f"batches of {first.batch_size} x {first.metadata.max_seq_length} "
        f"tokens, {optimizer.config.optimizer} at "
        f"{optimizer.config.learning_rate:g}\n"
        f"Without weight decay{' and trust ratio' * has_ratio}: "
        f"{len(excluded)} of {len(trainer.trained)} variables: "
        f"{', '.join(excluded)}"
    )
    warn_of_warmup(trainer)
    if len(run_phases) > 1 or first.masked_lm_prob is not None:
        print(table_of(run_phases))
