"""Layout of segment pairs as rows of tokens, for the builder and readers.

Glossary: N tokens, n pairs, T tokens per example.
"""

import dataclasses

import numpy as np

from albert_tf.data.masking import Instances


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

    def followed_by(self, others: "Pairs") -> "Pairs":
        """Return these pairs followed by others."""
        mine, theirs = vars(self).values(), vars(others).values()
        both = zip(mine, theirs, strict=True)
        return Pairs(*map(np.concatenate, both))

    def paired(self) -> np.ndarray:
        """Return whether each pair has a B, [n] bool."""
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
    place = np.arange(max_seq_length)
    a_size = (pairs.a_end - pairs.a_start)[:, None]
    lengths = a_size + (pairs.b_end - pairs.b_start)[:, None] + 2
    lengths += pairs.paired()[:, None]
    last = lengths - 1
    in_b = place > a_size + 1
    real = place < lengths
    source = np.where(
        in_b,
        (pairs.b_start[:, None] - a_size - 2) + place,
        (pairs.a_start[:, None] - 1) + place,
    )
    separators = (place == a_size + 1) | (place == last)
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
