"""Vectors of texts: `python -m albert_tf.embed`, from a file to `.npy`.

    python -m albert_tf.embed --model_dir=DIR --input_file=texts.txt \\
        --output_file=x.npy --pooling=mean
"""

import dataclasses

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.serving import embedding


@dataclasses.dataclass(frozen=True)
class Embedded:
    """What was written: a file for `numpy.load`, and its array's shape."""

    output_file: str
    shape: tuple[int, int]


@program.command(embedding.EmbedConfig)
def embed(config: embedding.EmbedConfig) -> Embedded:
    """Write a vector of every line of a text file to an `.npy` file."""
    shape = embedding.embed(config)
    print(f"Wrote {config.output_file}, float32 {list(shape)}")
    return Embedded(config.output_file, shape)


cli = embed.program.cli


if __name__ == "__main__":
    cli()
