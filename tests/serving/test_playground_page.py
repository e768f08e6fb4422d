"""The local page: answers, limits and isolation."""

import importlib
import json
import queue
import re
import socket
import threading
import urllib.error
import urllib.request
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.serving import playground_model

LIMITS = {
    "MOST_CHARACTERS": 500,
    "MOST_BYTES": 16_000,
    "CONCURRENT": 1,
    "WAITING": 1,
}


@pytest.fixture(scope="module")
def model(exported_dir, exported):
    """Return the exported model that all pages share."""
    load = {exported_dir: exported}.__getitem__
    with mock.patch.object(tf.saved_model, "load", load):
        return playground_model.ExportedModel(exported_dir)


@pytest.fixture(scope="module")
def page():
    """Return the module of the page; importing Gradio takes seconds."""
    pytest.importorskip("gradio")
    return importlib.import_module("albert_tf.serving.playground_page")


@pytest.fixture(scope="module")
def address(model, page):
    """Serve a page; return the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as smaller:
        for name, value in LIMITS.items():
            smaller.setattr(page, name, value)
        blocks = page.make_page(model)
        page.serve(blocks, "127.0.0.1", port, prevent_thread_lock=True)
        yield f"http://127.0.0.1:{port}"
        blocks.close()


def ask(address, name, *values):
    """Submit a form; return the event and the data in the response."""
    address = f"{address}/gradio_api/call/{name}"
    body = json.dumps({"data": values}).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, body, kind)
    with urllib.request.urlopen(request, timeout=60) as reply:
        event = json.load(reply)["event_id"]
    with urllib.request.urlopen(f"{address}/{event}", timeout=60) as reply:
        # Heartbeats precede a slow response.
        event, data = reply.read().decode().strip().split("\n")[-2:]
    return event, json.loads(data.removeprefix("data: "))


def test_the_page_offers_what_the_model_can(model, address):
    """Each supported signature has a form; the page loads no remote files."""
    names = ["fill_mask", "sentence_order", "attention"]
    assert list(model.inputs) == names
    with urllib.request.urlopen(address) as reply:
        text = reply.read().decode()
        policy = reply.headers["Content-Security-Policy"]
    assert all(f'"api_name":"{name}"' in text for name in names)
    assert "default-src 'self'" in policy and "http" not in policy
    foreign = r"""<(?:script|link|img)[^>]*(?:src|href)=["']?(?:https?:)?//"""
    assert re.search(foreign, text) is None


def test_answers_are_the_signatures(model, signatures, address):
    """The page shows the answers of the SavedModel."""
    text = "the [MASK] garden on the [MASK]."
    wanted = signatures["fill_mask"](tf.constant([text]))
    filled = model.ask("fill_mask", {"text": text})
    shares = wanted["probabilities"].numpy()[0, :2].ravel()
    assert list(filled.values()) == pytest.approx(shares.tolist())
    first = wanted["pieces"].numpy()[0, 0, 0].decode().strip("\u2581")
    assert next(iter(filled)) == f"[MASK] 1: {first}"

    event, (shown,) = ask(address, "fill_mask", "the [MASK] garden")
    filled = model.ask("fill_mask", {"text": "the [MASK] garden"})
    likeliest = max(filled, key=filled.get)
    assert event == "event: complete" and shown["label"] == likeliest


def test_attention_is_of_the_piece_that_is_asked_for(model, signatures):
    """Attention of one head, or the mean of all heads, has a maximum of 1."""
    texts = {"text": "the garden", "text_pair": "a river"}
    inputs = {k: tf.constant([v]) for k, v in texts.items()}
    wanted = signatures["attention"](**inputs)["attention"].numpy()[0]
    for head, rows in ((2, wanted[1, 1]), (0, wanted[1].mean(0))):
        shown = model.ask("attention", texts, 2, head, 3)
        row = rows[2, : len(shown)]
        assert np.allclose([x for _, x in shown], row / row.max())
    assert "".join(x for x, _ in shown).startswith("[CLS] the garden")


@pytest.mark.parametrize(
    "text",
    [
        "nul\0byte",
        "a 😀 b",
        "\ud800",
        "<script>x</script>",
        "%s {0}",
        "a" * 500,
    ],
)
def test_any_text_is_only_text(model, text):
    """Null bytes, emoji, lone surrogates and markup are handled as text."""
    shares = model.ask("sentence_order", {"text": text, "text_pair": text})
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["no mask"], "must contain [MASK]"),
        ([" "], "must not be empty"),
        (["[MASK]" + "a" * 500], "500 characters. Received: characters=506"),
        (["a " * 200 + "[MASK]"], "longer than"),
    ],
)
def test_bad_requests_say_what_is_wrong(address, values, message):
    """An error message explains a visitor's mistake."""
    event, data = ask(address, "fill_mask", *values)
    assert event == "event: error" and message in data["error"]


def test_large_requests_are_refused(address):
    """A request that is too large, or has no length, gets status 413."""
    with pytest.raises(urllib.error.HTTPError, match="413"):
        ask(address, "fill_mask", "a" * 20_000)
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /gradio_api/upload HTTP/1.1\r\nHost: x\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        )
        assert b" 413 " in connection.recv(100)


def test_too_many_requests_are_turned_away(model, address, monkeypatch):
    """One request runs, one waits and four are rejected; later ones succeed."""
    inside, leave = threading.Event(), threading.Event()
    answered = queue.Queue()

    def slow(*_):
        inside.set()
        assert leave.wait(60)
        return {"slow": 1.0}

    def one():
        try:
            answered.put(ask(address, "sentence_order", "a", "b")[0])
        except urllib.error.HTTPError as error:
            answered.put(str(error.code))

    monkeypatch.setattr(model, "ask", slow)
    threads = [threading.Thread(target=one) for _ in range(6)]
    try:
        threads[0].start()
        assert inside.wait(60)  # so the request leaves the queue
        for thread in threads[1:]:
            thread.start()
        # All others return at once.
        rejected = [answered.get(timeout=60) for _ in range(4)]
        assert rejected == ["503"] * 4 and answered.empty()
    finally:
        leave.set()
    accepted = [answered.get(timeout=60) for _ in range(2)]
    assert accepted == ["event: complete"] * 2


def test_a_missing_value_is_a_visitors_mistake(model, page):
    """A form whose values are too few is an error without a trace."""
    ask = page.make_ask(model, "sentence_order", ["text", "text_pair"])
    for values in ((), ("a",)):
        with pytest.raises(page.VisitorError, match="A value is missing"):
            ask(*values)


def test_unexpected_errors_show_no_trace(model, address, monkeypatch):
    """An internal error reveals no details."""
    monkeypatch.setattr(model, "ask", lambda *_: 1 / 0)
    event, data = ask(address, "fill_mask", "[MASK]")
    assert event == "event: error" and not data["error"]


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
            playground_model.ExportedModel(str(folder))


def test_texts_are_marked_where_the_model_says():
    """Spans count characters; words with the tag `O` are not marked."""
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
    """Probabilities of equal texts are added, and all add up to 1."""
    row = {
        "starts": np.array([2, 7, 2, 0]),
        "ends": np.array([6, 11, 6, 0]),
        "answer": b"Anna",
        "answers": np.array([b"Anna", b"Berg", b"Anna", b""]),
        "probabilities": np.array([0.5, 0.3, 0.2, 0.0]),
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

    row = {name: row[name][3:] for name in row if name != "null_odds"}
    _, answers = playground_model.answer(row, "Who?", "")
    assert answers == {playground_model.NO_ANSWER: 1.0}


@pytest.mark.parametrize("odds", [None, -5.0, 0.0, 5.0])
@pytest.mark.parametrize("decided", [b"Anna", b""])
@pytest.mark.parametrize(
    ("texts", "shares"),
    [
        ((b"Anna", b"Berg"), (0.6, 0.4)),
        ((b"Anna", b"Berg", b"Berg"), (0.4, 0.35, 0.25)),
        ((b"Anna", b"", b""), (1.0, 0.0, 0.0)),
    ],
)
def test_the_page_shows_what_the_model_decided(odds, decided, texts, shares):
    """The first entry is the model's decision, for any threshold.

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


@pytest.mark.parametrize("shares", [(0.3, 0.1), (0.8, 0.1), (0.8, 0.7)])
@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_the_page_shows_which_labels_were_chosen(shares, threshold):
    """The first entry is a label only if the model chose a label."""
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


def test_tags_without_entities_are_shown():
    """Words are shown with their tags, except padding and the tag `O`."""
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


MISTAKES = [
    ("fill_mask", ["no mask"]),
    ("fill_mask", [None]),
    ("fill_mask", [7]),
    ("fill_mask", []),
    ("attention", ["a", "b", 99, 0, 1]),
    ("attention", ["a", "b", 1, 0, 48]),
    ("attention", ["a", "b", "x", 0, 1]),
    ("attention", ["a", "b", None, 0, 1]),
    ("attention", ["a", "b", 1, 0]),
    ("sentence_order", [{"a": 1}, "b"]),
]


@pytest.mark.parametrize(("name", "values"), MISTAKES)
def test_only_the_visitor_sees_a_mistake(name, values, address, capfd):
    """A visitor's mistake prints no line to the terminal."""
    capfd.readouterr()
    event, data = ask(address, name, *values)
    if event == "event: error":
        assert data["error"]
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err


def test_choices_are_one_a_line(model, monkeypatch):
    """Each line with text is a choice; a single choice raises an error."""
    row = {"probabilities": np.array([0.2, 0.8])}
    shown = playground_model.choose(row, "c", "q", "to sea\n\nto sea")
    assert shown == {"1. to sea": 0.2, "2. to sea": 0.8}
    texts = {"context": "c", "question": "q", "choices": "a\n \n"}
    with pytest.raises(InputError, match="2 to 8 choices"):
        model.ask("choose", texts)
