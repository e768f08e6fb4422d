"""Compile the pretraining step for a TPU, without one, and say whether it fits.

    python -m albert_tf.tpu_check --topology=v5e-8 \\
        --flagfile=configs/pretraining/base_v5e-8.flags

It takes the flags of `pretrain.py` and compiles the same step with the real
TPU compiler: `pip install 'albert-tf[tpu-check]'`. Nothing is run: memory is
what the compiler says.
"""

from albert_tf.base import command_line, program

with program.quiet_start():
    from albert_tf.tpu.chips import parse
    from albert_tf.tpu.step_check import OPTIONAL, SETTINGS, check, make_plan
    from albert_tf.tpu.step_file import write_plan


@command_line.program(*SETTINGS, optional=OPTIONAL)
def tpu_check(config, run, optimizer, training, devices) -> None:
    """Compile the step of a pretraining run for a TPU."""
    plan = make_plan(config, run, optimizer, training)
    if config.step_file:
        write_plan(config.step_file, plan, parse(config.topology))
    else:
        check(config, plan)


cli = tpu_check.program.cli


if __name__ == "__main__":
    cli()
