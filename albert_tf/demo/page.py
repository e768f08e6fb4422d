"""The page that shows an exported model, its limits, and its server.

The interface is Gradio's. Nothing is loaded from elsewhere: the browser is
told so too, by the page's `Content-Security-Policy`.
"""

import dataclasses
from collections.abc import Callable

import gradio as gr
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

from albert_tf.base.errors import InputError, require
from albert_tf.base.settings import setting, validate
from albert_tf.demo.exported_model import MAX_ATTENTION_TOKENS, ExportedModel

GARDEN = {
    "text": "The small garden lies behind the old house.",
    "text_pair": "Its gate was open.",
}
BRIDGE = (
    "The bridge was built in 1902. It leads over the river to the mill, where "
    "Anna Berg had her workshop."
)
# What a tool is called, says of itself, and shows; its fields at first.
TOOLS: dict[str, tuple[str, str, Callable, dict[str, str]]] = {
    "fill_mask": (
        "Fill a mask",
        "Write [MASK] where the model is to find a word.",
        gr.Label,
        {"text": "The [MASK] of the river was closed."},
    ),
    "sentence_order": (
        "Order two sentences",
        "Does the second sentence follow the first?",
        gr.Label,
        {"text": "It rained all day.", "text_pair": "So we stayed in."},
    ),
    "answer": (
        "Ask a passage",
        "The answer is a part of the passage.",
        lambda: [gr.HighlightedText(), gr.Label()],
        {"question": "When was the bridge built?", "context": BRIDGE},
    ),
    "choose": (
        "Choose an answer",
        "Which choice, one a line, answers the question about the passage?",
        gr.Label,
        {
            "context": BRIDGE,
            "question": "Where does the bridge lead?",
            "choices": "to the mill\nto the sea\nto the school",
        },
    ),
    "entities": (
        "Find entities",
        "Names in the text are marked with what they name.",
        gr.HighlightedText,
        {"text": BRIDGE},
    ),
    "classify": ("Classify", "Which label fits the text?", gr.Label, GARDEN),
    "score": ("Score", "The model's number.", gr.Number, GARDEN),
    "attention": (
        "See attention",
        "What a piece looks at; the strongest is 1. Head 0 is the mean.",
        gr.HighlightedText,
        GARDEN,
    ),
}
OPTIONAL = {"classify", "score", "attention"}  # whose second text may be empty
OVERHEAD_BYTES = 10_000  # of a request beside the texts
POLICY = (
    b"default-src 'self' 'unsafe-inline' data: blob:; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What visitors may ask of the model."""

    max_characters: int = setting(
        20_000, "Most characters of one field.", minimum=1
    )
    concurrent: int = setting(
        2, "Requests that the model works on at a time.", minimum=1
    )
    waiting: int = setting(
        16,
        "Requests that may wait for that; others are told to come back.",
        minimum=1,
    )

    def __post_init__(self):
        validate(self)

    @property
    def body_bytes(self) -> int:
        """Return the most bytes of a request: three fields of any script."""
        return 3 * 4 * self.max_characters + OVERHEAD_BYTES


class Guard:
    """Refuses large requests, and adds `HEADERS` to what is answered."""

    def __init__(self, app: Callable, most_bytes: int):
        self.app, self.most_bytes = app, most_bytes

    async def __call__(self, scope, receive, send):
        """Answer one request of ASGI."""

        async def send_safely(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        headers = dict(scope.get("headers", ()))
        # Without its length a body could be of any size.
        endless = b"transfer-encoding" in headers
        answer = self.app
        if endless or int(headers.get(b"content-length", 0)) > self.most_bytes:
            answer = PlainTextResponse("The request is too large.", 413)
        await answer(scope, receive, send_safely)


def make_ask(model: ExportedModel, name: str, fields: dict, most: int):
    """Return what a form's button does: values of the form -> the answer."""

    def ask(*values):
        texts = dict(zip(fields, values, strict=False))
        try:
            for field, text in texts.items():
                rule = f"`{field}` may have {most:,} characters."
                require(len(text) <= most, rule, characters=len(text))
                optional = field == "text_pair" and name in OPTIONAL
                rule = f"`{field}` must not be empty."
                require(text.strip() or optional, rule)
            return model.ask(name, texts, *values[len(texts) :])
        except InputError as error:
            raise gr.Error(str(error)) from None

    return ask


def form(model: ExportedModel, name: str, limits: Limits) -> None:
    """Add the form of one signature to the page."""
    _, help, shown, examples = TOOLS[name]
    fields = {k: v for k, v in examples.items() if k in model.inputs[name]}
    most = limits.max_characters
    gr.Markdown(help)
    inputs = [
        gr.Textbox(
            example, label=label.replace("_", " "), lines=3, max_length=most
        )
        for label, example in fields.items()
    ]
    if name == "attention":
        inputs += [
            gr.Slider(1, model.layers, 1, step=1, label="layer"),
            gr.Slider(0, model.heads, 0, step=1, label="head"),
            gr.Slider(1, MAX_ATTENTION_TOKENS, 1, step=1, label="piece"),
        ]
    button = gr.Button("Ask", variant="primary")
    button.click(
        make_ask(model, name, fields, most),
        inputs,
        shown(),
        api_name=name,
        concurrency_id="model",
        concurrency_limit=limits.concurrent,
    )


def make_page(model: ExportedModel, limits: Limits) -> gr.Blocks:
    """Return the page of a model: a tab for each thing it can do."""
    with gr.Blocks(title="ALBERT", analytics_enabled=False) as page:
        gr.Markdown("# ALBERT\nNothing that you type leaves this machine.")
        for name in model.inputs:
            with gr.Tab(TOOLS[name][0]):
                form(model, name, limits)
    return page.queue(max_size=limits.waiting)


def serve(page: gr.Blocks, host: str, port: int, limits: Limits, **more):
    """Serve until interrupted; return what `launch` does."""
    return page.launch(
        server_name=host,
        server_port=port,
        max_file_size=1,
        theme=gr.themes.Default(font="system-ui", font_mono="monospace"),
        footer_links=[],
        ssr_mode=False,
        share=False,
        quiet=True,
        app_kwargs={
            "middleware": [Middleware(Guard, most_bytes=limits.body_bytes)]
        },
        **more,
    )
