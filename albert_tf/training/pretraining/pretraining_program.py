"""Pretrain an ALBERT on the records that create_pretraining_data.py wrote."""

from collections.abc import Iterable, Set

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.training.machines.distribution import DistributionConfig
    from albert_tf.training.optimization.optimizers import OptimizerConfig
    from albert_tf.training.pretraining import pretraining_run
    from albert_tf.training.pretraining.pretraining_config import (
        PretrainingConfig,
    )
    from albert_tf.training.runs.history import RunResult
    from albert_tf.training.runs.hooks import check_hooks
    from albert_tf.training.runs.run import Hook
    from albert_tf.training.step.training_config import TrainingConfig


@program.command(
    PretrainingConfig,
    OptimizerConfig,
    TrainingConfig,
    DistributionConfig,
    tells=True,
)
def pretrain(
    run,
    *configs,
    hooks: Iterable[Hook] | Hook = (),
    said: Set[str] = frozenset(),
) -> RunResult:
    """Pretrain an ALBERT on records, into a model directory.

    A run in that directory resumes. The keywords are the flags of
    `pretrain.py`.

    Args:
      run: what is read and written.
      *configs: how.
      hooks: to act between the steps, beside the usual ones.
      said: names of the settings that were given, which a budget leaves.

    Returns:
      the directory, the last held-out metrics and the run's history.
    """
    metrics = pretraining_run.pretrain(run, *configs, check_hooks(hooks), said)
    for name, value in metrics.items():
        print(f"{name} = {value:.4f}")
    return RunResult(run.output_dir, {"eval": metrics} if metrics else {})


cli = pretrain.program.cli
