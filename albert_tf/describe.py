"""Say how large and how costly a config's model is.

    python -m albert_tf.describe configs/models/albert_base_v2.json

Parameters of each part beside an unshared BERT of the same shape, the row of
the paper's Table 1, and the floating-point operations of one sequence. All of
it follows from the config; nothing is built.
"""

import dataclasses

from albert_tf.base import command_line, files, program
from albert_tf.base.errors import require
from albert_tf.base.settings import setting

with program.quiet_start():
    from albert_tf.conversion import model_size


@dataclasses.dataclass(frozen=True)
class DescribeConfig:
    """Which configs are described, for which sequences."""

    config: str = setting(
        "", "Config files, comma-separated; may stand without --config."
    )
    sequence_length: int | None = setting(
        None, "Tokens of a sequence; the longest possible by default."
    )


@command_line.program(DescribeConfig, positional="config")
def describe(c: DescribeConfig) -> None:
    """Print how large and how costly the models of configs are."""
    paths = files.listed(c.config)
    require(paths, "`config` must be given.", config=c.config)
    for i, path in enumerate(paths):
        lines = model_size.describe(path, c.sequence_length)
        print("\n\n" * bool(i) + "\n".join(lines))


cli = describe.program.cli


if __name__ == "__main__":
    cli()
