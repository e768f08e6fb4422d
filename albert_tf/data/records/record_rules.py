"""What a record must contain: the lengths, types and values of its features.

The features are described in `metadata`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf.data.layout import id_type
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records.metadata import (
    LABELS,
    MASKED_NAMES,
    PHONEMES,
    Metadata,
)


def value_limits(metadata: Metadata) -> dict[str, int]:
    """Return {feature of integers: number of legal values, or 0 if unknown}.

    Legal values start at 0. The features are those of phoneme records, or of
    both static and dynamic records.
    """
    ids, tokens = metadata.vocab_size, metadata.max_seq_length
    if metadata.task == PHONEMES:
        return {"symbol_ids": ids, "word_ids": metadata.statistics[LABELS]}
    limits = dict.fromkeys(("token_ids", "input_ids", "masked_lm_ids"), ids)
    flags = "input_mask", "segment_ids", "next_sentence_labels"
    return (
        limits
        | dict.fromkeys(flags, 2)
        | {"masked_lm_positions": tokens, "segment_lengths": tokens - 2}
    )


def legal(values: Any, limit: int) -> Any:
    """Return whether integers are legal, as a boolean array or tensor.

    Args:
      values: an array or a tensor.
      limit: the number of legal values, or 0 if unknown.
    """
    return (values >= 0) & ((values < limit) | (limit == 0))


def static_sizes(metadata: Metadata) -> dict[str, int]:
    """Return the number of values of each feature in a padded record."""
    if metadata.task == PHONEMES:
        return dict.fromkeys(value_limits(metadata), metadata.max_seq_length)
    return (
        dict.fromkeys(MASKED_NAMES[:3], metadata.max_seq_length)
        | dict.fromkeys(MASKED_NAMES[3:], metadata.max_predictions_per_seq)
        | {"next_sentence_labels": 1}
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


def _wrong_lists(feature, sizes: dict[str, int]) -> str:
    """Describe lists of a wrong length or type; return "" if there are none."""
    wrong = []
    for name, size in sizes.items():
        values, kind = feature[name], TYPES.get(name, int)
        if len(values) != size:
            wrong.append(f"`{name}` has {len(values)} values instead of {size}")
        elif size and type(values[0]) is not kind:
            found = type(values[0]).__name__
            wrong.append(
                f"`{name}` contains {found} instead of {kind.__name__}"
            )
    return "; ".join(wrong)


def _wrong_values(name: str, values: Sequence, limit: int) -> str:
    """Describe an illegal value of a feature; return "" if there is none."""
    values = np.asarray(values)
    illegal = values[~legal(values, limit)]
    legal_values = f"from 0 to {limit - 1}" if limit else "0 or greater"
    return (
        f"`{name}` contains {illegal[0]}, but values must be {legal_values}"
        if len(illegal)
        else ""
    )


def _wrong_predictions(feature) -> str:
    """Describe an illegal weight or a prediction at padding.

    Return "" if there is neither.

    Args:
      feature: a static record whose integers are legal.
    """
    weights = np.array(feature["masked_lm_weights"])
    if not np.all((weights >= 0) & np.isfinite(weights)):
        return "`masked_lm_weights` contains an illegal weight"
    places = np.array(feature["masked_lm_positions"])[weights > 0]
    padded = places[np.array(feature["input_mask"])[places] == 0]
    return (
        f"position {padded[0]} is predicted but padded" if len(padded) else ""
    )


def _wrong_padded(feature, metadata: Metadata) -> str:
    """Describe the fault in a padded record; return "" if there is none."""
    sizes = static_sizes(metadata)
    if wrong := _wrong_lists(feature, sizes):
        return wrong
    for name, limit in value_limits(metadata).items():
        if name in sizes:
            if wrong := _wrong_values(name, feature[name], limit):
                return wrong
    if "masked_lm_weights" in sizes:
        return _wrong_predictions(feature)
    return ""


def _wrong_dynamic(feature, metadata: Metadata) -> str:
    """Describe the fault in a dynamic record; return "" if there is none."""
    if wrong := _wrong_lists(feature, DYNAMIC_SIZES):
        return wrong
    tokens, room = sum(feature["segment_lengths"]), metadata.max_seq_length - 3
    if not 0 < tokens <= room:
        return f"`segment_lengths` sum to {tokens} instead of 1 to {room}"
    dtype = id_type(metadata.vocab_size)
    bytes_due = {
        "token_ids": tokens * dtype.itemsize,
        "word_starts": -(-tokens // 8),
    }
    for name, due in bytes_due.items():
        if (size := len(feature[name][0])) != due:
            return f"`{name}` is {size} bytes long for {tokens} tokens"
    values = feature | {
        "token_ids": np.frombuffer(feature["token_ids"][0], dtype)
    }
    names = "segment_lengths", "token_ids", "next_sentence_labels"
    limits = value_limits(metadata)
    wrong = (_wrong_values(x, values[x], limits[x]) for x in names)
    return next(filter(None, wrong), "")


def record_fault(
    feature: dict[str, Sequence], metadata: Metadata, form: str
) -> str:
    """Describe how a record contradicts its metadata; return "" if it does not.

    Args:
      feature: the parsed record; see `tfrecord.parse`.
      metadata: the metadata of the record's folder.
      form: `PHONEMES`, `STATIC` or `DYNAMIC`.
    """
    wrong_in = _wrong_dynamic if form == DYNAMIC else _wrong_padded
    return wrong_in(feature, metadata)
