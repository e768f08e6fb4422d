"""The page's web application: one page, one way to ask, limits on both."""

import dataclasses
import threading
import time

from flask import Flask, jsonify, render_template, request
from werkzeug.exceptions import HTTPException

from albert_tf.base.settings import setting, validate
from albert_tf.demo.page_answers import BadRequest, Model

# The page loads nothing from anywhere else, and nobody may frame it.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one visitor, and all of them together, may ask of the model."""

    max_characters: int = setting(
        20_000, "Most characters of one field.", minimum=1
    )
    max_body_bytes: int = setting(
        200_000, "Most bytes of a request.", minimum=1000
    )
    concurrent: int = setting(
        2, "Requests that the model works on at a time.", minimum=1
    )
    waiting: int = setting(
        16,
        "Requests that may wait for that; others are told to come back.",
        minimum=0,
    )
    max_wait_seconds: float = setting(
        10.0, "Longest that a request waits for its turn.", minimum=0.0
    )

    def __post_init__(self):
        validate(self)


class Busy(Exception):
    """There are too many requests."""


class Gate:
    """Lets a few requests in, some wait, and turns others away."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._inside = threading.BoundedSemaphore(limits.concurrent)
        self._lock = threading.Lock()
        self._number = 0

    def __enter__(self):
        most = self._limits.concurrent + self._limits.waiting
        with self._lock:
            if self._number >= most:
                raise Busy
            self._number += 1
        if not self._inside.acquire(timeout=self._limits.max_wait_seconds):
            with self._lock:
                self._number -= 1
            raise Busy

    def __exit__(self, *_):
        self._inside.release()
        with self._lock:
            self._number -= 1


def read_values(tool, limits: Limits) -> dict[str, str]:
    """Return the texts of a request, or say what is wrong with them."""
    body = request.get_json(silent=True)
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object in UTF-8.")
    names = {field.name for field in tool.fields}
    unknown = sorted(set(body) - names)
    if unknown:
        raise BadRequest(
            f"The fields are {', '.join(sorted(names))}. "
            f"Received: {', '.join(unknown)[:200]}"
        )
    values = {}
    for field in tool.fields:
        value = body.get(field.name, "" if field.optional else None)
        if not isinstance(value, str):
            raise BadRequest(f"“{field.label}” must be given as a text.")
        if not value.strip() and not field.optional:
            raise BadRequest(f"“{field.label}” must not be empty.")
        if len(value) > limits.max_characters:
            raise BadRequest(
                f"“{field.label}” may have {limits.max_characters:,} "
                f"characters. Received: {len(value):,}"
            )
        # Half of a UTF-16 pair can stand in JSON, but in no text.
        values[field.name] = value.encode("utf-8", "replace").decode()
    return values


def error(message: str, status: int):
    """Return an error as JSON."""
    return jsonify(error=message), status


def make_app(model: Model, limits: Limits) -> Flask:
    """Return the web application of a model."""
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = limits.max_body_bytes
    app.json.ensure_ascii = False
    gate = Gate(limits)

    @app.get("/")
    def page():
        return render_template(
            "page.html", model=model, limits=limits, mask="[MASK]"
        )

    @app.get("/health")
    def health():
        return jsonify(status="ok", tools=list(model.tools))

    @app.post("/ask/<name>")
    def ask(name: str):
        if name not in model.tools:
            known = ", ".join(model.tools)
            return error(f"The model has {known}. Received: {name[:50]}", 404)
        values = read_values(model.tools[name], limits)
        start = time.monotonic()
        with gate:
            found = model.answer(name, values)
        seconds = round(time.monotonic() - start, 4)
        return jsonify(answer=found, seconds=seconds)

    handle_errors(app)
    return app


def handle_errors(app: Flask) -> None:
    """Answer every error with JSON, without a trace; add safe headers."""

    @app.errorhandler(BadRequest)
    def bad(problem: BadRequest):
        return error(str(problem), 400)

    @app.errorhandler(Busy)
    def busy(_):
        found, status = error("The model is busy; try again in a moment.", 503)
        found.headers["Retry-After"] = "2"
        return found, status

    @app.errorhandler(HTTPException)
    def http(problem: HTTPException):
        texts = {
            413: "The request is too large.",
            404: "There is no such page.",
        }
        return error(texts.get(problem.code, problem.name + "."), problem.code)

    @app.errorhandler(Exception)
    def unexpected(problem: Exception):
        app.logger.error("%s: %s", type(problem).__name__, problem)
        return error("The model failed on this input.", 500)

    @app.after_request
    def safe(response):
        response.headers.update(HEADERS)
        return response


def serve(app: Flask, host: str, port: int, limits: Limits) -> None:
    """Serve until interrupted."""
    from waitress import serve as run

    run(
        app,
        host=host,
        port=port,
        threads=limits.concurrent + min(limits.waiting, 8) + 2,
        max_request_body_size=limits.max_body_bytes,
        channel_timeout=30,
        connection_limit=100,
        ident=None,
    )
