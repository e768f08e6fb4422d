"""Convert text to TFRecords for pretraining."""

from albert_tf.create_pretraining_data import cli

if __name__ == "__main__":
    cli()
