"""Export a model directory for serving: `python -m albert_tf.export`.

The output is a SavedModel by default, or a LiteRT or ONNX model. It does not
need this package: a SavedModel loads with `tensorflow` and `tensorflow_text`.
See docs/serving.md.
"""

import dataclasses

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.serving import exporting
    from albert_tf.serving.encoder import ServingConfig


@dataclasses.dataclass(frozen=True)
class Exported:
    """The output: a folder, and the size of its weights in bytes."""

    export_dir: str
    size: int


@program.command(exporting.ExportConfig, ServingConfig)
def export(config: exporting.ExportConfig, serving: ServingConfig) -> Exported:
    """Export a model directory for serving: as SavedModel, LiteRT or ONNX."""
    exporting.export(config, serving)
    return Exported(config.export_dir, exporting.model_size(config.export_dir))


cli = export.program.cli


if __name__ == "__main__":
    cli()
