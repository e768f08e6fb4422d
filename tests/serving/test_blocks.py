"""Batches in blocks: the same answers, no row more at a time."""

import numpy as np
import pytest
import tensorflow as tf
from exporting import MASKED, TEXTS, concrete, server_of, strings

from albert_tf.serving import blocks, pretrained


def counted(seen):
    """Return a graph that doubles rows and tells how many it was given."""

    def double(x):
        tf.py_function(lambda n: seen.append(int(n)), [tf.shape(x)[0]], [])
        return {"twice": 2 * x, "sum": tf.reduce_sum(x, axis=1)}

    return tf.function(double, autograph=False).get_concrete_function(
        x=tf.TensorSpec([None, None], tf.int32)
    )


@pytest.mark.parametrize("number", [0, 1, 3, 4, 10])
def test_rows_stay_in_order(number):
    """Every block has at most the rows asked for; outputs are in order."""
    seen = []
    x = np.arange(2 * number, dtype=np.int32).reshape(number, 2)
    body = counted(seen)
    found = tf.function(
        lambda: blocks.in_blocks(body, {"x": tf.constant(x)}, 3)
    )()
    np.testing.assert_array_equal(found["twice"], 2 * x)
    np.testing.assert_array_equal(found["sum"], x.sum(1))
    assert sum(seen) == number and max(seen) <= 3


@pytest.mark.parametrize("lengths", [[5, 1, 3, 0, 2, 4], [2, 2], []])
def test_a_block_is_as_long_as_its_longest_row(lengths):
    """Rows of a length come together, and each gets its own answer."""
    seen, rows = [], len(lengths)
    mask = np.arange(6)[None] < np.array(lengths, int)[:, None]
    mask[:1, 1] = False  # a hole is no end
    ids = np.arange(1, 6 * rows + 1).reshape(rows, 6)
    inputs = {"input_ids": ids, "input_mask": mask, "segment_ids": ids}

    def body(input_ids, input_mask, segment_ids):
        shape = tf.shape(input_ids + input_mask + segment_ids)
        tf.py_function(lambda s: seen.append(tuple(s.numpy())), [shape], [])
        return {"sum": tf.reduce_sum(input_ids * input_mask, axis=1)}

    specs = {k: tf.TensorSpec([None, None], tf.int32) for k in inputs}
    graph = tf.function(body, autograph=False).get_concrete_function(**specs)
    assert blocks.answers_rows_alone(graph)
    inputs = {k: tf.constant(x, tf.int32) for k, x in inputs.items()}
    found = tf.function(lambda: blocks.by_length(graph, inputs, 2))()
    np.testing.assert_array_equal(found["sum"], (ids * mask).sum(1))
    wanted = {6: [(2, 1), (2, 3), (2, 5)], 2: [(2, 2)], 0: [(0, 1)]}
    assert seen == wanted[rows]


def test_a_block_holds_a_number_of_tokens(monkeypatch):
    """Long inputs come in fewer rows, at least one."""
    monkeypatch.setattr(blocks, "BLOCK_TOKENS", 100)
    lengths = (1, 10, 33, 100, 101)
    assert [int(blocks.block_rows(n)) for n in lengths] == [100, 10, 3, 1, 1]


@pytest.mark.slow
def test_signatures_give_the_same_in_blocks(
    signatures, pretrained_dir, monkeypatch
):
    """What is served does not depend on the size of the blocks."""
    monkeypatch.setattr(blocks, "BLOCK_TOKENS", 60)
    monkeypatch.setattr(pretrained, "BLOCK_MASKS", 30)
    server = server_of(pretrained_dir)
    calls = {
        "text_pair": {"text": TEXTS, "text_pair": TEXTS[::-1]},
        "fill_mask": {"text": MASKED},
    }
    small = concrete(server, *calls)
    for name, texts in calls.items():
        arguments = {k: strings(v) for k, v in texts.items()}
        wanted, found = signatures[name](**arguments), small[name](**arguments)
        assert set(found) == set(wanted)
        for key, value in wanted.items():
            if value.dtype == tf.float32:
                np.testing.assert_allclose(found[key], value, atol=1e-5)
            else:
                np.testing.assert_array_equal(found[key], value)
