"""Pretrain an ALBERT on the records that create_pretraining_data.py wrote."""

from albert_tf.training.pretraining.pretraining_program import cli

if __name__ == "__main__":
    cli()
