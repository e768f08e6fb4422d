"""Answers of an exported model, as the playground displays them."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.base.errors import InputError
from albert_tf.serving import playground_model
from albert_tf.serving.playground_model import ExportedModel


class Foreign(tf.Module):
    """A SavedModel of another project."""

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def __call__(self, x):
        return x


def test_foreign_models_are_refused(tmp_path):
    """The error names a folder that `export` did not write."""
    tf.saved_model.save(Foreign(), str(tmp_path / "model"))
    for folder in (tmp_path, tmp_path / "model", tmp_path / "none"):
        with pytest.raises(InputError, match="saved_model.*export"):
            ExportedModel(str(folder))


def test_the_parent_of_an_export_suggests_the_export(tmp_path):
    """For an export's parent, such as `models`, the error names the export."""
    tiny.CONFIG.save(str(tmp_path / "1" / "assets"))
    with pytest.raises(InputError, match=f"export`, such as {tmp_path}/1. R"):
        ExportedModel(str(tmp_path))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no graph\nat all"), "no graph"),
        (ValueError(""), "ValueError"),
        (tf.errors.DataLossError(None, None, "a bad block"), "a bad block"),
    ],
)
def test_a_model_that_does_not_load_is_refused(
    error, reason, tmp_path, monkeypatch
):
    """If loading fails, the error quotes the first line of TensorFlow's error.

    A model without a signature for raw text also raises an error.
    """
    tiny.CONFIG.save(str(tmp_path / "assets"))

    def load(folder):
        raise error

    monkeypatch.setattr(tf.saved_model, "load", load)
    message = f"albert_tf.export`: {reason}. Received: saved_model={tmp_path}$"
    with pytest.raises(InputError, match=message):
        ExportedModel(str(tmp_path))
    loaded = mock.Mock(signatures={"ids": None})
    monkeypatch.setattr(tf.saved_model, "load", lambda folder: loaded)
    with pytest.raises(InputError, match="accept raw text.*signatures=ids$"):
        ExportedModel(str(tmp_path))


def test_what_a_model_offers(tmp_path, monkeypatch):
    """The page has the tools for the model's signatures, in a fixed order.

    Attention can be shown for each inner layer of each layer.
    """
    config = dataclasses.replace(
        tiny.CONFIG, num_hidden_layers=3, inner_group_num=2
    )
    config.save(str(tmp_path / "assets"))

    def signature(inputs, outputs):
        return mock.Mock(
            structured_input_signature=((), dict.fromkeys(inputs)),
            structured_outputs=dict.fromkeys(outputs),
        )

    signatures = {
        "attention": signature(["text", "text_pair"], ["attention"]),
        "ids": signature(["input_ids"], ["pooled_output"]),
        "score": signature(["text"], ["score", "labels"]),
    }
    loaded = mock.Mock(signatures=signatures)
    monkeypatch.setattr(tf.saved_model, "load", lambda folder: loaded)
    model = ExportedModel(str(tmp_path))
    assert (model.layers, model.heads) == (6, 2)
    inputs = [("score", ["text"]), ("attention", ["text", "text_pair"])]
    assert [*model.inputs.items()] == inputs
    outputs = {"score": ["score", "labels"], "attention": ["attention"]}
    assert model.outputs == outputs


def test_pieces_that_look_alike_are_told_apart():
    """Pieces that differ only in a word-boundary marker get different names.

    If there are several masks, a name starts with its mask: `[MASK] 1: `.
    """
    pieces = [["\u2581the", "the", "\u2581"], ["a", "\u2581b", "c"]]
    row = {
        "mask_count": np.array(2),
        "pieces": np.array([[x.encode() for x in p] for p in pieces]),
        "probabilities": np.array([[0.5, 0.25, 0.125], [0.75, 0.125, 0.0]]),
    }
    found = playground_model.fill_mask(row, "[MASK][MASK]")
    one, two = "[MASK] 1: ", "[MASK] 2: "
    assert found == {
        **{f"{one}the": 0.5, f"{one}the ": 0.25, f"{one}\u2581": 0.125},
        **{f"{two}a": 0.75, f"{two}b": 0.125, f"{two}c": 0.0},
    }
    row["mask_count"] = np.array(1)
    found = playground_model.fill_mask(row, "[MASK]")
    assert list(found) == ["the", "the ", "\u2581"]


def attention_row(count):
    """Return the outputs for a text with a given number of pieces."""
    return {
        "input_mask": np.array([1] * count + [0]),
        "pieces": np.array([b"\xe2\x96\x81a"] * (count + 1)),
        "attention": np.random.default_rng(0).random([2, 4, 60, 60]),
    }


def test_attention_is_shown_for_a_text_that_fits_the_page():
    """Attention is shown for pieces 1 to N of a text of N pieces.

    N is at most 48. Other numbers and longer texts raise an error.
    """
    row = attention_row(48)
    for piece in (1, 48):
        shown = playground_model.attention(row, "a", "", 2, 4, piece)
        shares = row["attention"][1, 3, piece - 1, :48]
        assert [word for word, _ in shown] == [" a"] * 48
        assert np.allclose([x for _, x in shown], shares / shares.max())
    for piece in (0, 49):
        with pytest.raises(InputError, match=f"48 pieces. .*piece={piece}$"):
            playground_model.attention(row, "a", "", 1, 1, piece)
    with pytest.raises(InputError, match="at most 48 pieces. .*pieces=49$"):
        playground_model.attention(attention_row(49), "a", "", 1, 1, 1)


def test_texts_are_marked_where_the_model_says():
    """The offsets of marked spans count characters, not bytes."""
    row = {
        "entity_count": np.array(1),
        "starts": np.array([2, 0]),
        "ends": np.array([6, 0]),
        "kinds": np.array([b"PER", b""]),
    }
    assert playground_model.entities(row, "😀 Anna") == {
        "text": "😀 Anna",
        "entities": [{"start": 2, "end": 6, "entity": "PER"}],
    }


def test_answers_are_shares_of_one():
    """The probabilities of the answers and of no answer add up to 1."""
    row = {
        "starts": np.array([2, 7, 0]),
        "ends": np.array([6, 11, 0]),
        "answer": b"Anna",
        "answers": np.array([b"Anna", b"Berg", b""]),
        "probabilities": np.array([0.7, 0.3, 0.0]),
    }
    text = "😀 Anna Berg, Anna"
    marked, answers = playground_model.answer(row, "Who?", text)
    assert marked["entities"] == [{"start": 2, "end": 6, "entity": "answer"}]
    assert answers == pytest.approx({"Anna": 0.7, "Berg": 0.3})

    row |= {"answer": b"", "null_odds": np.log(3.0)}
    marked, answers = playground_model.answer(row, "Who?", text)
    assert marked["entities"] == []
    shares = {playground_model.NO_ANSWER: 0.75, "Anna": 0.175, "Berg": 0.075}
    assert answers == pytest.approx(shares)

    row = {name: row[name][2:] for name in row if name != "null_odds"}
    _, answers = playground_model.answer(row, "Who?", "")
    assert answers == {playground_model.NO_ANSWER: 1.0}


@pytest.mark.parametrize("odds", [None, -5.0, 0.0, 5.0])
@pytest.mark.parametrize("decided", [b"Anna", b""])
@pytest.mark.parametrize(
    ("texts", "shares"),
    [
        ((b"Anna", b"Berg"), (0.6, 0.4)),
        ((b"Anna", b"Berg", b"lives"), (0.4, 0.35, 0.25)),
        ((b"Anna", b"", b""), (1.0, 0.0, 0.0)),
    ],
)
def test_the_page_shows_what_the_model_decided(odds, decided, texts, shares):
    """The most probable entry is the model's decision, for any threshold.

    A threshold may accept an answer with null odds above 0, or reject an answer
    with null odds below 0.
    """
    row = {
        "starts": np.array([0, 5, 20][: len(texts)]),
        "ends": np.array([4, 9, 24][: len(texts)]),
        "answer": decided,
        "answers": np.array(texts),
        "probabilities": np.array(shares, np.float32),
    }
    if odds is not None:
        row["null_odds"] = np.float32(odds)
    text = "Anna Berg lives with Berg"
    marked, answers = playground_model.answer(row, "Who?", text)
    headline = max(answers, key=answers.get)
    assert headline == (decided.decode() or playground_model.NO_ANSWER)
    assert [x["start"] for x in marked["entities"]] == [0] * bool(decided)
    assert "" not in answers and max(answers.values()) <= 1.0
    if not decided and odds is not None:
        none = 1 / (1 + np.exp(-max(odds, 0.0)))
        assert answers[playground_model.NO_ANSWER] == pytest.approx(none)


@pytest.mark.parametrize("shares", [(0.3, 0.1), (0.8, 0.1), (0.8, 0.7)])
@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_the_page_shows_which_labels_were_chosen(shares, threshold):
    """The most probable entry is a label only if the model chose a label."""
    chosen = np.array(shares) > threshold
    row = {
        "labels": np.array([b"good", b"long"]),
        "probabilities": np.array(shares),
        "chosen": chosen,
    }
    shown = playground_model.classify(row, "a")
    headline = max(shown, key=shown.get)
    assert headline == ("good (chosen)" if any(chosen) else "no label")
    assert sum(name.endswith("(chosen)") for name in shown) == chosen.sum()
    if not any(chosen):
        none = max(shares[0], 1 - shares[0])
        assert shown["no label"] == pytest.approx(none)


def test_several_numbers_are_shown_with_their_names():
    """A score is one number, or has a name for each of several numbers."""
    row = {"score": np.float32(0.5)}
    assert playground_model.score(row, "a") == 0.5
    row = {"score": np.float32([0.5, 2]), "labels": np.array([b"joy", b"fear"])}
    assert playground_model.score(row, "a") == {"joy": 0.5, "fear": 2.0}


def test_tags_without_entities_are_shown():
    """Words are shown with their tags, except padding and words tagged `O`."""
    row = {
        "entity_count": np.array(0),
        "starts": np.zeros(0, int),
        "ends": np.zeros(0, int),
        "kinds": np.zeros(0, bytes),
        "word_count": np.array(3),
        "word_starts": np.array([0, 5, 11, -1]),
        "word_ends": np.array([4, 10, 15, -1]),
        "tags": np.array([b"NOUN", b"VERB", b"O", b""]),
    }
    shown = playground_model.entities(row, "Anna reads this")
    assert shown["entities"] == [
        {"start": 0, "end": 4, "entity": "NOUN"},
        {"start": 5, "end": 10, "entity": "VERB"},
    ]


def test_choices_are_one_a_line():
    """Each nonblank line is a choice; there must be 2 to 8 choices."""
    row = {"probabilities": np.array([0.2, 0.8])}
    shown = playground_model.choose(row, "c", "q", "to sea\n\nto sea")
    assert shown == {"1. to sea": 0.2, "2. to sea": 0.8}
    model = ExportedModel.__new__(ExportedModel)
    texts = {"context": "c", "question": "q", "choices": "a\n \n"}
    with pytest.raises(InputError, match="2 to 8 choices"):
        model.ask("choose", texts)

    def choose(choices, **texts):
        if len(choices[0]) == 3:
            raise tf.errors.InvalidArgumentError(None, None, "too long\nat 3")
        return {"probabilities": tf.ones([1, len(choices[0])])}

    model._loaded = mock.Mock(signatures={"choose": choose})
    for number in (2, 8):
        answers = model.ask("choose", texts | {"choices": "a\n" * number})
        assert len(answers) == number
    with pytest.raises(InputError, match="2 to 8 choices.*choices=9"):
        model.ask("choose", texts | {"choices": "a\n" * 9})
    with pytest.raises(InputError, match="^too long$"):
        model.ask("choose", texts | {"choices": "a\nb\nc"})
