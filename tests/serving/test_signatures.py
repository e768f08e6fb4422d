"""Windows in a graph equal windows in Python."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.serving.questions import likeliest_choices
from albert_tf.serving.signatures import cut, make_windows
from albert_tf.tasks import features

# Numbers of tokens in texts, and tokens per window of each text.
SHORT = [0, 1, 5, 6, 7, 10, 23, 12], [6, 4, 6, 4, 6, 5, 9, 7]
LONG = [420, 0, 700, 381, 382], [381, 370, 375, 381, 381]


@pytest.mark.parametrize(
    ("numbers", "sizes", "stride"),
    [(*SHORT, 1), (*SHORT, 3), (*SHORT, 4), (*LONG, 128)],
)
def test_windows_of_a_batch_are_those_of_each_text(numbers, sizes, stride):
    """Each text has its windows; each token has most context in one window.

    Texts may have different window sizes. An empty text has an empty window.
    """
    ids = tf.RaggedTensor.from_row_lengths(tf.range(sum(numbers)), numbers)
    found = make_windows(ids, tf.constant(sizes, tf.int64), stride)
    texts, tokens, best, base = [], [], [], 0
    for text, (number, size) in enumerate(zip(numbers, sizes, strict=True)):
        windows = features.make_windows(number, size, stride) or [(0, 0)]
        rows = features.best_windows(number, windows)
        for row, (start, length) in enumerate(windows):
            places = np.arange(start, start + length)
            texts.append(text)
            tokens.append((base + places).tolist())
            best.append((rows[places] == row).tolist())
        base += number
    assert found.texts.numpy().tolist() == texts
    assert found.token_indices.to_list() == tokens
    assert found.is_best.to_list() == best


def test_returned_texts_are_utf_8():
    """Parts of a text, and chosen texts, have U+FFFD in place of other bytes.

    The byte offsets are those of the original text.
    """
    text = b"a \xe9t\xe9 \xf0\x9f b"
    starts, ends = tf.constant([2, 6, 0]), tf.constant([5, 7, 9])
    found, first, last = cut(
        tf.constant([text]), tf.zeros(3, tf.int32), starts, ends
    )
    whole = "a \ufffdt\ufffd \ufffd b"
    assert [x.decode() for x in found.numpy()] == [whole[2:5], whole[6], whole]
    assert first.numpy().tolist() == [2, 6, 0]
    assert last.numpy().tolist() == [5, 8, len(text)]
    logits = {"logits": tf.constant([[1.0]])}
    chosen = likeliest_choices(logits, tf.constant([[text]]))
    assert chosen["text"].numpy()[0].decode() == whole
