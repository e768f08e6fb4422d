"""Words, tags and entities in served texts equal those in Python."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from exporting import close, model_dir, server_of, strings
from hypothesis import example, given
from hypothesis import strategies as st
from properties import examples, texts

from albert_tf.serving.entities import Entities, WordGraph, Words
from albert_tf.serving.signatures import make_windows
from albert_tf.tasks import features
from albert_tf.tasks.conll import entity_spans
from albert_tf.tasks.registry import find
from albert_tf.tasks.tagged_words import word_spans

TAGS = ("O", "B-X", "I-X", "E-X", "S-X")
TEXTS = ("nïght däy", "walks", "", "day")


@pytest.fixture(scope="module")
def server(pretrained_dir, tmp_path_factory):
    """Return the server of an entity model."""
    task = dataclasses.replace(find("conll2003"), labels=TAGS, scheme="BIOES")
    task = task.updated(max_seq_length=14)
    folder = tmp_path_factory.mktemp("entities") / "model"
    model_dir(folder, pretrained_dir, task)
    return server_of(folder)


SPLIT = ("O'Neil—中文s! ", "s", "", " \u3000", "a\x1cb  ,c")
SPLIT_SPANS = [
    [(0, 1), (1, 2), (2, 6), (6, 7), (7, 8), (8, 9), (9, 10), (10, 11)],
    [(0, 1)],
    *([], []),
    [(0, 1), (2, 3), (5, 6), (6, 7)],
]


word_graph = functools.cache(WordGraph)


@examples(10)
@given(batch=st.lists(texts("she", "中文", ", "), max_size=4))
@example(batch=SPLIT)
def test_words_of_the_graph(batch):
    """The graph splits each text of a batch into the same words as Python."""
    spans = (x.to_list() for x in word_graph()(strings(batch)))
    found = [[*zip(*row, strict=True)] for row in zip(*spans, strict=True)]
    assert found == list(map(word_spans, batch))
    assert found == SPLIT_SPANS or batch != SPLIT


def test_the_tag_of_a_word_is_from_its_best_window(server):
    """A word's tag is that of its first piece in the window with most context.

    Its probability is the largest of the softmax of the logits.
    """
    numbers, size, stride = [9, 0, 4, 14], 6, 2
    ids = tf.RaggedTensor.from_row_lengths(tf.range(sum(numbers)), numbers)
    windows = make_windows(
        ids, tf.fill([4], tf.constant(size, tf.int64)), stride
    )
    rng = np.random.default_rng(3)
    shape = [windows.token_indices.nrows(), size + 2, len(TAGS)]
    logits = rng.normal(0, 3, shape).astype(np.float32)
    chosen, row = [], 0
    for number in numbers:
        starts = features.make_windows(number, size, stride) or [(0, 0)]
        best = features.best_windows(number, starts)
        chosen += [
            logits[row + window, piece - starts[window][0] + 1]
            for piece, window in enumerate(best)
        ]
        row += len(starts)
    pieces = [0, 2, 3, 8, 10, 12, 13, 20, 26]
    words = Words(None, None, None, None, tf.constant(pieces), windows)
    tags, shares = Entities(server.encoder, None, server.task)._tags(
        tf.constant(logits), words
    )
    weights = np.exp(np.array(chosen)[pieces])
    assert tags.numpy().tolist() == weights.argmax(axis=1).tolist()
    close(shares, weights.max(axis=1) / weights.sum(axis=1))


def set_tag(server, tag):
    """Make a model assign the same tag to all words."""
    bias = [1e4 * (other == tag) for other in TAGS]
    server.weights["classifier/bias"].assign(bias)


@pytest.mark.parametrize(
    ("tag", "first"),
    [
        ("O", []),
        ("I-X", ["nïght däy"]),
        ("B-X", ["nïght", "däy"]),
        ("E-X", ["nïght", "däy"]),
        ("S-X", ["nïght", "däy"]),
    ],
)
def test_every_word_has_one_tag(server, tag, first):
    """No entity extends into the next text or further than its tags allow.

    Every word has its tag, even if it is not part of an entity.
    """
    set_tag(server, tag)
    found = server.call("entities", strings(TEXTS))
    rest = [] if tag == "O" else [["walks"], [], ["day"]]
    wanted = [first, *rest] if rest else [[]] * 4
    counts = found["entity_count"].numpy().tolist()
    assert counts == [len(names) for names in wanted]
    for row, names in enumerate(wanted):
        entities = found["entities"][row, : len(names)].numpy()
        assert [x.decode() for x in entities] == names
        for i, text in enumerate(names):
            span = slice(found["starts"][row, i], found["ends"][row, i])
            assert TEXTS[row][span] == text
            span = slice(
                found["byte_starts"][row, i], found["byte_ends"][row, i]
            )
            assert TEXTS[row].encode()[span].decode() == text
    assert found["word_count"].numpy().tolist() == [2, 1, 0, 1]
    for row, text in enumerate(TEXTS):
        for i, word in enumerate(text.split()):
            values = {k: found[k][row, i].numpy() for k in ("words", "tags")}
            assert [x.decode() for x in values.values()] == [word, tag]
            span = slice(
                found["word_starts"][row, i], found["word_ends"][row, i]
            )
            assert text[span] == word


def test_spans_of_all_tags(server):
    """A graph finds the same entities as Python, for every sequence of tags.

    The sequences are the texts of one batch, so no entity may extend into the
    next text. Words are separated by a space.
    """
    labels = ("O", *(f"{x}-{kind}" for kind in "XY" for x in "BIES"))
    task = dataclasses.replace(find("conll2003"), labels=labels, scheme="BIOES")
    graph = Entities(server.encoder, None, task)
    rows = [[], *map(list, itertools.product(range(len(labels)), repeat=3))]
    tags = tf.ragged.constant(rows, tf.int32)
    starts = tf.ragged.range(tags.row_lengths()) * 3
    starts = tf.cast(starts, tf.int32)
    first, last, kinds = graph._spans(starts, starts + 2, tags.values)
    names = [name.decode() for name in graph.kinds.numpy()]
    found = [
        [(a, b, names[kind]) for a, b, kind in zip(*row, strict=True)]
        for row in zip(
            *(x.to_list() for x in (first, last, kinds)), strict=True
        )
    ]
    for row, spans in zip(rows, found, strict=True):
        wanted = entity_spans([labels[tag] for tag in row])
        assert spans == [(3 * a, 3 * b + 2, kind) for a, b, kind in wanted], row


def test_short_rows_are_padded(server, monkeypatch):
    """Rows of words and rows of entities are padded to equal lengths.

    The padding is "" in strings, 0 in probabilities and -1 in positions.
    """
    set_tag(server, "S-X")
    found = server.call("entities", strings(TEXTS))
    fills = {
        "words tags entities kinds": b"",
        "tag_probabilities": 0,
        "word_starts word_ends starts ends byte_starts byte_ends": -1,
    }
    for names, fill in fills.items():
        for name in names.split():
            assert found[name].shape == (4, 2)
            assert found[name][1:, 1].numpy().tolist() == [fill] * 3, name
            assert found[name][2, 0] == fill, name
    # A batch of two texts has more rows than texts.
    encoder = server.encoder
    config = dataclasses.replace(encoder.config, batch_size=2)
    monkeypatch.setattr(encoder, "config", config)
    found = server.call("entities", strings(["night day " * 9, "walks"]))
    assert found["word_count"].numpy().tolist() == [18, 1]
