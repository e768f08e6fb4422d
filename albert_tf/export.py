"""Write what a model directory serves: `python -m albert_tf.export`.

A SavedModel by default, or a file for LiteRT or ONNX. What is written needs
nothing of this package: a SavedModel loads where `tensorflow` and
`tensorflow_text` are imported. See docs/serving.md.
"""

import dataclasses

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.serving import exporting
    from albert_tf.serving.encoder import ServingConfig


@dataclasses.dataclass(frozen=True)
class Exported:
    """What was written: a folder, and the bytes of its weights."""

    export_dir: str
    size: int


@program.command(exporting.ExportConfig, ServingConfig)
def export(config: exporting.ExportConfig, serving: ServingConfig) -> Exported:
    """Write what a model directory serves: a SavedModel, LiteRT or ONNX."""
    exporting.export(config, serving)
    return Exported(config.export_dir, exporting.model_size(config.export_dir))


cli = export.program.cli


if __name__ == "__main__":
    cli()
