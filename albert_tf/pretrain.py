"""Pretrain an ALBERT model on records written by create_pretraining_data.py."""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.training.pretraining.pretrain import cli

if __name__ == "__main__":
    cli()
