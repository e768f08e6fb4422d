"""Answers from an exported model, in the format that the playground displays.

The playground is a web page with a tool for each signature. A tool's function
receives the signature's outputs for one row and the values of the form. The
function returns values for the page's components: {name: probability} for a
label, and `{"text", "entities"}` for a marked text.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError, first_line, input_errors, require
from albert_tf.model.config import CONFIG_FILE, AlbertConfig
from albert_tf.tasks.conll import OUTSIDE
from albert_tf.text.packing import MASK_TEXT, check_masks

NO_ANSWER = "the passage does not contain an answer"
NO_LABEL = "no label"
MAX_CHOICES = 8
MAX_ATTENTION_TOKENS = 48  # the largest number that fits on the page

Row = dict[str, np.ndarray]


def decode_text(value: bytes) -> str:
    """Decode bytes from a model."""
    return value.decode("utf-8", "replace")


def label_values(labels, values) -> dict[str, float]:
    """Return {label: value} for labels and their probabilities or numbers."""
    names = map(decode_text, labels)
    return dict(zip(names, map(float, values), strict=True))


def marked(text: str, spans) -> dict:
    """Mark spans (start, end, name) in a text; offsets are in characters."""
    entities = [
        {"start": int(start), "end": int(end), "entity": name}
        for start, end, name in spans
    ]
    return {"text": text, "entities": entities}


def fill_mask(row: Row, text: str) -> dict:
    """Return {piece: probability} for the best pieces of each mask.

    If there are several masks, each piece is preceded by the mask's number.
    """
    count = int(row["mask_count"])
    check_masks(text, count)
    filled = {}
    for i in range(count):
        title = f"{MASK_TEXT} {i + 1}: " if count > 1 else ""
        for piece, probability in zip(
            row["pieces"][i], row["probabilities"][i], strict=True
        ):
            word = decode_text(piece)
            word = word.replace("\u2581", " ").strip() or word
            # Two pieces can look alike: one begins a word, the other continues
            # a word.
            while title + word in filled:
                word += " "
            filled[title + word] = float(probability)
    return filled


def sentence_order(row: Row, *texts: str) -> dict:
    """Return the probabilities of the given order and of the opposite order."""
    probability = float(row["in_order"])
    return {
        "in this order": probability,
        "in the opposite order": 1.0 - probability,
    }


def classify(row: Row, *texts: str) -> dict:
    """Return {label: probability} for all labels.

    If a text may have any number of labels, the chosen labels are marked; if no
    label is chosen, `NO_LABEL` comes first.
    """
    labels = label_values(row["labels"], row["probabilities"])
    if "chosen" not in row:
        return labels
    if not row["chosen"].any():
        best = max(labels.values())
        return {NO_LABEL: max(best, 1.0 - best)} | labels
    pairs = zip(labels.items(), row["chosen"], strict=True)
    return {
        f"{k} (chosen)" if is_chosen else k: x for (k, x), is_chosen in pairs
    }


def score(row: Row, *texts: str) -> float | dict[str, float]:
    """Return the predicted number, or {name: number} for several numbers."""
    if "labels" in row:
        return label_values(row["labels"], row["score"])
    return float(row["score"])


def answer(row: Row, question: str, context: str) -> tuple[dict, dict]:
    """Return the passage with the answer marked, and {answer: probability}.

    The model's answer has the largest probability, regardless of
    `null_score_diff_threshold`.
    """
    answers = label_values(row["answers"], row["probabilities"])
    if decode_text(row["answer"]):
        span = (row["starts"][0], row["ends"][0], "answer")
    else:
        span = None
        odds = max(0.0, float(row.get("null_odds", np.inf)))
        none = 1.0 / (1.0 + math.exp(-odds))
        answers = {text: x * (1.0 - none) for text, x in answers.items()}
        answers = {NO_ANSWER: none} | answers
    answers.pop("", None)  # padding
    return marked(context, [span] if span else []), answers


def choose(row: Row, context: str, question: str, choices: str) -> dict:
    """Return {choice: probability} for all choices."""
    numbered = [f"{i}. {x}" for i, x in enumerate(lines(choices), 1)]
    return dict(zip(numbered, row["probabilities"].tolist(), strict=True))


def entities(row: Row, text: str) -> dict:
    """Return the text with its entities marked.

    If there are no entities, as with part-of-speech tags, every word whose tag
    is not `OUTSIDE` is marked with the tag.
    """
    count = int(row["entity_count"])
    spans = zip(row["starts"], row["ends"], row["kinds"], strict=True)
    if not count:
        count = int(row["word_count"])
        words = "word_starts", "word_ends", "tags"
        spans = zip(*(row[name] for name in words), strict=True)
    named = [(start, end, decode_text(name)) for start, end, name in spans]
    return marked(text, [span for span in named[:count] if span[2] != OUTSIDE])


def attention(row: Row, *values) -> list[tuple[str, float]]:
    """Return the pieces, and the attention that one piece pays to each piece.

    The attention is scaled so that the largest value is 1.

    Args:
      row: the outputs of the signature.
      values: the texts; then the layer, the head (0 for the mean) and the
        attending piece, each counted from 1.
    """
    layer, head, piece = map(int, values[-3:])
    count = int(row["input_mask"].sum())
    require(
        count <= MAX_ATTENTION_TOKENS,
        f"Attention is shown for at most {MAX_ATTENTION_TOKENS} pieces.",
        pieces=count,
    )
    require(1 <= piece <= count, f"The text has {count} pieces.", piece=piece)
    heads = row["attention"][layer - 1][:, piece - 1, :count]  # [A, T]
    weights = heads[head - 1] if head else heads.mean(0)
    words = [
        decode_text(x).replace("\u2581", " ") for x in row["pieces"][:count]
    ]
    strongest = float(weights.max())
    return [
        (word, float(weight) / strongest)
        for word, weight in zip(words, weights, strict=True)
    ]


def lines(text: str) -> list[str]:
    """Return the nonblank lines of a text."""
    return [line for line in text.splitlines() if line.strip()]


# {signature: function}, in the order of the page's tabs.
TOOLS = {
    "fill_mask": fill_mask,
    "sentence_order": sentence_order,
    "answer": answer,
    "choose": choose,
    "entities": entities,
    "classify": classify,
    "score": score,
    "attention": attention,
}


class ExportedModel:
    """An exported model, and the texts that its signatures accept.

    Args:
      folder: a SavedModel written by `python -m albert_tf.export`.

    Raises:
      InputError: if the folder does not contain such a model.
    """

    def __init__(self, folder: str):
        # Imported here because only graphs with strings need this package.
        import tensorflow_text  # noqa: F401

        rule = "`saved_model` must be a folder written by "
        rule += "`python -m albert_tf.export`"
        files.require_tensorflow_path("`saved_model`", folder)
        path = files.join(folder, "assets", CONFIG_FILE)
        paths = files.matches(f"*/assets/{CONFIG_FILE}", folder)
        hint = f", such as {paths[-1].rsplit('/', 2)[0]}" if paths else ""
        require(files.is_file(path), f"{rule}{hint}.", saved_model=folder)
        kinds = OSError, ValueError, tf.errors.OpError
        with input_errors(kinds, rule, saved_model=folder):
            self._loaded = tf.saved_model.load(folder)
        config = AlbertConfig.from_json_file(path)
        self.layers = config.num_hidden_layers * config.inner_group_num
        self.heads = config.num_attention_heads
        signatures = self._loaded.signatures
        self.inputs = {
            name: list(signatures[name].structured_input_signature[1])
            for name in TOOLS
            if name in signatures
        }
        self.outputs = {
            name: list(signatures[name].structured_outputs)
            for name in self.inputs
        }
        rule = "`saved_model` must accept raw text, as exports of model "
        rule += "directories with a tokenizer do."
        require(self.inputs, rule, signatures=", ".join(signatures))

    def ask(self, name: str, texts: dict[str, str], *numbers: int) -> Any:
        """Return a tool's answer; `texts` are the inputs of its signature."""
        # Lone surrogates cannot be encoded; each becomes a `?`.
        texts = {
            name: text.encode("utf-8", "replace").decode()
            for name, text in texts.items()
        }
        values: dict[str, Any] = dict(texts)
        if "choices" in values:
            values["choices"] = lines(values["choices"])
            number = len(values["choices"])
            rule = f"There must be 2 to {MAX_CHOICES} choices, one per line."
            require(2 <= number <= MAX_CHOICES, rule, choices=number)
        signature = self._loaded.signatures[name]
        try:
            row = signature(**{k: tf.constant([v]) for k, v in values.items()})
        except tf.errors.InvalidArgumentError as error:
            raise InputError(first_line(error)) from None
        row = {k: value.numpy()[0] for k, value in row.items()}
        return TOOLS[name](row, *texts.values(), *numbers)
