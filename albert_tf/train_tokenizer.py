"""Train a SentencePiece vocabulary with ALBERT's symbols on a corpus.

    python -m albert_tf.train_tokenizer --input_file=GLOB[,GLOB] \\
        --output_dir=DIR

writes `spiece.model`, `spiece.vocab` and `tokenizer.json`.
"""

import dataclasses

from albert_tf.base import command_line, program

with program.quiet_start():
    from albert_tf.data import vocabulary_training
    from albert_tf.data.vocabulary_training import TrainTokenizerConfig


@dataclasses.dataclass(frozen=True)
class TrainedTokenizer:
    """What was written.

    Attributes:
      output_dir: the folder of the tokenizer's files.
      sentences: how many were read.
      long: how many of these were too long and left out, at least in part.
    """

    output_dir: str
    sentences: int
    long: int


@command_line.program(TrainTokenizerConfig)
def train_tokenizer(config: TrainTokenizerConfig) -> TrainedTokenizer:
    """Train a SentencePiece vocabulary with ALBERT's symbols on a corpus."""
    counts = vocabulary_training.train_tokenizer(config)
    print(
        f"{config.output_dir}: {config.vocab_size} pieces from "
        f"{counts['sentences']} sentences, {counts['long']} left out as "
        f"longer than {vocabulary_training.MAX_SENTENCE_BYTES} bytes; accents "
        f"{'dropped' if counts['accents_dropped'] else 'kept'}"
    )
    for warning in vocabulary_training.warnings(counts):
        print(f"Warning: {warning}")
    return TrainedTokenizer(
        config.output_dir, counts["sentences"], counts["long"]
    )


cli = train_tokenizer.program.cli


if __name__ == "__main__":
    cli()
