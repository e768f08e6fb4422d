"""Try a machine's accelerator for ten minutes, and report what came of it.

    python -m albert_tf.hardware_report --output_dir=DIR --tpu_name=local \\
        --topology=v5e-8

It makes its own records, trains on them, and compares what it sees with what
is expected; `report.md` is to be attached to a report. Off TPUs leave out the
last two flags.
"""

from albert_tf.base import command_line, program

with program.quiet_start():
    from albert_tf.tpu import machine_report
    from albert_tf.tpu.hardware_checks import HardwareReportConfig
    from albert_tf.training.machines.distribution import DistributionConfig


@command_line.program(HardwareReportConfig, DistributionConfig)
def hardware_report(config, devices) -> list[machine_report.Row]:
    """Check a machine; write `report.md` and `report.json`."""
    return machine_report.report(config, devices)


cli = hardware_report.program.cli


if __name__ == "__main__":
    cli()
