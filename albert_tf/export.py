"""Export a model directory for serving: `python -m albert_tf.export`.

The output is a SavedModel by default, or a LiteRT or ONNX model. None of them
requires this package. A SavedModel requires `tensorflow` and, if it accepts
strings, `tensorflow_text`. See docs/serving.md.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.serving.export import cli

if __name__ == "__main__":
    cli()
