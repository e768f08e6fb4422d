"""Vectors of texts: `python -m albert_tf.embed`, from a file to `.npy`.

    python -m albert_tf.embed --model_dir=DIR --input_file=texts.txt \\
        --output_file=x.npy --pooling=mean
"""

from albert_tf.base import program, settings

with program.quiet_start():
    from albert_tf.serving.embedding import EmbedConfig, embed


def main() -> None:
    """Embed as the flags say."""
    c = settings.from_flags(EmbedConfig)
    shape = embed(c)
    print(f"Wrote {c.output_file}, float32 {list(shape)}")


def cli() -> None:
    """Run as a console script."""
    settings.define_flags(EmbedConfig)
    settings.run(main)


if __name__ == "__main__":
    cli()
