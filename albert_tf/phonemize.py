r"""Convert text to phonemes with espeak-ng: `python -m albert_tf.phonemize`.

    python -m albert_tf.phonemize --input_file=GLOB[,GLOB] --language=de \
        --output_dir=DIR

The command writes one row per sentence, with the lists `words` and `phonemes`.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.data.phonemize import cli

if __name__ == "__main__":
    cli()
