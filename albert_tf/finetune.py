"""Fine-tune and evaluate the model in a directory, and write predictions."""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.finetuning.finetune import cli

if __name__ == "__main__":
    cli()
