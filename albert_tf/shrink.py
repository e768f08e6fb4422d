r"""Make a smaller or faster model directory: `python -m albert_tf.shrink`.

    python -m albert_tf.shrink --model_dir=DIR --output_dir=NEW \
        --num_layers=8 --num_heads=6 --data_dir=DATA

- `--num_layers` applies the shared layer fewer times. The number of parameters
  stays the same; time decreases with the number of layers.
- `--num_heads` removes the attention heads that the task needs least, as
  measured on the training examples. Because layers share weights, a head is
  removed from every layer.

If the data has an evaluation split, the command prints the metrics before and
after each change. Fine-tuning the new model recovers part of the lost quality.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.finetuning.shrink import cli

if __name__ == "__main__":
    cli()
