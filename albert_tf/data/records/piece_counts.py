"""How often each piece of the vocabulary stands in the text of records."""

import json

import numpy as np

from albert_tf.base import files
from albert_tf.base.errors import require

PIECE_COUNTS_FILE = "piece_counts.json"


def write_piece_counts(data_dir: str, counts: list[int]) -> None:
    """Write the counts [V] beside the records."""
    path = files.join(data_dir, PIECE_COUNTS_FILE)
    files.write_text(path, json.dumps(counts) + "\n")


def read_piece_counts(data_dir: str, vocab_size: int) -> np.ndarray | None:
    """Return the counts [V] of a model's vocabulary, None if not known.

    Records of the released code, and of earlier builders, have none.
    """
    path = files.join(data_dir, PIECE_COUNTS_FILE)
    if not files.exists(path):
        return None
    counts = np.array(files.read_json(path, f"`{PIECE_COUNTS_FILE}`"))
    require(
        counts.ndim == 1
        and np.issubdtype(counts.dtype, np.integer)
        and 0 < len(counts) <= vocab_size
        and counts.min() >= 0,
        f"`{PIECE_COUNTS_FILE}` must list a whole number for each piece of "
        "the model's vocabulary; make the records again.",
        file=path,
        vocab_size=vocab_size,
    )
    return np.pad(counts, (0, vocab_size - len(counts)))


def log_frequencies(counts: np.ndarray) -> np.ndarray:
    """Return float32 [V] log probabilities; each piece counts once more."""
    smoothed = counts + 1.0
    return np.log(smoothed / smoothed.sum()).astype(np.float32)
