"""Fine-tune, evaluate and predict with a model directory."""

from albert_tf.finetuning.finetuning_program import cli

if __name__ == "__main__":
    cli()
