"""Fine-tune, evaluate and predict with a model directory."""

from albert_tf.finetuning.finetuning_program import cli, define_flags, main  # noqa: F401

if __name__ == "__main__":
    cli()
