"""Make a smaller or faster model directory: `python -m albert_tf.shrink`.

    python -m albert_tf.shrink --model_dir=DIR --output_dir=NEW \\
        --num_layers=8 --num_heads=6 --weights=bfloat16 --data_dir=DATA

- `--num_layers` applies the shared layer fewer times. The parameters stay the
  same; time goes down with the layers.
- `--num_heads` removes the attention heads that the task needs least, as its
  training examples show: `finetuning/head_pruning.py`. As layers share their
  weights, a head goes from every layer.
- `--weights=bfloat16` rounds all weights to the 16 bits of bfloat16, as a
  device that keeps them so would. The checkpoint holds them in float32.

Where the data has a split to evaluate on, the metrics after each of these are
printed beside those before. Fine-tuning the new directory wins a part back.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.finetuning import shrinking
    from albert_tf.tasks.task_config import DataConfig


@program.command(shrinking.ShrinkConfig, DataConfig)
def shrink(config: shrinking.ShrinkConfig, data: DataConfig) -> None:
    """Make a smaller or faster model directory."""
    shrinking.shrink(config, data)


cli = shrink.program.cli


if __name__ == "__main__":
    cli()
