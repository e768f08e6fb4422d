"""Compute text vectors: `python -m albert_tf.embed`.

    python -m albert_tf.embed --model_dir=DIR --input_file=texts.txt \\
        --output_file=x.npy --pooling=mean
"""

import dataclasses

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.serving import embedding


@dataclasses.dataclass(frozen=True)
class Embedded:
    """The output: a file for `numpy.load`, and the shape of its array."""

    output_file: str
    shape: tuple[int, int]


@program.command(embedding.EmbedConfig)
def embed(config: embedding.EmbedConfig) -> Embedded:
    """Write one vector per line of a text file to an `.npy` file."""
    shape = embedding.embed(config)
    print(f"Wrote {config.output_file}, float32 {list(shape)}")
    return Embedded(config.output_file, shape)


cli = embed.program.cli


if __name__ == "__main__":
    cli()
