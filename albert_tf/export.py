"""Write what a model directory serves: `python -m albert_tf.export`.

A SavedModel by default, or a file for LiteRT or ONNX. What is written needs
nothing of this package: a SavedModel loads where `tensorflow` and
`tensorflow_text` are imported. See docs/serving.md.
"""

from albert_tf.base import program, settings

with program.quiet_start():
    from albert_tf.serving.encoder import ServingConfig
    from albert_tf.serving.exporting import ExportConfig, export


def main() -> None:
    """Export as the flags say."""
    export(
        settings.from_flags(ExportConfig), settings.from_flags(ServingConfig)
    )


def cli() -> None:
    """Run as a console script."""
    settings.define_flags(ExportConfig, ServingConfig)
    settings.run(main)


if __name__ == "__main__":
    cli()
