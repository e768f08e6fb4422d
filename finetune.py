"""Fine-tune a model directory, evaluate it, and predict."""

from albert_tf.finetune import cli

if __name__ == "__main__":
    cli()
