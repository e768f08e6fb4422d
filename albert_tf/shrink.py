r"""Make a smaller or faster copy of a model: `python -m albert_tf.shrink`.

    python -m albert_tf.shrink --model_dir=DIR --output_dir=NEW \
        --num_layers=8 --num_heads=6 --data_dir=DATA

- `--num_layers` keeps only the first layers. This reduces the running time. If
  all layers share their weights, it does not reduce the number of parameters.
- `--num_heads` removes the attention heads that the task needs least, as
  measured on the training examples. A head is removed from all layers that
  share its weights.

If the data has an evaluation split, the command prints the metrics before and
after each change. Fine-tuning the new model recovers part of the lost quality.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.finetuning.shrink import cli

if __name__ == "__main__":
    cli()
