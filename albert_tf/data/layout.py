"""The layout of segment pairs as rows of tokens.

Both the builder and the readers of dynamic records lay out pairs. For the
readers, `Masker` also masks the rows.

Shapes: N tokens, n pairs, B batch size, T tokens per example, P prediction
slots, R = T - 3 tokens of both segments. Except in shapes, B is the second
segment of a pair, and A is the first.
"""

import dataclasses

import numpy as np

from albert_tf.base.errors import require
from albert_tf.data import masking
from albert_tf.data.masking import Draws, Instances, Words
from albert_tf.data.records.metadata import LABELS, Metadata
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
        return Pairs(*(column[index] for column in vars(self).values()))

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
        """Return these pairs followed by other pairs."""
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
        "A folder of unmasked records must contain the tokenizer, or the files "
        "symbols.json and words.json, of its build; make or copy the records "
        "again.",
        data_dir=f"{data_dir} with a different vocabulary",
    )
    return vocabulary


class Masker:
    """A callable that lays out and masks batches of dynamic examples.

    Args:
      data_dir: the folder of the records and their tokenizer.
      metadata: the folder's metadata.
      seed: the seed for masking.
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
