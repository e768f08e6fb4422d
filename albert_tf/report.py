"""Write a run's curves, settings and health notes as one HTML page.

    python -m albert_tf.report MODEL_DIR

The page, `report.html` in that folder, needs no network and no other file.
"""

import dataclasses

from albert_tf.base import command_line, files, program
from albert_tf.base.settings import Checked, setting

with program.quiet_start():
    from albert_tf.training.run_report import page

REPORT_FILE = "report.html"


@dataclasses.dataclass(frozen=True)
class ReportConfig(Checked):
    """Which run."""

    model_dir: str = setting(
        ".", "Model directory of the run; may stand without --model_dir."
    )


@command_line.program(ReportConfig, positional="model_dir")
def report(config: ReportConfig) -> None:
    """Write the page of a run."""
    path = files.join(config.model_dir, REPORT_FILE)
    files.write_text(path, page(config.model_dir))
    print(path)


cli = report.program.cli


if __name__ == "__main__":
    cli()
