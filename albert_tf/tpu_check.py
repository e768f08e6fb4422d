r"""Check whether the pretraining step fits a TPU, without a TPU.

    python -m albert_tf.tpu_check --topology=v5e-8 \
        --flagfile=configs/pretraining/base_v5e-8.flags

The program accepts the flags of `pretrain.py` and compiles the same step with
the real TPU compiler, which `pip install 'albert-tf[tpu-check]'` installs.
Nothing is run; the compiler reports the memory needed.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.tpu.tpu_check import cli

if __name__ == "__main__":
    cli()
