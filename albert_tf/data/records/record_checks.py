"""Checks of a record against its metadata.

This module needs only NumPy; `parsing.py` performs the same checks in a graph.
"""

from collections.abc import Sequence

import numpy as np

from albert_tf.data.layout import id_type
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records.metadata import (
    Metadata,
    are_legal,
    static_sizes,
    value_limits,
)

# The number of values of each feature in a dynamic record.
DYNAMIC_SIZES = {
    "token_ids": 1,
    "word_starts": 1,
    "segment_lengths": 2,
    "next_sentence_labels": 1,
}
# Types of a feature's values; all other features contain integers.
TYPES = {"token_ids": bytes, "word_starts": bytes, "masked_lm_weights": float}


def _check_lists(feature, sizes: dict[str, int]) -> None:
    """Raise `ValueError` for lists of the wrong length or type."""
    wrong = []
    for name, size in sizes.items():
        values, kind = feature[name], TYPES.get(name, int)
        if len(values) != size:
            wrong.append(f"`{name}` has {len(values)} values instead of {size}")
        elif size and type(values[0]) is not kind:
            actual = type(values[0]).__name__
            wrong.append(
                f"`{name}` contains {actual} instead of {kind.__name__}"
            )
    if wrong:
        raise ValueError("; ".join(wrong))


def _check_values(name: str, values: Sequence, limit: int) -> None:
    """Raise `ValueError` for an illegal value of a feature."""
    values = np.asarray(values)
    illegal = values[~are_legal(values, limit)]
    if len(illegal):
        legal_values = f"from 0 to {limit - 1}" if limit else "0 or greater"
        raise ValueError(
            f"`{name}` contains {illegal[0]}, but values must be {legal_values}"
        )


def _check_predictions(feature) -> None:
    """Raise `ValueError` for an illegal weight or a prediction at padding.

    `feature` is a static record whose integers are legal.
    """
    weights = np.array(feature["masked_lm_weights"])
    if not np.all((weights >= 0) & np.isfinite(weights)):
        raise ValueError("`masked_lm_weights` contains an illegal weight")
    positions = np.array(feature["masked_lm_positions"])[weights > 0]
    padded = positions[np.array(feature["input_mask"])[positions] == 0]
    if len(padded):
        raise ValueError(f"padding is predicted at position {padded[0]}")


def _check_padded(feature, metadata: Metadata) -> None:
    sizes = static_sizes(metadata)
    _check_lists(feature, sizes)
    for name, limit in value_limits(metadata).items():
        if name in sizes:
            _check_values(name, feature[name], limit)
    if "masked_lm_weights" in sizes:
        _check_predictions(feature)


def _check_dynamic(feature, metadata: Metadata) -> None:
    _check_lists(feature, DYNAMIC_SIZES)
    tokens, room = sum(feature["segment_lengths"]), metadata.max_seq_length - 3
    if not 0 < tokens <= room:
        raise ValueError(
            f"`segment_lengths` sum to {tokens} instead of 1 to {room}"
        )
    dtype = id_type(metadata.vocab_size)
    sizes = {
        "token_ids": tokens * dtype.itemsize,
        "word_starts": -(-tokens // 8),
    }
    for name, expected in sizes.items():
        if (size := len(feature[name][0])) != expected:
            raise ValueError(
                f"`{name}` is {size} bytes long for {tokens} tokens"
            )
    ids = np.frombuffer(feature["token_ids"][0], dtype)
    values, limits = feature | {"token_ids": ids}, value_limits(metadata)
    for name in ("segment_lengths", "token_ids", "next_sentence_labels"):
        _check_values(name, values[name], limits[name])


def check_record(
    feature: dict[str, Sequence], metadata: Metadata, form: str
) -> None:
    """Raise `ValueError` if a record contradicts its metadata.

    Args:
      feature: the parsed record; see `tfrecord.parse`.
      metadata: the metadata of the record's folder.
      form: `PHONEMES`, `STATIC` or `DYNAMIC`.
    """
    check = _check_dynamic if form == DYNAMIC else _check_padded
    check(feature, metadata)
