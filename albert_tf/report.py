"""Write a run's curves, settings and health notes as one HTML page.

    python -m albert_tf.report MODEL_DIR

The page, `report.html` in that folder, needs no network and no other file. A
folder of several seeds gets a page for each.
"""

import dataclasses

from albert_tf.base import command_line, files, program
from albert_tf.base.settings import Checked, setting

with program.quiet_start():
    from albert_tf.training.runs.run_report import page, runs_in

REPORT_FILE = "report.html"


@dataclasses.dataclass(frozen=True)
class ReportConfig(Checked):
    """Which run."""

    model_dir: str = setting(
        ".", "Model directory of the run; may stand without --model_dir."
    )


@command_line.program(ReportConfig, positional="model_dir")
def report(config: ReportConfig) -> None:
    """Write the page of a run, or of each of the runs with several seeds."""
    for folder in runs_in(config.model_dir):
        path = files.join(folder, REPORT_FILE)
        files.write_text(path, page(folder))
        print(path)


cli = report.program.cli


if __name__ == "__main__":
    cli()
