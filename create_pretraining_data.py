"""Make TFRecords for pretraining from text."""

from albert_tf.data.builder.build_program import cli

if __name__ == "__main__":
    cli()
