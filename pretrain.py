"""Pretrain an ALBERT model on records written by create_pretraining_data.py."""

from albert_tf.pretrain import cli

if __name__ == "__main__":
    cli()
