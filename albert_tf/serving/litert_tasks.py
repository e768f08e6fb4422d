"""What a LiteRT model answers, by the kind of its task.

Each answer takes the model, what is asked as {field: value}, and how many
answers to give.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from albert_tf.base.errors import require
from albert_tf.serving.litert_model import Runner
from albert_tf.tasks.answers import probabilities
from albert_tf.tasks.multiple_choice import Choices
from albert_tf.tasks.sentence_embedding import Texts
from albert_tf.tasks.sentences import Example, Prediction
from albert_tf.tasks.squad_files import Question
from albert_tf.tasks.tag_schemes import entity_spans
from albert_tf.tasks.tagged_words import Sentence, words_of
from albert_tf.tasks.task import Task
from albert_tf.text.packing import checked_texts


def pretrained(runner: Runner, query: dict, top_k: int) -> dict:
    """Return pieces for the masks of a text, or whether a pair is in order.

    A model without the head for this returns its vectors, as `tf_example` does.
    """
    text, pair = query["text"], query["text_pair"]
    if runner.masks and not pair:
        return {"fill_mask": runner.fill_mask(text, top_k)}
    has_order = "sop_logits" in runner.outputs
    require(
        has_order or not (pair and runner.masks),
        "`text_pair` must be given to a model that knows the order of "
        "sentences.",
        text_pair=pair,
    )
    ids = [runner.tokenizer.encode_batch([x]) for x in (text, pair)]
    features = runner.packed(*ids)
    outputs = runner.run(features)
    if has_order and pair:
        logits = outputs["sop_logits"]
        swapped = float(logits[0, 1] - logits[0, 0])
        return {"in_order": float(1.0 / (1.0 + np.exp(swapped)))}
    tokens = outputs["sequence_output"][0, : features.lengths[0]]
    return {
        "pooled": outputs["pooled_output"][0].tolist(),
        "mean": tokens.mean(axis=0).tolist(),
    }


def ask(runner: Runner, task: Task, example: Any) -> Any:
    """Return what a task predicts for an example, as in Python."""
    features = task.features([example], runner.tokenizer)
    outputs = runner.run(features)
    (prediction,) = task.predictions([example], outputs, features)
    return prediction


def sentence(runner: Runner, query: dict) -> Prediction:
    """Return the prediction of a `text` and, if the task has it, a pair."""
    pair = query["text_pair"]
    rule = "`text_pair` must be given to a model of pairs alone."
    require(runner.task.is_pair or not pair, rule, text_pair=pair)
    return ask(runner, runner.task, Example("", query["text"], pair, None))


def classes(runner: Runner, query: dict, top_k: int) -> dict:
    """Return each label with its probability, the likeliest first."""
    shares = sentence(runner, query).probabilities.tolist()
    table = dict(zip(runner.task.labels, shares, strict=True))
    return dict(sorted(table.items(), key=lambda item: -item[1]))


def score(runner: Runner, query: dict, top_k: int) -> dict:
    """Return the number of a regression."""
    return {"score": sentence(runner, query).label}


def vector(runner: Runner, query: dict, top_k: int) -> dict:
    """Return the vector of a `text`."""
    (values,) = ask(runner, runner.task, Texts("", (query["text"],)))
    return {"embedding": values.tolist()}


def answer(runner: Runner, query: dict, top_k: int) -> dict:
    """Return the likeliest answers to a `question` about a `context`."""
    question = Question("", query["question"], query["context"], None)
    prediction = ask(runner, runner.task, question)
    best = prediction.best[:top_k]
    answers = [
        {
            "text": a.text,
            "start": a.place[0],
            "end": a.place[1],
            "score": a.score,
            "probability": p,
        }
        for a, p in zip(best, probabilities(best), strict=True)
    ]
    threshold = runner.task.config.null_score_diff_threshold or 0.0
    odds = {"null_odds": prediction.null_odds} if runner.task.impossible else {}
    return {"answer": prediction.text(threshold), "answers": answers} | odds


def choose(runner: Runner, query: dict, top_k: int) -> dict:
    """Return the likeliest of `choices` for a `question` about a `context`."""
    choices = tuple(checked_texts(query["choices"], "choices"))
    require(choices, "`choices` must not be empty.", choices=[])
    question = Choices("", query["context"], query["question"], choices, None)
    task = dataclasses.replace(runner.task, number=len(choices))
    prediction = ask(runner, task, question)
    return {
        "choice": prediction.label,
        "text": choices[prediction.label],
        "probabilities": prediction.probabilities.tolist(),
    }


def entities(runner: Runner, query: dict, top_k: int) -> dict:
    """Return the entities of a `text`, and the tag of every word."""
    text = query["text"]
    places = words_of(text)
    if not places:
        return {"entities": [], "words": []}
    words = tuple(text[start:end] for start, end in places)
    prediction = ask(runner, runner.task, Sentence(words, None, "", 1))
    spans = []
    marked = entity_spans(prediction.tags) if runner.task.marks_entities else ()
    for first, last, kind in marked:
        start, end = places[first][0], places[last][1]
        spans.append(
            {"text": text[start:end], "kind": kind, "start": start, "end": end}
        )
    shares = prediction.probabilities.tolist()
    return {
        "entities": spans,
        "words": [
            {"text": word, "tag": tag, "probability": share}
            for word, tag, share in zip(
                words, prediction.tags, shares, strict=True
            )
        ],
    }


TEXTS = ("text", "text_pair")

# By the kind of the model's task, "" being a pretrained model: what is asked
# and what answers.
ANSWERS: dict[str, tuple[tuple[str, ...], Callable]] = {
    "": (TEXTS, pretrained),
    "classification": (TEXTS, classes),
    "multilabel": (TEXTS, classes),
    "regression": (TEXTS, score),
    "embedding": (("text",), vector),
    "token_classification": (("text",), entities),
    "question_answering": (("question", "context"), answer),
    "multiple_choice": (("question", "context", "choices"), choose),
}
