"""The contents of records: segment pairs as rows of tokens, and legal values.

The builder and the readers of dynamic records lay out pairs as rows; for these
readers, `Masker` also masks the rows. All readers check that the lengths, types
and values of a record's features match its metadata.

Shapes: N tokens, n pairs, B batch size, T tokens per example, P prediction
slots, R = T - 3 tokens of both segments. Elsewhere, A and B are the segments.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf.base.errors import require
from albert_tf.data import masking
from albert_tf.data.masking import DYNAMIC, Draws, Instances, Words
from albert_tf.data.records.metadata import (
    LABELS,
    MASKED_NAMES,
    PHONEMES,
    Metadata,
)
from albert_tf.text.symbols import load_vocabulary
from albert_tf.text.vocabulary import Vocabulary


def id_type(vocab_size: int) -> np.dtype:
    """Return the data type of ids in shards and dynamic records."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Segment pairs as ranges of the documents' tokens; each field is [n]."""

    a_start: np.ndarray
    a_end: np.ndarray
    b_start: np.ndarray
    b_end: np.ndarray
    swapped: np.ndarray  # bool, the sentence-order label

    def take(self, index: np.ndarray) -> "Pairs":
        """Return the pairs at the given indices."""
        fields = dataclasses.fields(self)
        return Pairs(*(getattr(self, f.name)[index] for f in fields))

    def swap(self, where: np.ndarray, labels: np.ndarray) -> "Pairs":
        """Return the pairs with A and B swapped where `where` [n] is true.

        `labels` [n] are the new labels.
        """
        return Pairs(
            np.where(where, self.b_start, self.a_start),
            np.where(where, self.b_end, self.a_end),
            np.where(where, self.a_start, self.b_start),
            np.where(where, self.a_end, self.b_end),
            labels,
        )

    def followed_by(self, other: "Pairs") -> "Pairs":
        """Return these pairs followed by others."""
        first, second = vars(self).values(), vars(other).values()
        columns = zip(first, second, strict=True)
        return Pairs(*map(np.concatenate, columns))

    def paired(self) -> np.ndarray:
        """Return bool [n], true for pairs with a segment B."""
        return self.b_end > self.b_start

    def tokens(self) -> int:
        """Return the number of tokens in all pairs."""
        a, b = self.a_end - self.a_start, self.b_end - self.b_start
        return int(np.sum(a + b))

    def __len__(self) -> int:
        return len(self.a_start)


def lay_out(
    pairs: Pairs,
    ids: np.ndarray,
    starts: np.ndarray,
    max_seq_length: int,
    tokenizer,
) -> Instances:
    """Lay out pairs as [CLS] A [SEP] B [SEP], or [CLS] A [SEP], with padding.

    Args:
      pairs: token ranges, with at most T - 3 tokens per pair.
      ids: [N], the tokens.
      starts: [N] bool, whether each token begins a word.
      max_seq_length: T.
      tokenizer: the tokenizer, with the ids of special tokens.
    """
    position = np.arange(max_seq_length)
    a_size = (pairs.a_end - pairs.a_start)[:, None]
    lengths = a_size + (pairs.b_end - pairs.b_start)[:, None] + 2
    lengths += pairs.paired()[:, None]
    last = lengths - 1
    in_b = position > a_size + 1
    real = position < lengths
    source = np.where(
        in_b,
        (pairs.b_start[:, None] - a_size - 2) + position,
        (pairs.a_start[:, None] - 1) + position,
    )
    separators = (position == a_size + 1) | (position == last)
    maskable = real & ~separators
    maskable[:, 0] = False
    source = np.where(maskable, source, 0)
    input_ids = ids[source].astype(np.int32)
    starts = starts[source] & maskable
    input_ids[~maskable] = tokenizer.pad_id
    input_ids[separators] = tokenizer.sep_id
    input_ids[:, 0] = tokenizer.cls_id
    starts |= separators
    starts[:, 0] = True
    return Instances(
        input_ids, in_b & real, maskable, starts, lengths[:, 0], pairs.swapped
    )


def vocabulary_beside(data_dir: str, metadata: Metadata) -> Vocabulary:
    """Return the tokenizer or the symbol table stored with unmasked records.

    Raises:
      InputError: if the records were made with a different vocabulary.
    """
    vocabulary = load_vocabulary(data_dir)
    require(
        vocabulary.fingerprint() == metadata.tokenizer_fingerprint
        and vocabulary.vocab_size == metadata.vocab_size
        and len(vocabulary.words) == metadata.statistics.get(LABELS, 0),
        "A folder of unmasked records must contain the tokenizer, or the "
        "symbols.json and words.json, with which they were made; make or copy "
        "the records again.",
        data_dir=f"{data_dir} with a different vocabulary",
    )
    return vocabulary


class Masker:
    """A callable that lays out and masks batches of dynamic examples.

    Args:
      data_dir: the folder of the records and their tokenizer.
      metadata: the folder's metadata.
      seed: seed of the masks.
    """

    def __init__(self, data_dir: str, metadata: Metadata, seed: int):
        self.tokenizer = vocabulary_beside(data_dir, metadata)
        self.words, self.seed = Words.of(self.tokenizer), seed
        self.config = metadata.masking_config()
        self.tokens = metadata.max_seq_length
        self.slots = metadata.max_predictions_per_seq

    def __call__(
        self,
        positions: np.ndarray,
        ids: np.ndarray,
        starts: np.ndarray,
        sizes: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        """Return the arrays of `MASKED_NAMES`: three [B, T], then three [B, P].

        Args:
          positions: [B], the positions of the examples in the stream.
          ids, starts, sizes: [B, R], [B, R], [B, 2], see
            `parsing.parse_dynamic`.
        """
        begin = np.arange(len(ids)) * ids.shape[1]
        middle, end = begin + sizes[:, 0], begin + sizes.sum(axis=1)
        pairs = Pairs(begin, middle, middle, end, np.zeros(len(ids), bool))
        text = ids.ravel(), starts.ravel()
        instances = lay_out(pairs, *text, self.tokens, self.tokenizer)
        draws = Draws(self.seed, positions)
        masked = masking.mask(
            instances, self.slots, self.config, self.words, draws
        )
        real = np.arange(self.tokens) < instances.lengths[:, None]
        return (
            masked.input_ids,
            real.astype(np.int32),
            instances.segment_ids.astype(np.int32),
            masked.positions,
            masked.labels,
            masked.weights,
        )


def value_limits(metadata: Metadata) -> dict[str, int]:
    """Return {integer feature: number of legal values, or 0 if unknown}.

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
    illegal = values[~legal(values, limit)]
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
