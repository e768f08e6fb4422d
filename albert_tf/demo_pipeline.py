"""The main job on a corpus that needs no download: `make demo`.

From the docstrings of the installed Python packages to a SavedModel that
answers raw strings; see `albert_tf/demo/pipeline.py`.
"""

import dataclasses

from albert_tf.base import command_line, program
from albert_tf.base.errors import require
from albert_tf.base.settings import Checked, setting

with program.quiet_start():
    from albert_tf.demo import pipeline


@dataclasses.dataclass(frozen=True)
class DemoConfig(Checked):
    """Where the demo works, and how long it trains."""

    output_dir: str = setting("demo", "Folder for everything.")
    pretraining_hours: float = setting(
        0.1, "Hours of pretraining.", minimum=0.001
    )
    finetuning_steps: int = setting(200, "Steps of fine-tuning.", minimum=2)


@command_line.program(DemoConfig)
def demo(config: DemoConfig) -> None:
    """Run what is not yet done, and print what came out of it."""
    require(config.output_dir, "`output_dir` must be given.", output_dir="")
    pipeline.demo(**dataclasses.asdict(config))


cli = demo.program.cli


if __name__ == "__main__":
    cli()
