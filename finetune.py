"""Fine-tune and evaluate the model in a directory, and write predictions."""

from albert_tf.finetune import cli

if __name__ == "__main__":
    cli()
