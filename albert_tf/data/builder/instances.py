"""Segment pairs laid out as [CLS] A [SEP] B [SEP] and padding.

Glossary: B instances, T tokens, N tokens of the shard, V vocabulary.
"""

import numpy as np

from albert_tf.data.builder.documents import Documents
from albert_tf.data.builder.pairs import Pairs
from albert_tf.data.masking import Instances


def lay_out(
    pairs: Pairs, documents: Documents, max_seq_length: int, tokenizer
) -> Instances:
    """Lay out pairs.

    Args:
      pairs: B pairs of ranges of tokens, at most T - 3 tokens each.
      documents: the tokens of the shard.
      max_seq_length: T.
      tokenizer: names the special tokens.
    """
    place = np.arange(max_seq_length)
    a_size = (pairs.a_end - pairs.a_start)[:, None]
    lengths = a_size + (pairs.b_end - pairs.b_start)[:, None] + 3
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
    input_ids = documents.ids[source].astype(np.int32)
    starts = documents.starts[source] & maskable
    input_ids[~maskable] = tokenizer.pad_id
    input_ids[separators] = tokenizer.sep_id
    input_ids[:, 0] = tokenizer.cls_id
    starts |= separators
    starts[:, 0] = True
    return Instances(
        input_ids, in_b & real, maskable, starts, lengths[:, 0], pairs.swapped
    )
