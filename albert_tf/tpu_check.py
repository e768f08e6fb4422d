r"""Check, without a TPU, whether the pretraining step fits on a TPU.

    python -m albert_tf.tpu_check --topology=v5e-8 \
        --flagfile=configs/pretraining/base_v5e-8.flags

The program accepts the flags of `pretrain.py` and compiles the same step with
the real TPU compiler, which `pip install 'albert-tf[tpu-check]'` installs.
The program does not run the step; the compiler reports the required memory.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.tpu.tpu_check import cli

if __name__ == "__main__":
    cli()
