"""Query a LiteRT model: `python -m albert_tf.litert_runner`.

The program runs models written by `python -m albert_tf.export --to=litert` on
any device that has Python. It needs only the small packages `ai-edge-litert`,
`sentencepiece` and `absl-py`, not TensorFlow.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.serving.litert_runner import cli

if __name__ == "__main__":
    cli()
