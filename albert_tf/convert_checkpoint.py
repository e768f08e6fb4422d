r"""Convert a model to a model directory or to another project's format.

    python -m albert_tf.convert_checkpoint \
        --input=albert_base/ --output=my_model/ --to=model_dir

The input is a TF1 release (google-research, TF-Hub, albert_zh), a model
directory, or a Hugging Face, sentence-transformers or PL-BERT folder. The
command detects the format.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.conversion.convert_checkpoint import cli

if __name__ == "__main__":
    cli()
