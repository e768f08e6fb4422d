"""No entity extends beyond its text, or further than the tags allow."""

import dataclasses

import pytest
from exporting import model_dir, server_of, strings

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
