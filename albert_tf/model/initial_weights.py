"""Where the heads of a new model look before it has learnt anything.

A masked language model stands on a plateau, at the frequencies of the pieces,
until some head knows where a word's neighbours are. With random tables each
position must learn that apart. Here positions begin as waves, for which "one
before" is the same rotation everywhere (https://arxiv.org/abs/1706.03762,
Section 3.5), and heads begin with such rotations. Another head begins at the
same word elsewhere, without which a small model does not come to compare two
texts. These are only the first values of ordinary weights: training may change
all of them.

Shapes: T positions, W their width, H hidden width, D head width, E embedding
width, V vocabulary.
"""

import keras
import numpy as np

from albert_tf.model.albert import AlbertEmbeddings, AlbertModel

# The score of the place that a head looks at; other places have about 0.
PEAK = 6.0

# Scores of a head at repeats: of a word with itself, less at its own place,
# and of [SEP], which is what it looks at where no word stands again.
SAME_WORD, SAME_PLACE, SEPARATOR = 9.0, -14.0, 7.0

# How much it adds to the states where it looks at [SEP]; their norm is about
# the root of H.
MARK = 4.0

LONGEST_WAVE = 1024  # positions


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """Return a copy of a variable's value."""
    return np.array(keras.ops.convert_to_numpy(variable))


def frequencies(count: int, seed: int) -> np.ndarray:
    """Return the radians per position of waves, the short waves first.

    The frequencies of one half are spread evenly from pi to 0, each drawn in
    its place so that no two distances look alike; the others are of ever
    longer waves.
    """
    short = count // 2
    places = np.arange(short) + np.random.default_rng(seed).uniform(size=short)
    long = np.geomspace(0.5, 2 * np.pi / LONGEST_WAVE, count - short)
    return np.concatenate([places[::-1] * np.pi / short, long])


def waves(positions: int, radians: np.ndarray) -> np.ndarray:
    """Return a table [T, W] of cosines and sines in turn, of mean square 1."""
    angles = np.arange(positions)[:, None] * radians
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return np.sqrt(2.0) * table.reshape(positions, -1)


def head_kernels(
    radians: np.ndarray, size: int, offset: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return kernels [W, D] of the query and the key of a head.

    Its score of place j from place i, both waves as `waves` makes them, is
    `PEAK` at j = i + offset.
    """
    short = len(radians) // 2
    pairs = min(size // 2, short)
    query, key = np.zeros((2, 2 * len(radians), size))
    chosen = np.linspace(0, short - 1, pairs).round().astype(int)
    for column, wave in enumerate(chosen):
        angle = radians[wave] * offset
        cos, sin = np.cos(angle), np.sin(angle)
        block = np.s_[2 * wave : 2 * wave + 2, 2 * column : 2 * column + 2]
        query[block], key[block] = [[cos, sin], [-sin, cos]], np.eye(2)
    # A head too narrow for a wave keeps its random weights.
    scale = np.sqrt(PEAK * np.sqrt(size) / max(2 * pairs, 1))
    return scale * query, scale * key


def offsets(heads: int) -> list[int]:
    """Return the places at which heads look: -1, 1, -2, 2 and so on."""
    return [(head // 2 + 1) * (2 * (head % 2) - 1) for head in range(heads)]


def position_gain(embeddings: AlbertEmbeddings) -> float:
    """Return what the norm multiplies the sum of the random tables with."""
    words = np.var(to_numpy(embeddings.word_embeddings))
    if not embeddings.norm_first:  # words are projected before
        kernel = to_numpy(embeddings.projection.kernel)
        words *= kernel.shape[0] * np.var(kernel)
    types = np.var(to_numpy(embeddings.token_type_embeddings))
    places = np.mean(to_numpy(embeddings.position_embeddings) ** 2)
    return 1.0 / np.sqrt(words + types + places)


def start_positions(
    embeddings: AlbertEmbeddings, scale: float, seed: int = 0
) -> np.ndarray:
    """Let positions begin as waves; return these, see `frequencies`.

    Args:
      embeddings: of a new model; their projection, if they have one, is made
        to keep the size of what it maps: else the first layer would see
        smaller states than the others, with which it shares its weights.
      scale: root of the mean square of the positions.
      seed: of the waves.
    """
    table = to_numpy(embeddings.position_embeddings)
    positions, width = table.shape
    radians = frequencies(width // 2, seed)
    table[:, : 2 * len(radians)] = scale * waves(positions, radians)
    embeddings.position_embeddings.assign(table)
    if embeddings.norm_first and embeddings.projection is not None:
        kernel = to_numpy(embeddings.projection.kernel)
        kernel /= np.sqrt(width * np.var(kernel))
        embeddings.projection.kernel.assign(kernel)
    return radians


def reader(embeddings: AlbertEmbeddings) -> np.ndarray:
    """Return what reads the normed embeddings, [H, W], in the first states."""
    if embeddings.norm_first and embeddings.projection is not None:
        return np.linalg.pinv(to_numpy(embeddings.projection.kernel))
    return np.eye(embeddings.position_embeddings.shape[1])


def add_to(variable: keras.Variable, place: object, more: np.ndarray) -> None:
    """Add to a part of a variable."""
    begin = to_numpy(variable)
    begin[place] += more
    variable.assign(begin)


def look_at_neighbours(
    albert: AlbertModel, heads: int, radians: np.ndarray, scale: float
) -> None:
    """Let heads of a new model begin at the places around each word.

    Args:
      albert: what the heads need is added to the queries and keys of every
        layer.
      heads: how many of each layer's heads, the first ones.
      radians, scale: of its positions.
    """
    size, embeddings = albert.config.head_size, albert.embeddings
    gain = scale * position_gain(embeddings)
    waves_reader = reader(embeddings)[:, : 2 * len(radians)] / gain
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
    """Return whether embeddings have dimensions to keep apart for a head."""
    config = albert.config
    wide = config.embedding_size >= 2 * config.head_size >= 16
    return albert.embeddings.norm_first and wide


def kept_apart(width: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the dimensions for places alone, and those for words alone.

    Those for places are of every second short wave, D / 2 of them; those for
    words are the last D / 2 - 1.
    """
    waves_begin = 4 * np.arange(size // 4)
    places = np.sort(np.concatenate([waves_begin, waves_begin + 1]))
    return places, np.arange(width - size // 2 + 1, width)


def keep_apart(embeddings: AlbertEmbeddings, size: int) -> None:
    """Keep dimensions of tables [n, E] for places alone, and words alone.

    Only so can a head tell a word that stands elsewhere from the word itself.
    A word's rows have one size in both groups of dimensions that are left.
    """
    rows = to_numpy(embeddings.word_embeddings)
    places, words = kept_apart(rows.shape[1], size)
    rows[:, places] = 0.0
    others = np.delete(np.arange(rows.shape[1]), np.union1d(places, words))
    scale = np.sqrt(np.mean(to_numpy(embeddings.word_embeddings) ** 2))
    for part in (words, others):
        norm = np.sqrt(np.mean(rows[:, part] ** 2, axis=1, keepdims=True))
        rows[:, part] *= np.sqrt(np.mean(norm**2)) / np.maximum(norm, 1e-9)
    rows *= scale / np.sqrt(np.mean(rows**2))
    embeddings.word_embeddings.assign(rows)
    types = to_numpy(embeddings.token_type_embeddings)
    types[:, np.union1d(places, words)] = 0.0
    embeddings.token_type_embeddings.assign(types)
    table = to_numpy(embeddings.position_embeddings)
    table[:, words] = 0.0
    embeddings.position_embeddings.assign(table)


def look_at_repeats(
    albert: AlbertModel, head: int, sep_id: int, scale: float, seed: int = 0
) -> None:
    """Let a head begin at the same word elsewhere, and at [SEP] without one.

    Args:
      albert: a new model whose embeddings `keep_apart` was called with; what
        the head needs is added to every layer.
      head: which.
      sep_id: of [SEP].
      scale: root of the mean square of the positions.
      seed: of the direction that marks words without a repeat.
    """
    size, embeddings = albert.config.head_size, albert.embeddings
    gain, root = position_gain(embeddings), np.sqrt(size)
    rows = gain * to_numpy(embeddings.word_embeddings)
    places, words = kept_apart(rows.shape[1], size)
    same_word = np.mean(np.sum(rows[:, words] ** 2, axis=1))
    same_place = len(places) * (scale * gain) ** 2
    of_place = np.arange(len(places))
    of_word = len(places) + np.arange(len(words))
    key = np.zeros([rows.shape[1], size])
    key[words, of_word] = np.sqrt(SAME_WORD * root / same_word)
    key[places, of_place] = np.sqrt(-SAME_PLACE * root / same_place)
    query = key.copy()
    query[places] *= -1
    separator = rows[sep_id] / np.sum(rows[sep_id] ** 2)
    key[:, -1] = separator * np.sqrt(SEPARATOR * root)
    mark = np.random.default_rng(seed).normal(size=albert.config.hidden_size)
    mark *= MARK / np.linalg.norm(mark)
    first, last = head * size, (head + 1) * size
    read = reader(embeddings)
    for attention in albert.encoder.attentions.values():
        add_to(attention.query.kernel, np.s_[:, first:last], read @ query)
        add_to(attention.query.bias, last - 1, np.sqrt(SEPARATOR * root))
        add_to(attention.key.kernel, np.s_[:, first:last], read @ key)
        add_to(attention.value.kernel, np.s_[:, first], read @ separator)
        add_to(attention.output_projection.kernel, first, mark)
