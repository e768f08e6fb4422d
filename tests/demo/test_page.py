"""The local page: answers as JSON, limits, errors, safe output."""

import json
import threading

import pytest
import tensorflow as tf

pytest.importorskip("flask")

from albert_tf.base.errors import InputError  # noqa: E402
from albert_tf.demo import page, page_answers  # noqa: E402


@pytest.fixture(scope="module")
def model(exported_dir):
    """The exported model as the page has it."""
    return page_answers.Model(exported_dir)


@pytest.fixture
def client(model):
    """A client of the page."""
    limits = page.Limits(max_characters=500, max_body_bytes=5000)
    return page.make_app(model, limits).test_client()


def test_the_page_offers_what_the_model_can(client, model):
    """Every signature that the page knows has a form; all is local."""
    page = client.get("/")
    text = page.get_data(as_text=True)
    names = {"fill_mask", "sentence_order", "attention"}
    assert set(model.tools) == names
    assert all(f'data-tool="{name}"' in text for name in names)
    assert "http://" not in text and "https://" not in text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert client.get("/static/page.js").status_code == 200
    tools = client.get("/health").get_json()["tools"]
    assert set(tools) == names


def test_answers_are_the_signatures(client, signatures):
    """What the page shows is what the SavedModel says."""
    text = "the [MASK] garden on the [MASK]."
    found = client.post("/ask/fill_mask", json={"text": text}).get_json()
    wanted = signatures["fill_mask"](tf.constant([text]))
    masks = found["answer"]["masks"]
    assert len(masks) == 2
    for i, mask in enumerate(masks):
        pieces = [p.decode() for p in wanted["pieces"].numpy()[0, i]]
        assert [bar["label"] for bar in mask] == pieces
        shares = [bar["share"] for bar in mask]
        assert shares == pytest.approx(
            wanted["probabilities"].numpy()[0, i].tolist(), abs=1e-6
        )
    pair = {"text": "he reads.", "text_pair": "she writes."}
    found = client.post("/ask/sentence_order", json=pair).get_json()
    wanted = signatures["sentence_order"](
        **{k: tf.constant([v]) for k, v in pair.items()}
    )
    share = found["answer"]["bars"][0]["share"]
    assert share == pytest.approx(float(wanted["in_order"][0]), abs=1e-6)
    found = client.post("/ask/attention", json={"text": "he reads"})
    answer = found.get_json()["answer"]
    rows = answer["attention"][0][0]
    assert len(rows) == len(answer["pieces"])
    assert sum(rows[0]) == pytest.approx(1.0, abs=0.02)


ODD = ["\0", "😀 שלום [MASK]", "\ud800", "<script>alert(1)</script>", "a" * 500]


@pytest.mark.parametrize("text", ODD)
def test_odd_text_is_answered(client, text):
    """Null bytes, emoji, half a surrogate pair and markup are just text."""
    body = json.dumps({"text": text, "text_pair": text})
    found = client.post(
        "/ask/sentence_order", data=body, content_type="application/json"
    )
    assert found.status_code == 200
    assert found.mimetype == "application/json"


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("fill_mask", {"text": "no mask"}, 400, "must have [MASK]"),
        ("fill_mask", {"text": " "}, 400, "must not be empty"),
        ("fill_mask", {"text": "[MASK]" + "a" * 500}, 400, "500 characters"),
        ("fill_mask", {"text": "a " * 200 + "[MASK]"}, 400, "longer than"),
        ("fill_mask", {}, 400, "given as a text"),
        ("fill_mask", {"text": 5}, 400, "given as a text"),
        ("fill_mask", {"text": "a", "more": "b"}, 400, "Received: more"),
        ("fill_mask", ["text"], 400, "JSON object"),
        ("sentence_order", {"text": "a"}, 400, "given as a text"),
        ("tokenize", {"text": "a"}, 404, "The model has fill_mask"),
        ("fill_mask", {"text": "a" * 6000}, 413, "too large"),
    ],
)
def test_bad_requests_say_what_is_wrong(client, path, body, status, message):
    """A user's mistake has a status and a clear sentence, as JSON."""
    found = client.post(f"/ask/{path}", json=body)
    assert found.status_code == status
    assert message in found.get_json()["error"]


def test_bodies_that_are_not_json(client):
    """Bytes that are no UTF-8, other methods and paths are clear errors."""
    found = client.post(
        "/ask/fill_mask", data=b"\xff{", content_type="application/json"
    )
    assert found.status_code == 400 and "JSON" in found.get_json()["error"]
    assert client.get("/ask/fill_mask").status_code == 405
    assert "no such page" in client.get("/none").get_json()["error"]


def test_too_many_requests_are_turned_away():
    """Some requests wait for their turn, more are told to come back."""
    gate = page.Gate(page.Limits(concurrent=1, waiting=1, max_wait_seconds=5.0))
    inside, leave, done = threading.Event(), threading.Event(), []

    def hold():
        with gate:
            inside.set()
            leave.wait(10)

    def wait():
        with gate:
            done.append(True)

    first, second = (threading.Thread(target=f) for f in (hold, wait))
    first.start()
    inside.wait(10)
    second.start()
    for _ in range(1000):
        if gate._number == 2:
            break
        threading.Event().wait(0.005)
    with pytest.raises(page.Busy):
        with gate:
            pass
    leave.set()
    first.join(10)
    second.join(10)
    assert done == [True] and gate._number == 0
    with gate:
        pass


def test_unexpected_errors_show_no_trace(model, monkeypatch):
    """What fails inside is one sentence with status 500."""
    monkeypatch.setattr(model, "answer", lambda *_: 1 / 0)
    client = page.make_app(model, page.Limits()).test_client()
    found = client.post("/ask/fill_mask", json={"text": "[MASK]"})
    assert found.status_code == 500
    assert found.get_json() == {"error": "The model failed on this input."}


class Foreign(tf.Module):
    """A SavedModel of another project."""

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def __call__(self, x):
        return x


def test_foreign_models_are_refused(tmp_path):
    """A folder that the export did not write is named."""
    tf.saved_model.save(Foreign(), str(tmp_path / "model"))
    for folder in (tmp_path, tmp_path / "model", tmp_path / "none"):
        with pytest.raises(InputError, match="saved_model.*export"):
            page_answers.Model(str(folder))
