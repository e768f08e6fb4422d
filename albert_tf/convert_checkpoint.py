"""Convert released weights to a model directory and back, or fail.

    python -m albert_tf.convert_checkpoint \\
        --input=albert_base/ --output=my_model/ --to=model_dir

The input is a TF1 release (google-research, TF-Hub, albert_zh), a model
directory or a Hugging Face folder; which of them is found out.
"""

from albert_tf.base import program, settings

with program.quiet_start():
    from albert_tf.conversion.converter import ConversionConfig, convert


def main() -> None:
    """Convert what the flags say and print what was found."""
    config = settings.from_flags(ConversionConfig)
    for line in convert(
        config.input, config.output, config.to, config.albert_config_file
    ):
        print(line)


def cli() -> None:
    """Run as a console script."""
    settings.define_flags(ConversionConfig)
    settings.run(main)


if __name__ == "__main__":
    cli()
