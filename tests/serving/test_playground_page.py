"""The local page: answers, limits and isolation."""

import asyncio
import importlib
import json
import math
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
from albert_tf.serving import playground, playground_model

LIMITS = {
    "MAX_CHARACTERS": 500,
    "MAX_BYTES": 16_000,
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


# The fixture `address` lowers the limits for all later tests.
@pytest.mark.slow
def test_limits_are_the_documented_ones(page):
    """The limits equal the documented limits, and the page is not shared."""
    assert (page.MAX_CHARACTERS, page.MAX_BYTES) == (20_000, 250_000)
    assert (page.CONCURRENT, page.WAITING) == (2, 16)
    launched = page.serve(
        mock.Mock(launch=lambda **settings: settings), "here", 8001
    )
    assert (launched["server_name"], launched["server_port"]) == ("here", 8001)
    assert launched["share"] is launched["ssr_mode"] is False
    assert launched["quiet"] is True and launched["max_file_size"] == 1
    assert launched["footer_links"] == []


@pytest.mark.parametrize("more", [0, 1])
def test_a_request_may_have_the_largest_size(page, more):
    """A request of exactly the largest size succeeds.

    A larger request gets status 413. Both responses have the security headers.
    """
    sent = []

    async def app(scope, receive, send):
        await send(
            {"type": "http.response.start", "status": 200, "headers": []}
        )
        await send({"type": "http.response.body"})

    async def send(message):
        sent.append(message)

    size = str(page.MAX_BYTES + more).encode()
    scope = {"type": "http", "headers": [(b"content-length", size)]}
    asyncio.run(page.Guard(app)(scope, None, send))
    start, body = sent
    assert start["status"] == (413 if more else 200)
    assert start["headers"][-3:] == [*page.HEADERS]
    assert "headers" not in body


@pytest.mark.parametrize(
    ("begins", "error"),
    [(True, KeyError), (False, RuntimeError), (True, ValueError)],
)
def test_an_error_of_the_server_is_not_hidden(page, begins, error):
    """Errors that are not a visitor's mistake reach the server's log.

    A response that has begun does not get a second status.
    """
    sent = []

    async def app(scope, receive, send):
        if begins:
            start = {"type": "http.response.start", "status": 200}
            await send(start | {"headers": []})
        raise error("a fault")

    async def send(message):
        sent.append(message["type"])

    with pytest.raises(error, match="a fault"):
        asyncio.run(page.Guard(app)({"type": "http"}, None, send))
    assert sent == ["http.response.start"] * begins


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("classify", ("a", ""), None),
        ("classify", (" ", "b"), "`text` must not be empty"),
        ("sentence_order", ("a", " "), "`text_pair` must not be empty"),
        ("attention", ("a", "", 1, 0, 2), None),
        ("attention", ("a", "", math.inf, 0, 2), "Numbers must be finite"),
        ("attention", ("a", "", 1, "0", 2), "Numbers must be finite"),
        ("attention", ("a", "", 1, 0), "A value is missing.*values=4"),
        ("sentence_order", ("a",), "A value is missing.*values=1"),
        ("sentence_order", (), "A value is missing.*values=0"),
        ("score", ("x" * 20_000, "b"), None),
        ("score", ("x" * 20_001, "b"), "at most 20,000 .*characters=20001"),
        ("score", ("a", 7), "`text_pair` must be text. Received: type=int"),
    ],
)
def test_what_a_form_may_contain(page, name, values, message):
    """The length of texts is limited, and only some texts may be empty.

    Numbers must be finite, and no value may be missing.
    """
    model = mock.Mock(ask=lambda *values: values)
    ask = page.make_ask(model, name, ["text", "text_pair"])
    if message:
        with pytest.raises(page.VisitorError, match=message):
            ask(*values)
        return
    texts = {"text": values[0], "text_pair": values[1]}
    assert ask(*values) == (name, texts, *values[2:])


@pytest.mark.parametrize(
    ("outputs", "component"), [(["score"], "number"), (["labels"], "json")]
)
def test_a_score_is_a_number_or_has_names(page, outputs, component):
    """Several numbers are shown with their names.

    The form has a field for each input of the signature.
    """
    model = mock.Mock(inputs={"score": ["text"]}, outputs={"score": outputs})
    config = page.make_page(model).get_config_file()
    types = [x["type"] for x in config["components"]]
    assert component in types and types.count("textbox") == 1


@pytest.mark.parametrize(("layers", "kind"), [(1, "number"), (2, "slider")])
def test_a_model_may_have_one_layer(page, layers, kind):
    """The field for the layer has the model's layers, even if there is one."""
    inputs = {"attention": ["text", "text_pair"]}
    model = mock.Mock(inputs=inputs, layers=layers, heads=2)
    config = page.make_page(model).get_config_file()
    (field,) = (
        x for x in config["components"] if x["props"].get("label") == "layer"
    )
    assert (field["type"], field["props"]["maximum"]) == (kind, layers)


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
    with urllib.request.urlopen(f"{address}/config") as reply:
        parts = [
            (x["type"], x["props"]) for x in json.load(reply)["components"]
        ]
    titles = [props["label"] for kind, props in parts if kind == "tabitem"]
    assert titles == ["Fill a mask", "Order two sentences", "See attention"]
    sliders = {
        props["label"]: (props["minimum"], props["value"], props["maximum"])
        for kind, props in parts
        if kind == "slider"
    }
    assert sliders == {
        "layer": (1, 1, 2),
        "head": (0, 0, 4),
        "piece": (1, 1, 48),
    }
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
    assert "[MASK]" not in shown["label"]
    filled = model.ask("fill_mask", {"text": "the [MASK] garden"})
    likeliest = max(filled, key=filled.get)
    assert event == "event: complete" and shown["label"] == likeliest


def test_attention_is_of_the_piece_that_is_asked_for(model, signatures):
    """A piece's largest attention, by head or on average, is shown as 1."""
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
        (["a " * 200 + "[MASK]"], "Received: 1 of 1 beyond it"),
        (["[MASK]" + "a " * 200 + "[MASK]"], "Received: 1 of 2 beyond it"),
    ],
)
def test_bad_requests_say_what_is_wrong(address, values, message):
    """An error message explains a visitor's mistake."""
    event, data = ask(address, "fill_mask", *values)
    assert event == "event: error" and message in data["error"]


def test_large_requests_are_refused(address):
    """A request that is too large gets status 413; without a length, 411."""
    with pytest.raises(urllib.error.HTTPError, match="413"):
        ask(address, "fill_mask", "a" * 20_000)
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /gradio_api/upload HTTP/1.1\r\nHost: x\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        )
        assert b" 411 " in connection.recv(100)


def test_unknown_forms_and_events_print_no_trace(address, capfd):
    """An unknown form gets status 404, and an unknown event an error event."""
    capfd.readouterr()
    with pytest.raises(urllib.error.HTTPError, match="404") as error:
        ask(address, "nothing", "a")
    assert error.value.read() == b"There is no such form."
    path = f"{address}/gradio_api/call/fill_mask/nothing"
    with urllib.request.urlopen(path, timeout=60) as reply:
        assert reply.read().startswith(b'event: error\ndata: "404')
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err


def test_a_port_in_use_is_an_error(monkeypatch):
    """If the port is in use, an error is raised before the model loads."""
    monkeypatch.setattr(playground, "need", lambda *args, **named: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(InputError, match=f"must be free .*port={port}$"):
            playground.playground(saved_model="none", port=port)
    with pytest.raises(InputError, match="saved_model=none"):
        playground.playground(saved_model="none", port=port)


def test_the_command_serves_its_address(page, monkeypatch, capsys):
    """The page is served at the address that is checked and printed."""
    calls = []
    model = mock.Mock(inputs={"classify": [], "attention": []})
    monkeypatch.setattr(playground_model, "ExportedModel", lambda _: model)
    monkeypatch.setattr(page, "make_page", lambda model: "page")
    monkeypatch.setattr(page, "serve", lambda *where: calls.append(where))
    monkeypatch.setattr(
        playground, "check_port", lambda *where: calls.append(where)
    )
    playground.playground(saved_model="x", host="127.0.0.2", port=8123)
    assert calls == [("127.0.0.2", 8123), ("page", "127.0.0.2", 8123)]
    printed = capsys.readouterr().out
    assert "classify, attention\nOpen http://127.0.0.2:8123/ " in printed


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "::1"])
def test_an_address_that_cannot_be_used_is_an_error(monkeypatch, host):
    """The error names an address on which the page cannot listen."""
    monkeypatch.setattr(playground, "need", lambda *args, **named: None)
    with pytest.raises(InputError, match=rf"`host` .*host={host}, port=8000$"):
        playground.playground(saved_model="none", host=host)


def test_too_many_requests_are_turned_away(model, address, monkeypatch):
    """Of six requests, one runs, one waits and four are rejected.

    The two accepted requests succeed.
    """
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
        # The other requests return at once.
        rejected = [answered.get(timeout=60) for _ in range(4)]
        assert rejected == ["503"] * 4 and answered.empty()
    finally:
        leave.set()
    accepted = [answered.get(timeout=60) for _ in range(2)]
    assert accepted == ["event: complete"] * 2


def test_unexpected_errors_show_no_trace(model, address, monkeypatch):
    """An internal error reveals no details."""
    monkeypatch.setattr(model, "ask", lambda *_: 1 / 0)
    event, data = ask(address, "fill_mask", "[MASK]")
    assert event == "event: error" and not data["error"]


MISFIT = "The values must fit the form: "
MISTAKES = [
    ("fill_mask", ["no mask"], "must contain [MASK]"),
    ("fill_mask", [None], "`text` must be text"),
    ("fill_mask", [7], "must contain [MASK]"),
    ("attention", ["a", "b", 99, 0, 1], f"{MISFIT}'Value 99 is greater"),
    ("attention", ["a", "b", 1, 0, 48], "The text has 6 pieces"),
    ("attention", ["a", "b", "x", 0, 1], MISFIT),
    ("attention", ["a", "b", None, 0, 1], MISFIT),
    ("sentence_order", [{"a": 1}, "b"], None),  # Gradio converts it to text
]


@pytest.mark.parametrize(("name", "values", "message"), MISTAKES)
def test_only_the_visitor_sees_a_mistake(name, values, message, address, capfd):
    """A visitor's mistake is explained to the visitor.

    It prints no stack trace on the operator's terminal.
    """
    capfd.readouterr()
    event, data = ask(address, name, *values)
    if message:
        assert event == "event: error" and message in data["error"]
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
