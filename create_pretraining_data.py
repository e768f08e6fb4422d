"""Make TFRecords for pretraining from text."""

from albert_tf.data.builder.build_program import CONFIGS, cli, main  # noqa: F401

if __name__ == "__main__":
    cli()
