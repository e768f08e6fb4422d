"""One record of any form as plain arrays, for people and for checks.

Glossary: n tokens with special ones, m masked tokens.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from albert_tf.base.errors import InputError
from albert_tf.data.records import examples, framing


@dataclasses.dataclass(frozen=True)
class Example:
    """A record without padding; A ends with [SEP], and B too if there is one.

    Attributes:
      input_ids: [n] int64, masks applied. Dynamic records hold no special
        tokens: there are -1 for [CLS] and -2 for [SEP].
      segment_ids: [n] 0 in A and 1 in B.
      positions: [m] the masked tokens.
      labels: [m] the ids that stood there.
      swapped: the sentence-order label.
      slots: P; 0 for a dynamic record.
      length: T, with padding; n for a dynamic record.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    swapped: bool
    slots: int
    length: int

    def originals(self) -> np.ndarray:
        """Return the ids before masking, [n]."""
        ids = self.input_ids.copy()
        ids[self.positions] = self.labels
        return ids

    def segments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of A and of B before masking, no special ones."""
        ids, b_start = self.originals(), np.searchsorted(self.segment_ids, 1)
        return ids[1 : b_start - 1], ids[b_start:-1]


CLS, SEP = -1, -2


def _decode_dynamic(feature) -> Example:
    a_size, b_size = feature["segment_lengths"]
    total = a_size + b_size
    data = feature["token_ids"][0]
    ids = np.frombuffer(data, f"<u{len(data) // max(total, 1)}")
    nothing = np.zeros(0, np.int64)
    length = total + 2 + (b_size > 0)
    pieces = [CLS], ids[:a_size], [SEP], ids[a_size:], [SEP]
    return Example(
        input_ids=np.concatenate(pieces)[:length],
        segment_ids=np.repeat([0, 1], [a_size + 2, b_size + 1])[:length],
        positions=nothing,
        labels=nothing,
        swapped=bool(feature["next_sentence_labels"][0]),
        slots=0,
        length=length,
    )


def _decode_static(feature) -> Example:
    def array(name):
        return np.array(feature[name])

    real = array("input_mask") > 0
    weights = array("masked_lm_weights")
    return Example(
        input_ids=array("input_ids")[real],
        segment_ids=array("segment_ids")[real],
        positions=array("masked_lm_positions")[weights > 0],
        labels=array("masked_lm_ids")[weights > 0],
        swapped=bool(array("next_sentence_labels")[0]),
        slots=len(weights),
        length=len(real),
    )


def decode(serialized: bytes) -> Example:
    """Decode a record: static, dynamic or released.

    Raises:
      ValueError: it is no record for pretraining.
    """
    feature = examples.parse(serialized)
    decode_form = _decode_dynamic if "token_ids" in feature else _decode_static
    try:
        return decode_form(feature)
    except (IndexError, TypeError) as error:
        raise ValueError(f"no record for pretraining: {error}") from None


def decoded(path: str, count: int | None = None) -> Iterator[Example]:
    """Yield the records of a file, or the first `count` of them."""
    wanted = itertools.islice(framing.read(path), count)
    for number, record in enumerate(wanted):
        try:
            yield decode(record)
        except ValueError as error:
            raise InputError(
                "The file must hold records for pretraining. "
                f"Received: {path}, record {number} ({error})"
            ) from None
