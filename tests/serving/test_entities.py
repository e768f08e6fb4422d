"""No entity extends beyond its text, or further than the tags allow."""

import dataclasses
import itertools

import pytest
import tensorflow as tf
from exporting import model_dir, server_of, strings

from albert_tf.serving.entities import Entities
from albert_tf.tasks.conll import entity_spans
from albert_tf.tasks.registry import find

TAGS = ("O", "B-X", "I-X", "E-X", "S-X")
TEXTS = ("night day", "walks", "", "day")


@pytest.fixture(scope="module")
def server(pretrained_dir, tmp_path_factory):
    """Return the server of an entity model."""
    task = dataclasses.replace(find("conll2003"), labels=TAGS, scheme="BIOES")
    task = task.updated(max_seq_length=14)
    folder = tmp_path_factory.mktemp("entities") / "model"
    model_dir(folder, pretrained_dir, task)
    return server_of(folder)


def set_tag(server, tag):
    """Make a model assign the same tag to all words."""
    bias = [1e4 * (other == tag) for other in TAGS]
    server.weights["classifier/bias"].assign(bias)


@pytest.mark.parametrize(
    ("tag", "first"),
    [
        ("O", []),
        ("I-X", ["night day"]),
        ("B-X", ["night", "day"]),
        ("E-X", ["night", "day"]),
        ("S-X", ["night", "day"]),
    ],
)
def test_every_word_has_one_tag(server, tag, first):
    """No entity extends into the next text or further than its tags allow."""
    set_tag(server, tag)
    found = server.call("entities", strings(TEXTS))
    rest = [] if tag == "O" else [["walks"], [], ["day"]]
    wanted = [first, *rest] if rest else [[]] * 4
    counts = found["entity_count"].numpy().tolist()
    assert counts == [len(texts) for texts in wanted]
    for row, texts in enumerate(wanted):
        entities = found["entities"][row, : len(texts)].numpy()
        assert [x.decode() for x in entities] == texts
        for i, text in enumerate(texts):
            span = slice(found["starts"][row, i], found["ends"][row, i])
            assert TEXTS[row][span] == text


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
