"""Try an exported model on a local web page.

    python -m albert_tf.playground --saved_model=DIR

The page has a form for each signature that accepts text. It loads no files from
other servers. The command needs `pip install 'albert-tf[demo]'`.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.serving.playground import cli

if __name__ == "__main__":
    cli()
