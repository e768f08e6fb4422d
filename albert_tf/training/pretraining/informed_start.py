"""Initial weights that make a new model's heads attend to useful positions.

A masked language model stays on a plateau, on which it predicts pieces by
frequency alone, until some head finds a word's neighbors. With random position
embeddings, the head must learn to find the neighbors of each position
separately. In this module, position embeddings start as waves, for which a
shift by one position is the same rotation everywhere
(https://arxiv.org/abs/1706.03762, Section 3.5). Heads start with such
rotations. One more head starts by attending to other occurrences of the same
word; without this head, a small model does not learn to compare two texts.
Training may change all of these weights.

Shapes: T positions, W position width, H hidden width, D head width, E embedding
width, V vocabulary.
"""

import keras
import numpy as np

from albert_tf.base.packages import need
from albert_tf.data.records.metadata import (
    Metadata,
    log_frequencies,
    read_piece_counts,
)
from albert_tf.model.albert import AlbertEmbeddings, AlbertModel
from albert_tf.text.tokenizers import tokenizer_in

# Score of the position that a head attends to, relative to other positions. If
# all other positions scored 0, the share of this position in the softmax over T
# positions would be exp(6) / (exp(6) + T - 1), with exp(6) = 403: 0.86 for T =
# 64, and 0.44 for T = 512. In a new model (E = 128, random words), the other
# scores have a standard deviation of 1.4, and the measured shares are about 0.7
# and 0.2. The value is chosen, not derived; half of this value did equally well
# in trials (docs/experiments.md).
PEAK = 6.0

# Scores of the head for repeats. A word has the score SAME_WORD with each of
# its occurrences. This includes its own position, where SAME_POSITION must
# therefore outweigh SAME_WORD: 9 - 14 = -5, and exp(-5) = 0.007, compared with
# 1 for a position of score 0. SEPARATOR lies between two bounds: above log T
# (6.2 for T = 512), so that a word without a repeat attends to [SEP], and below
# SAME_WORD, so that a repeat outweighs [SEP]. With two [SEP] that contribute
# exp(7) = 1,097 each, and scores of 0 elsewhere, a repeat that contributes
# exp(9) = 8,103 has a share of 0.75 for T = 512. Without a repeat, the two
# [SEP] have a share of 0.81. In a new model (E = 128), scores of other words
# have a standard deviation of 2 to 3, and the measured shares are about 0.4 and
# 0.2. Within these bounds, the values are chosen, not derived.
SAME_WORD, SAME_POSITION, SEPARATOR = 9.0, -14.0, 7.0

# Length of the vector that full attention to [SEP] adds to a state. The norm of
# a state is about sqrt(H): 16 for H = 256, and 28 for H = 768. The state of a
# word without a repeat therefore shifts by up to a quarter or a seventh of its
# norm, respectively. The value is chosen, not derived.
MARK = 4.0

LONGEST_WAVE = 1024  # in positions


def frequencies(count: int, seed: int) -> np.ndarray:
    """Return the frequencies of waves in radians per position, highest first.

    Half of the frequencies cover the range from pi to 0: one is drawn at random
    from each of several equal intervals, so no two distances look alike. The
    other half are long waves with geometric spacing.
    """
    short = count // 2
    jittered = np.arange(short) + np.random.default_rng(seed).uniform(
        size=short
    )
    long = np.geomspace(0.5, 2 * np.pi / LONGEST_WAVE, count - short)
    return np.concatenate([jittered[::-1] * np.pi / short, long])


def waves(positions: int, radians: np.ndarray) -> np.ndarray:
    """Return a table [T, W] of cosines and sines, with a mean square of 1."""
    angles = np.arange(positions)[:, None] * radians
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return np.sqrt(2.0) * table.reshape(positions, -1)


def head_kernels(
    radians: np.ndarray, size: int, offset: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a head's query and key kernels [W, D].

    For positions encoded by `waves`, the score of position j from position i
    is `PEAK` at j = i + offset.
    """
    short = len(radians) // 2
    pairs = min(size // 2, short)
    query, key = np.zeros((2, 2 * len(radians), size))
    wave_indices = np.linspace(0, short - 1, pairs).round().astype(int)
    for column, wave in enumerate(wave_indices):
        angle = radians[wave] * offset
        cos, sin = np.cos(angle), np.sin(angle)
        block = np.s_[2 * wave : 2 * wave + 2, 2 * column : 2 * column + 2]
        query[block], key[block] = [[cos, sin], [-sin, cos]], np.eye(2)
    # A head that is too narrow for a wave keeps its random weights.
    scale = np.sqrt(PEAK * np.sqrt(size) / max(2 * pairs, 1))
    return scale * query, scale * key


def offsets(heads: int) -> list[int]:
    """Return the offsets that heads attend to: -1, 1, -2, 2 and so on."""
    return [(head // 2 + 1) * (2 * (head % 2) - 1) for head in range(heads)]


def position_gain(embeddings: AlbertEmbeddings) -> float:
    """Return the factor by which layer norm scales the summed embeddings."""
    words = np.var(embeddings.word_embeddings.numpy())
    if not embeddings.norm_first:  # words are projected before the sum
        kernel = embeddings.projection.kernel.numpy()
        words *= kernel.shape[0] * np.var(kernel)
    types = np.var(embeddings.token_type_embeddings.numpy())
    positions = np.mean(embeddings.position_embeddings.numpy() ** 2)
    return 1.0 / np.sqrt(words + types + positions)


def start_positions(
    embeddings: AlbertEmbeddings, scale: float, seed: int = 0
) -> np.ndarray:
    """Initialize position embeddings as waves; return their `frequencies`.

    Args:
      embeddings: the embeddings of a new model. The projection, if any, is
        rescaled to preserve norms: otherwise the first layer would receive
        smaller states than the other layers, which share its weights.
      scale: root mean square of the position embeddings.
      seed: the seed for the frequencies.
    """
    table = embeddings.position_embeddings.numpy()
    positions, width = table.shape
    radians = frequencies(width // 2, seed)
    table[:, : 2 * len(radians)] = scale * waves(positions, radians)
    embeddings.position_embeddings.assign(table)
    if embeddings.norm_first and embeddings.projection is not None:
        kernel = embeddings.projection.kernel.numpy()
        kernel /= np.sqrt(width * np.var(kernel))
        embeddings.projection.kernel.assign(kernel)
    return radians


def readout(embeddings: AlbertEmbeddings) -> np.ndarray:
    """Return the matrix [H, W] that recovers embeddings from encoder inputs."""
    if embeddings.norm_first and embeddings.projection is not None:
        return np.linalg.pinv(embeddings.projection.kernel.numpy())
    return np.eye(embeddings.position_embeddings.shape[1])


def add_to(variable: keras.Variable, index: object, delta: np.ndarray) -> None:
    """Add an array to a part of a variable."""
    value = variable.numpy()
    value[index] += delta
    variable.assign(value)


def look_at_neighbors(
    albert: AlbertModel, heads: int, radians: np.ndarray, scale: float
) -> None:
    """Initialize heads of a new model to attend to each word's neighbors.

    Args:
      albert: the model; the query and key kernels of every layer are changed.
      heads: number of heads to initialize in each layer, starting with the
        first.
      radians, scale: frequencies and scale of the position embeddings.
    """
    size, embeddings = albert.config.head_size, albert.embeddings
    gain = scale * position_gain(embeddings)
    waves_reader = readout(embeddings)[:, : 2 * len(radians)] / gain
    kernels = [head_kernels(radians, size, o) for o in offsets(heads)]
    query, key = (
        waves_reader @ np.concatenate(k, axis=1)
        for k in zip(*kernels, strict=True)
    )
    columns = np.s_[:, : heads * size]
    for attention in albert.encoder.attentions.values():
        add_to(attention.query.kernel, columns, query)
        add_to(attention.key.kernel, columns, key)


def has_room_for_repeats(albert: AlbertModel) -> bool:
    """Return whether the embeddings suit a head that attends to repeats.

    The embeddings must be wide enough, and normalized before the projection.
    """
    config = albert.config
    wide = config.embedding_size >= 2 * config.head_size >= 16
    return albert.embeddings.norm_first and wide


def reserved_indices(width: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the dimensions reserved for positions and for words.

    The D / 2 dimensions of every second short wave are reserved for positions,
    and the last D / 2 - 1 dimensions for words.

    Args:
      width: E, the embedding width.
      size: D, the head width.
    """
    waves_begin = 4 * np.arange(size // 4)
    position_dims = np.sort(np.concatenate([waves_begin, waves_begin + 1]))
    return position_dims, np.arange(width - size // 2 + 1, width)


def reserve_dimensions(embeddings: AlbertEmbeddings, size: int) -> None:
    """Reserve dimensions of the tables [n, E] for positions and for words.

    A head needs these dimensions to distinguish another occurrence of a word
    from the word itself. Afterwards, all words have the same norm in the
    dimensions reserved for words, and the same norm in the shared dimensions.
    """
    rows = embeddings.word_embeddings.numpy()
    position_dims, word_dims = reserved_indices(rows.shape[1], size)
    rows[:, position_dims] = 0.0
    shared_dims = np.delete(
        np.arange(rows.shape[1]), np.union1d(position_dims, word_dims)
    )
    scale = np.sqrt(np.mean(embeddings.word_embeddings.numpy() ** 2))
    for part in (word_dims, shared_dims):
        norm = np.sqrt(np.mean(rows[:, part] ** 2, axis=1, keepdims=True))
        rows[:, part] *= np.sqrt(np.mean(norm**2)) / np.maximum(norm, 1e-9)
    rows *= scale / np.sqrt(np.mean(rows**2))
    embeddings.word_embeddings.assign(rows)
    types = embeddings.token_type_embeddings.numpy()
    types[:, np.union1d(position_dims, word_dims)] = 0.0
    embeddings.token_type_embeddings.assign(types)
    table = embeddings.position_embeddings.numpy()
    table[:, word_dims] = 0.0
    embeddings.position_embeddings.assign(table)


def look_at_repeats(
    albert: AlbertModel, head: int, sep_id: int, scale: float
) -> None:
    """Initialize a head to attend to repeats of a word or, if none, to [SEP].

    Args:
      albert: a new model whose embeddings were passed to
        `reserve_dimensions`; the attention weights of every layer change.
      head: index of the head.
      sep_id: id of [SEP].
      scale: root mean square of the position embeddings.
    """
    size, embeddings = albert.config.head_size, albert.embeddings
    gain, root = position_gain(embeddings), np.sqrt(size)
    rows = gain * embeddings.word_embeddings.numpy()
    position_dims, word_dims = reserved_indices(rows.shape[1], size)
    same_word = np.mean(np.sum(rows[:, word_dims] ** 2, axis=1))
    same_position = len(position_dims) * (scale * gain) ** 2
    position_columns = np.arange(len(position_dims))
    word_columns = len(position_dims) + np.arange(len(word_dims))
    key = np.zeros([rows.shape[1], size])
    key[word_dims, word_columns] = np.sqrt(SAME_WORD * root / same_word)
    key[position_dims, position_columns] = np.sqrt(
        -SAME_POSITION * root / same_position
    )
    query = key.copy()
    query[position_dims] *= -1
    separator = rows[sep_id] / np.sum(rows[sep_id] ** 2)
    key[:, -1] = separator * np.sqrt(SEPARATOR * root)
    # A direction that marks words without a repeat.
    mark = np.random.default_rng(0).normal(size=albert.config.hidden_size)
    mark *= MARK / np.linalg.norm(mark)
    first, last = head * size, (head + 1) * size
    read = readout(embeddings)
    for attention in albert.encoder.attentions.values():
        add_to(attention.query.kernel, np.s_[:, first:last], read @ query)
        add_to(attention.query.bias, last - 1, np.sqrt(SEPARATOR * root))
        add_to(attention.key.kernel, np.s_[:, first:last], read @ key)
        add_to(attention.value.kernel, np.s_[:, first], read @ separator)
        add_to(attention.output_projection.kernel, first, mark)


# Root mean square of the initial rows of words, positions and segments. With a
# learning rate that suits the encoder, each step would change the direction of
# smaller rows too much.
SCALE = 0.1


def start_words(model, data_dir: str, metadata: Metadata) -> int:
    """Initialize word embeddings from neighbors; return the number of new rows.

    Special and rare pieces keep their random rows. These rows and the rows of
    segments are scaled to the size of the new rows.
    """
    need("`initial_weights`", "scipy", "sklearn", initial_weights="informed")
    from albert_tf.data.records.piece_vectors import piece_vectors, read_tokens

    tables = model.albert.embeddings
    words, segments = tables.word_embeddings, tables.token_type_embeddings
    # The main components come last, in the dimensions reserved for words.
    vectors = piece_vectors(read_tokens(data_dir, metadata), *words.shape)
    vectors = vectors[:, ::-1]
    has_vector = vectors.any(axis=1, keepdims=True)
    growth = SCALE / model.config.initializer_range
    segments.assign(growth * segments.numpy())
    words.assign(np.where(has_vector, SCALE * vectors, growth * words.numpy()))
    return int(has_vector.sum())


def start_heads(albert, data_dir: str) -> str:
    """Initialize heads to attend to useful positions; return a description."""
    # Kernels depend on the size of the word vectors, so `start_words` must run
    # first.
    radians = start_positions(albert.embeddings, SCALE)
    heads = (albert.config.num_attention_heads + 1) // 2
    tokenizer = tokenizer_in(data_dir)
    repeats = (
        tokenizer is not None
        and has_room_for_repeats(albert)
        and heads < albert.config.num_attention_heads
    )
    if repeats:
        reserve_dimensions(albert.embeddings, albert.config.head_size)
    look_at_neighbors(albert, heads, radians, SCALE)
    if repeats:
        look_at_repeats(albert, heads, tokenizer.sep_id, SCALE)
    repeat_head = ", one to the same word elsewhere" if repeats else ""
    neighbor_heads = (
        "1 head that attends" if heads == 1 else f"{heads} heads that attend"
    )
    return f"{neighbor_heads} to a word's neighbors{repeat_head}"


def start_new(model, data_dir: str, metadata: Metadata) -> list[str]:
    """Initialize a model's words, heads and output biases from its records.

    See `piece_vectors` for the words, and Meister et al.,
    https://arxiv.org/abs/2212.09686, for the biases.

    Args:
      model: an `AlbertForPretraining` or `AlbertForPhonemes` with random
        weights.
      data_dir: the folder of records.
      metadata: the records' metadata.

    Returns:
      Lines to print.
    """
    words = start_words(model, data_dir, metadata)
    lines = [
        f"Random weights, except {start_heads(model.albert, data_dir)}",
        f"and {words:,} pieces with the vectors of their neighbors",
    ]
    counts = read_piece_counts(data_dir, model.config.vocab_size)
    if counts is not None:
        model.output_bias.assign(log_frequencies(counts))
        lines += ["and the output bias at the pieces' log frequencies"]
    return lines
