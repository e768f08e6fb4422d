"""What a new model begins with, so that it need not learn it first.

All of it are first values of ordinary weights, which training may change.
"""

import numpy as np

from albert_tf.data.records.metadata import Metadata
from albert_tf.data.records.piece_counts import (
    log_frequencies,
    read_piece_counts,
)
from albert_tf.data.records.piece_vectors import piece_vectors, read_tokens
from albert_tf.model.initial_weights import look_at_neighbours

# Root of the mean square of the first rows of words, positions and segments:
# with small ones every step of a rate that suits the encoder turns them about.
SCALE = 0.1


def start_words(model, data_dir: str, metadata: Metadata) -> int:
    """Begin the word table where neighbours are alike; return how many are.

    Special pieces, and those that are too rare, keep their random rows; these,
    and those of segments, get the size of the others.
    """
    tables = model.albert.embeddings
    words, segments = tables.word_embeddings, tables.token_type_embeddings
    vectors = piece_vectors(read_tokens(data_dir, metadata), *words.shape)
    known = vectors.any(axis=1, keepdims=True)
    growth = SCALE / model.config.initializer_range
    segments.assign(growth * segments.numpy())
    words.assign(np.where(known, SCALE * vectors, growth * words.numpy()))
    return int(known.sum())


def start_new(model, data_dir: str, metadata: Metadata) -> list[str]:
    """Give a new model what its records tell and where neighbours are.

    See `piece_vectors` and `initial_weights`, and for the frequencies Meister
    et al., https://arxiv.org/abs/2212.09686.

    Args:
      model: an `AlbertForPretraining` with random weights.
      data_dir: records.
      metadata: theirs.

    Returns:
      what to print.
    """
    words = start_words(model, data_dir, metadata)
    # They see the words beside the positions: these come last.
    heads = (model.config.num_attention_heads + 1) // 2
    look_at_neighbours(model.albert, heads, SCALE)
    lines = [
        f"Random weights, but for {heads} heads at a word's neighbours",
        f"and {words:,} pieces with the vectors of their neighbours",
    ]
    counts = read_piece_counts(data_dir, model.config.vocab_size)
    if counts is not None:
        model.mlm.output_bias.assign(log_frequencies(counts))
        lines += ["and the MLM bias at the pieces' log frequencies"]
    return lines
