"""What a new model begins with, so that it need not learn it first.

All of it are first values of ordinary weights, which training may change.
"""

import numpy as np

from albert_tf.data.records.metadata import Metadata
from albert_tf.data.records.piece_statistics import (
    log_frequencies,
    piece_vectors,
    read_piece_counts,
    read_tokens,
)
from albert_tf.model import initial_weights
from albert_tf.text.tokenizers import tokenizer_in

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
    # Those of most weight come last, where they are for words alone.
    vectors = piece_vectors(read_tokens(data_dir, metadata), *words.shape)
    vectors = vectors[:, ::-1]
    known = vectors.any(axis=1, keepdims=True)
    growth = SCALE / model.config.initializer_range
    segments.assign(growth * segments.numpy())
    words.assign(np.where(known, SCALE * vectors, growth * words.numpy()))
    return int(known.sum())


def start_heads(albert, data_dir: str) -> str:
    """Give heads places to look at; return what to print."""
    # They see the words beside the positions: these come last.
    radians = initial_weights.start_positions(albert.embeddings, SCALE)
    heads = (albert.config.num_attention_heads + 1) // 2
    tokenizer = tokenizer_in(data_dir)
    repeats = (
        tokenizer is not None
        and initial_weights.has_room_for_repeats(albert)
        and heads < albert.config.num_attention_heads
    )
    if repeats:
        initial_weights.keep_apart(albert.embeddings, albert.config.head_size)
    initial_weights.look_at_neighbours(albert, heads, radians, SCALE)
    if repeats:
        initial_weights.look_at_repeats(albert, heads, tokenizer.sep_id, SCALE)
    more = ", one at the same word elsewhere" if repeats else ""
    return f"{heads} heads at a word's neighbours{more}"


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
    lines = [
        f"Random weights, but for {start_heads(model.albert, data_dir)}",
        f"and {words:,} pieces with the vectors of their neighbours",
    ]
    counts = read_piece_counts(data_dir, model.config.vocab_size)
    if counts is not None:
        model.mlm.output_bias.assign(log_frequencies(counts))
        lines += ["and the MLM bias at the pieces' log frequencies"]
    return lines
