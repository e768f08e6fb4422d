"""Compile the pretraining step for a TPU, without one, and say whether it fits.

    python -m albert_tf.tpu_check --topology=v5e-8 \
        --flagfile=configs/pretraining/base_v5e-8.flags

It takes the flags of `pretrain.py` and compiles the same step with the real
TPU compiler: `pip install 'albert-tf[tpu-check]'`. Nothing is run: memory is
what the compiler says.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.tpu.tpu_check import cli

if __name__ == "__main__":
    cli()
