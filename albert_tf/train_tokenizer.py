"""Train a SentencePiece vocabulary with ALBERT's symbols on a corpus.

    python -m albert_tf.train_tokenizer --input_file=GLOB[,GLOB] \\
        --output_dir=DIR

writes `spiece.model`, `spiece.vocab` and `tokenizer.json`.
"""

from albert_tf.base import settings
from albert_tf.data.vocabulary_training import (
    MAX_SENTENCE_BYTES,
    TrainTokenizerConfig,
    train_tokenizer,
)


def main() -> None:
    """Train with the flags' settings and say what was read."""
    config = settings.from_flags(TrainTokenizerConfig)
    counts = train_tokenizer(config)
    print(
        f"{config.output_dir}: {config.vocab_size} pieces from "
        f"{counts['sentences']} sentences, {counts['long']} left out as "
        f"longer than {MAX_SENTENCE_BYTES} bytes"
    )


def cli() -> None:
    """Run as a console script."""
    settings.define_flags(TrainTokenizerConfig)
    settings.run(main)


if __name__ == "__main__":
    cli()
