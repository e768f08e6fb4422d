"""Fine-tune, evaluate and predict with a model directory."""

from collections.abc import Iterable

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.finetuning import finetune as runs
    from albert_tf.finetuning.finetuning_settings import CONFIGS, Settings
    from albert_tf.finetuning.job import DEFAULTS
    from albert_tf.finetuning.multitask import finetune_together
    from albert_tf.training.runs.history import RunResult
    from albert_tf.training.runs.hooks import check_hooks
    from albert_tf.training.runs.run import Hook

# The released fine-tuning scripts' names of the same settings.
RELEASED_NAMES = {
    "task_name": "task",
    "train_step": "num_train_steps",
    "warmup_step": "num_warmup_steps",
    "dropout_prob": "classifier_dropout",
    "dev_file": "eval_file",
}


@program.command(*CONFIGS, defaults=DEFAULTS, aliases=RELEASED_NAMES)
def finetune(*configs, hooks: Iterable[Hook] | Hook = ()) -> RunResult:
    """Fine-tune, evaluate and predict with a model directory.

    The keywords are the flags of `finetune.py`; where it takes files of
    examples, a table in memory may stand.

    Args:
      *configs: the fields of `Settings`.
      hooks: to act between the steps, beside the usual ones.

    Returns:
      the directory, the metrics of each split and the run's history.
    """
    s = Settings(*configs, hooks=check_hooks(hooks))
    several = "," in (s.data.task or "")
    metrics = finetune_together(s) if several else runs.finetune(s)
    for split, values in metrics.items():
        for name, value in values.items():
            print(f"{split} {name} = {value:.6g}")
    return RunResult(s.run.output_dir, metrics)


cli = finetune.program.cli
