"""Where the heads of a new model look before it has learnt anything.

A masked language model stands on a plateau, at the frequencies of the pieces,
until some head knows where a word's neighbours are. With random tables each
position must learn that apart. Here positions begin as waves, for which "one
before" is the same rotation everywhere (https://arxiv.org/abs/1706.03762,
Section 3.5), and heads begin with such rotations. These are only the first
values of ordinary weights: training may change all of them.

Shapes: T positions, W their width, H hidden width, D head width.
"""

import keras
import numpy as np

from albert_tf.model.albert import AlbertModel
from albert_tf.model.encoder_blocks import AlbertEmbeddings

# The score of the place that a head looks at; other places have about 0.
PEAK = 6.0

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


def look_at_neighbours(
    albert: AlbertModel, heads: int, scale: float, seed: int = 0
) -> None:
    """Let heads of a new model begin at the places around each word.

    Args:
      albert: with random weights; its positions are replaced, and what the
        heads need is added to the queries and keys of every layer.
      heads: how many of each layer's heads.
      scale: root of the mean square of the positions.
      seed: of the waves.
    """
    size, embeddings = albert.config.head_size, albert.embeddings
    table = to_numpy(embeddings.position_embeddings)
    positions, width = table.shape
    radians = frequencies(width // 2, seed)
    even = 2 * len(radians)
    table[:, :even] = scale * waves(positions, radians)
    embeddings.position_embeddings.assign(table)
    reader = np.eye(width, even) / (scale * position_gain(embeddings))
    if embeddings.norm_first and embeddings.projection is not None:
        kernel = to_numpy(embeddings.projection.kernel)
        # Else the first layer would see smaller states than the others,
        # with which it shares its weights.
        kernel /= np.sqrt(width * np.var(kernel))
        embeddings.projection.kernel.assign(kernel)
        reader = np.linalg.pinv(kernel) @ reader  # [H, W]
    kernels = [head_kernels(radians, size, o) for o in offsets(heads)]
    queries, keys = (
        reader @ np.concatenate(k, axis=1) for k in zip(*kernels, strict=True)
    )
    for attention in albert.encoder.attentions.values():
        for kernel, more in (
            (attention.query.kernel, queries),
            (attention.key.kernel, keys),
        ):
            begin = to_numpy(kernel)
            begin[:, : heads * size] += more
            kernel.assign(begin)
