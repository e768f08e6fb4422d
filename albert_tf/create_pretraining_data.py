"""Convert text to TFRecords for pretraining."""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.data.builder.build import cli

if __name__ == "__main__":
    cli()
