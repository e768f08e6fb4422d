r"""Train a SentencePiece vocabulary with ALBERT's symbols on a corpus.

    python -m albert_tf.train_tokenizer --input_file=GLOB[,GLOB] \
        --output_dir=DIR

The command writes `spiece.model`, `spiece.vocab` and `tokenizer.json`.
"""

from albert_tf.base import program

with program.quiet_start():
    from albert_tf.data.train_tokenizer import cli

if __name__ == "__main__":
    cli()
