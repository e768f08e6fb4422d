"""Convert released weights to a model directory and back, or fail.

    python -m albert_tf.convert_checkpoint \\
        --input=albert_base/ --output=my_model/ --to=model_dir

The input is a TF1 release (google-research, TF-Hub, albert_zh), a model
directory or a Hugging Face folder; which of them is found out.
"""

import dataclasses

from albert_tf.base import command_line, program

with program.quiet_start():
    from albert_tf.conversion.converter import ConversionConfig, convert


@dataclasses.dataclass(frozen=True)
class Converted:
    """What was written.

    Attributes:
      output: the folder.
      lines: what was found, and done.
    """

    output: str
    lines: tuple[str, ...]


@command_line.program(ConversionConfig)
def convert_checkpoint(config: ConversionConfig) -> Converted:
    """Convert released weights to a model directory and back, or fail."""
    lines = convert(
        config.input,
        config.output,
        config.to,
        config_file=config.albert_config_file,
        pairs=config.pairs,
        encoder_only=config.encoder_only,
        strict=config.strict,
        task=config.task,
    )
    print("\n".join(lines))
    return Converted(config.output, tuple(lines))


cli = convert_checkpoint.program.cli


if __name__ == "__main__":
    cli()
