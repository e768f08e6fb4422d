r"""Compute text vectors: `python -m albert_tf.embed`.

    python -m albert_tf.embed --model_dir=DIR --input_file=texts.txt \
        --output_file=x.npy --pooling=mean
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.library.embed import cli

if __name__ == "__main__":
    cli()
