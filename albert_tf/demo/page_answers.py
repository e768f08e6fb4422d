"""What an exported model answers, as plain values for JSON.

A signature is asked for one request at a time with the strings of its fields.
"""

import dataclasses
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's operations)

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.model.config import CONFIG_FILE

MASK = "[MASK]"
MAX_CHOICES = 8
MAX_ATTENTION_TOKENS = 48  # as many as can be looked at


class BadRequest(Exception):
    """A request that cannot be answered, with what the user should know."""


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a form: its name, its label, and what it holds at first."""

    name: str
    label: str
    example: str
    rows: int = 3
    optional: bool = False
    lines: bool = False  # each line is a string of its own


@dataclasses.dataclass(frozen=True)
class Tool:
    """What a signature can be used for on the page.

    Attributes:
      title: the heading.
      help: one sentence.
      fields: the inputs of the form.
      answer: (signature, {field: text}) -> what JSON carries.
    """

    title: str
    help: str
    fields: tuple[Field, ...]
    answer: Callable


def text_of(value) -> str:
    """Return bytes of a model as text."""
    return value.decode("utf-8", "replace")


def ask(signature, **inputs) -> dict[str, np.ndarray]:
    """Return the outputs of a signature for one row of each input."""
    found = signature(**{k: tf.constant([v]) for k, v in inputs.items()})
    return {name: value.numpy()[0] for name, value in found.items()}


def fill_mask(signature, values: dict) -> dict:
    """Return the likeliest pieces for each mask."""
    if MASK not in values["text"]:
        raise BadRequest(f"The text must have {MASK} where a word is wanted.")
    found = ask(signature, text=values["text"])
    number = int(found["mask_count"])
    if not number:
        raise BadRequest(f"The text is longer than the model before {MASK}.")
    masks = [
        [
            {"label": text_of(piece), "share": float(share)}
            for piece, share in zip(*row, strict=True)
        ]
        for row in zip(
            found["pieces"][:number],
            found["probabilities"][:number],
            strict=True,
        )
    ]
    return {"masks": masks}


def sentence_order(signature, values: dict) -> dict:
    """Return how likely the second sentence follows the first."""
    found = ask(signature, text=values["text"], text_pair=values["text_pair"])
    share = float(found["in_order"])
    return {
        "bars": [
            {"label": "in this order", "share": share},
            {"label": "the other way round", "share": 1.0 - share},
        ]
    }


def classify(signature, values: dict) -> dict:
    """Return every label with its probability, the likeliest first."""
    found = ask(signature, **values)
    bars = [
        {"label": text_of(label), "share": float(share)}
        for label, share in zip(
            found["labels"], found["probabilities"], strict=True
        )
    ]
    return {"bars": sorted(bars, key=lambda bar: -bar["share"])}


def score(signature, values: dict) -> dict:
    """Return the number of a regression."""
    return {"score": float(ask(signature, **values)["score"])}


def answer(signature, values: dict) -> dict:
    """Return the passage with the best answer marked, and the others."""
    found = ask(signature, **values)
    best = text_of(found["answer"])
    spans = []
    if best:
        place = int(found["starts"][0]), int(found["ends"][0])
        spans = [{"start": place[0], "end": place[1], "label": "answer"}]
    bars = [
        {"label": text_of(text), "share": float(share)}
        for text, share in zip(
            found["answers"], found["probabilities"], strict=True
        )
        if text
    ]
    return {
        "message": best or "The passage does not answer this.",
        "marked": {"text": values["context"], "spans": spans},
        "bars": bars,
    }


def choose(signature, values: dict) -> dict:
    """Return every choice with its probability, in the order given."""
    choices = [line for line in values["choices"].splitlines() if line.strip()]
    if not 2 <= len(choices) <= MAX_CHOICES:
        raise BadRequest(
            f"There must be 2 to {MAX_CHOICES} choices, one a line. "
            f"Received: {len(choices)}"
        )
    found = ask(
        signature,
        context=values["context"],
        question=values["question"],
        choices=choices,
    )
    shares = found["probabilities"].tolist()
    pairs = zip(choices, shares, strict=True)
    return {"bars": [{"label": c, "share": p} for c, p in pairs]}


def entities(signature, values: dict) -> dict:
    """Return the text with its entities marked."""
    found = ask(signature, **values)
    number = int(found["entity_count"])
    columns = (found[name][:number] for name in ("starts", "ends", "kinds"))
    spans = [
        {"start": int(start), "end": int(end), "label": text_of(kind)}
        for start, end, kind in zip(*columns, strict=True)
    ]
    return {
        "message": f"{number} entities" if number else "No entities.",
        "marked": {"text": values["text"], "spans": spans},
    }


def attention(signature, values: dict) -> dict:
    """Return the pieces, and what every head looks at, rounded."""
    found = ask(signature, **values)
    number = int(found["input_mask"].sum())
    if number > MAX_ATTENTION_TOKENS:
        raise BadRequest(
            f"Attention is shown for at most {MAX_ATTENTION_TOKENS} pieces. "
            f"Received: {number}"
        )
    weights = found["attention"][:, :, :number, :number]  # [L, A, T, T]
    return {
        "pieces": [text_of(piece) for piece in found["pieces"][:number]],
        "attention": np.round(weights.astype(float), 3).tolist(),
    }


TEXT = Field("text", "Text", "The small garden lies behind the old house.")
PAIR = Field(
    "text_pair", "Second text", "Its gate was open.", optional=True, rows=2
)
CONTEXT = Field(
    "context",
    "Passage",
    "The bridge was built in 1902. It leads over the river to the mill, "
    "where Anna Berg had her workshop.",
    rows=6,
)

# By the name of the signature, in the order of the page.
TOOLS: dict[str, Tool] = {
    "fill_mask": Tool(
        "Fill a mask",
        f"Write {MASK} where the model is to find a word.",
        (Field("text", "Text", f"The {MASK} of the river was closed."),),
        fill_mask,
    ),
    "sentence_order": Tool(
        "Order two sentences",
        "Does the second sentence follow the first?",
        (
            Field("text", "First sentence", "It rained all day.", rows=2),
            Field("text_pair", "Second sentence", "So we stayed in.", rows=2),
        ),
        sentence_order,
    ),
    "answer": Tool(
        "Ask a passage",
        "The answer is a part of the passage.",
        (
            Field("question", "Question", "When was the bridge built?", 2),
            CONTEXT,
        ),
        answer,
    ),
    "choose": Tool(
        "Choose an answer",
        "Which choice answers the question about the passage?",
        (
            CONTEXT,
            Field("question", "Question", "Where does the bridge lead?", 2),
            Field(
                "choices",
                "Choices, one a line",
                "to the mill\nto the sea\nto the school",
                4,
                lines=True,
            ),
        ),
        choose,
    ),
    "entities": Tool(
        "Find entities",
        "Names in the text are marked with what they name.",
        (Field("text", "Text", CONTEXT.example, rows=6),),
        entities,
    ),
    "classify": Tool(
        "Classify", "Which label fits the text?", (TEXT, PAIR), classify
    ),
    "score": Tool("Score", "The model's number.", (TEXT, PAIR), score),
    "attention": Tool(
        "See attention",
        "What every head of every layer looks at from each piece.",
        (TEXT, PAIR),
        attention,
    ),
}


class Model:
    """An exported model and the tools that its signatures offer.

    Args:
      folder: a SavedModel of `python -m albert_tf.export`.

    Raises:
      InputError: the folder is something else.
    """

    def __init__(self, folder: str):
        config = files.join(folder, "assets", CONFIG_FILE)
        whole = files.is_file(files.join(folder, "saved_model.pb"))
        if not whole or not files.is_file(config):
            raise InputError(
                "`saved_model` must be a folder that `python -m "
                "albert_tf.export` wrote. "
                f"Received: saved_model={folder}"
            )
        try:
            self._loaded = tf.saved_model.load(folder)
        except (OSError, ValueError, tf.errors.OpError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise InputError(
                f"`saved_model` cannot be loaded: {reason}. "
                f"Received: saved_model={folder}"
            ) from None
        self.name = os.path.basename(os.path.normpath(folder))
        self.signatures = self._loaded.signatures
        self.tools = {
            name: self._with_inputs(name, tool)
            for name, tool in TOOLS.items()
            if name in self.signatures
        }
        if not self.tools:
            raise InputError(
                "`saved_model` must take raw text, as exports of model "
                "directories with a tokenizer do. Received: "
                f"{', '.join(self.signatures)} in {folder}"
            )

    def _with_inputs(self, name: str, tool: Tool) -> Tool:
        """Return a tool with the fields that the signature takes."""
        inputs = self.signatures[name].structured_input_signature[1]
        fields = tuple(f for f in tool.fields if f.name in inputs)
        return dataclasses.replace(tool, fields=fields)

    def answer(self, name: str, values: dict[str, str]) -> dict:
        """Return the answer of a tool to the texts of its fields."""
        tool = self.tools[name]
        try:
            return tool.answer(self.signatures[name], values)
        except tf.errors.InvalidArgumentError as error:
            raise BadRequest(str(error).splitlines()[0]) from None
