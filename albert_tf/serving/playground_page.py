"""A Gradio page for trying an exported model, with limits for visitors.

The page loads nothing from other hosts; browsers enforce this through its
`Content-Security-Policy`.
"""

import math
from collections.abc import Callable
from numbers import Real
from typing import NamedTuple

import gradio as gr
from gradio.route_utils import FnIndexInferError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

from albert_tf.base.errors import InputError, first_line, require
from albert_tf.serving.playground_model import (
    MAX_ATTENTION_TOKENS,
    ExportedModel,
)

GARDEN = {
    "text": "The small garden lies behind the old house.",
    "text_pair": "Its gate was open.",
}
BRIDGE = (
    "The bridge was built in 1902. It leads over the river to the mill, where "
    "Anna Berg had her workshop."
)


class Tool(NamedTuple):
    """A form of the page.

    Attributes:
      title: the title of the tab.
      help: the text above the form.
      make_output: a function that creates the output component.
      example: {text field: example}.
      optional_pair: whether `text_pair` may be empty.
      numbers: the number of numeric fields after the texts.
    """

    title: str
    help: str
    make_output: Callable
    example: dict[str, str]
    optional_pair: bool = False
    numbers: int = 0


# {signature: its tool}
TOOLS = {
    "fill_mask": Tool(
        "Fill a mask",
        "Write [MASK] where the model should fill in a word.",
        gr.Label,
        {"text": "The [MASK] of the river was closed."},
    ),
    "sentence_order": Tool(
        "Order two sentences",
        "Does the second sentence follow the first?",
        gr.Label,
        {"text": "It rained all day.", "text_pair": "So we stayed in."},
    ),
    "answer": Tool(
        "Ask about a passage",
        "The answer is part of the passage.",
        lambda: [gr.HighlightedText(), gr.Label()],
        {"question": "When was the bridge built?", "context": BRIDGE},
    ),
    "choose": Tool(
        "Choose an answer",
        "Enter one choice per line. Which choice answers the question?",
        gr.Label,
        {
            "context": BRIDGE,
            "question": "Where does the bridge lead?",
            "choices": "to the mill\nto the sea\nto the school",
        },
    ),
    "entities": Tool(
        "Find entities",
        "Names in the text are marked with their kinds.",
        gr.HighlightedText,
        {"text": BRIDGE},
    ),
    "classify": Tool(
        "Classify",
        "Which label fits the text?",
        gr.Label,
        GARDEN,
        optional_pair=True,
    ),
    "score": Tool(
        "Score", "The predicted number.", gr.Number, GARDEN, optional_pair=True
    ),
    "attention": Tool(
        "See attention",
        "Attention of one piece, scaled to at most 1. Head 0 is the mean.",
        gr.HighlightedText,
        GARDEN,
        optional_pair=True,
        numbers=3,
    ),
}
# Limits for visitors.
MAX_CHARACTERS = 20_000  # limit for one field
MAX_BYTES = 3 * 4 * MAX_CHARACTERS + 10_000  # three fields in any script
CONCURRENT = 2  # number of requests that the model processes at a time
WAITING = 16  # length of the queue; further requests are rejected
POLICY = (
    b"default-src 'self' 'unsafe-inline' data: blob:; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class Guard:
    """A filter that rejects large requests and adds `HEADERS` to responses.

    No traceback is printed for requests for unknown forms or events.
    """

    def __init__(self, app: Callable):
        self.app = app

    async def __call__(self, scope, receive, send):
        """Answer one ASGI request."""

        started = False

        async def send_safely(message):
            nonlocal started
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
                started = True
            await send(message)

        headers = dict(scope.get("headers", ()))
        answer = self.app
        # A body without a length could have any size.
        if b"transfer-encoding" in headers:
            answer = PlainTextResponse("Content-Length is required.", 411)
        elif int(headers.get(b"content-length", 0)) > MAX_BYTES:
            answer = PlainTextResponse("The request is too large.", 413)
        try:
            await answer(scope, receive, send_safely)
        except (FnIndexInferError, KeyError):  # an unknown form
            if started:
                raise
            missing = PlainTextResponse("There is no such form.", 404)
            await missing(scope, receive, send_safely)
        except RuntimeError as error:
            # For an unknown event, Gradio sends an `error` event, then raises.
            if not isinstance(error.__cause__, HTTPException):
                raise
            await send({"type": "http.response.body"})


class VisitorError(gr.Error):
    """An error in a visitor's input, which is not printed on the server."""

    def __init__(self, message: str):
        super().__init__(message, print_exception=False)


class Page(gr.Blocks):
    """A page that reports invalid form values to visitors."""

    async def preprocess_data(self, *args, **kwargs):
        """Convert the values of a form for the form's function."""
        try:
            return await super().preprocess_data(*args, **kwargs)
        except (TypeError, ValueError) as error:  # such as `gr.Error`
            first = first_line(error)
            message = f"The values must fit the form: {first}"
            raise VisitorError(message) from None


def check_text(field: str, text: object, may_be_empty: bool) -> None:
    """Raise an error unless the text of a field is legal."""
    rule = f"`{field}` must be text."
    require(isinstance(text, str), rule, type=type(text).__name__)
    rule = f"`{field}` must have at most {MAX_CHARACTERS:,} characters."
    require(len(text) <= MAX_CHARACTERS, rule, characters=len(text))
    require(text.strip() or may_be_empty, f"`{field}` must not be empty.")


def make_ask(model: ExportedModel, name: str, fields: dict):
    """Return a button's function, which converts form values to an answer."""
    size = len(fields) + TOOLS[name].numbers

    def ask(*values):
        texts = dict(zip(fields, values, strict=False))
        try:
            rule = "A value is missing from the form."
            require(len(values) >= size, rule, values=len(values))
            for field, text in texts.items():
                is_pair = field == "text_pair"
                check_text(field, text, is_pair and TOOLS[name].optional_pair)
            numbers = values[len(texts) : size]
            rule = "Numbers must be finite."
            legal = (isinstance(x, Real) and math.isfinite(x) for x in numbers)
            require(all(legal), rule)
            return model.ask(name, texts, *numbers)
        except InputError as error:
            raise VisitorError(str(error)) from None

    return ask


def number(label: str, first: int, last: int) -> gr.Slider | gr.Number:
    """Return a field for a whole number; a slider must have two values."""
    make = gr.Slider if first < last else gr.Number
    limits = {"minimum": first, "maximum": last, "step": 1}
    return make(value=first, label=label, **limits)


def form(model: ExportedModel, name: str) -> None:
    """Add a signature's form to the page."""
    tool, make_output = TOOLS[name], TOOLS[name].make_output
    texts = tool.example.items()
    fields = {k: v for k, v in texts if k in model.inputs[name]}
    gr.Markdown(tool.help)
    inputs = [
        gr.Textbox(
            example,
            label=label.replace("_", " "),
            lines=3,
            max_length=MAX_CHARACTERS,
        )
        for label, example in fields.items()
    ]
    if name == "attention":
        inputs += [
            number("layer", 1, model.layers),
            number("head", 0, model.heads),
            number("piece", 1, MAX_ATTENTION_TOKENS),
        ]
    if name == "score" and "labels" in model.outputs[name]:
        make_output = gr.JSON  # several numbers with names
    button = gr.Button("Ask", variant="primary")
    button.click(
        make_ask(model, name, fields),
        inputs,
        make_output(),
        api_name=name,
        concurrency_id="model",
        concurrency_limit=CONCURRENT,
    )


def make_page(model: ExportedModel) -> gr.Blocks:
    """Return the page of a model, with a tab for each of its tools."""
    with Page(title="ALBERT", analytics_enabled=False) as page:
        gr.Markdown("# ALBERT\nYour texts stay on the server's machine.")
        for name in model.inputs:
            with gr.Tab(TOOLS[name].title):
                form(model, name)
    return page.queue(max_size=WAITING)


def serve(page: gr.Blocks, host: str, port: int, **kwargs):
    """Serve the page until interrupted; return the result of `launch`."""
    return page.launch(
        server_name=host,
        server_port=port,
        max_file_size=1,
        theme=gr.themes.Default(font="system-ui", font_mono="monospace"),
        footer_links=[],
        ssr_mode=False,
        share=False,
        quiet=True,
        app_kwargs={"middleware": [Middleware(Guard)]},
        **kwargs,
    )
