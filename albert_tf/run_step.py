"""Pretrain from a step file under JAX, without TensorFlow.

    python -m albert_tf.tpu_check --step_file=base.zip --topology=v5e:1x1 \\
        --data_dir=records --flagfile=configs/pretraining/base_v5e-8.flags
    python -m albert_tf.run_step --step_file=base.zip --data_dir=records \\
        --output_dir=model

The first command writes the step file and needs TensorFlow; the second command
pretrains with it on any machine with JAX.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.tpu.run_step import cli

if __name__ == "__main__":
    cli()
