"""Questions, choices and entities, asked of a LiteRT model.

As the task in Python does it, and without TensorFlow. Shapes: N rows of the
model, T tokens, C tags.
"""

import numpy as np

from albert_tf.base.errors import InputError
from albert_tf.tasks.answers import (
    Spans,
    Window,
    beam_spans,
    n_best,
    probabilities,
    simple_spans,
)
from albert_tf.tasks.choice_files import with_choice
from albert_tf.tasks.task_config import TaskConfig
from albert_tf.tasks.windows import best_windows, make_windows
from albert_tf.text.wordpiece import clean_character, is_punctuation


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities along the last axis."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


# Questions.


def spans_of(outputs: dict, row: int, window: Window, n: int) -> Spans:
    """Return a row's candidates, by the head that the model has."""
    if "start_logits" in outputs:
        logits = (outputs[name][row] for name in ("start_logits", "end_logits"))
        return simple_spans(*logits, window, n)
    return beam_spans(
        *(
            outputs[name][row]
            for name in (
                "start_top_log_probs",
                "start_top_index",
                "end_top_log_probs",
                "end_top_index",
            )
        )
    )


def null_odds(outputs: dict, best_score: float) -> float:
    """Return how much likelier no answer is, least of all windows."""
    if "answer_logits" in outputs:
        return float(outputs["answer_logits"].min())
    null = outputs["start_logits"][:, 0] + outputs["end_logits"][:, 0]
    return float(null.min()) - best_score


def context_windows(
    context: tuple, size: int, stride: int, position: int
) -> tuple[list[np.ndarray], list[Window]]:
    """Return the ids of each window over a context, and where they stand.

    Args:
      context: ids, starts and ends of its tokens.
      size: most tokens of a window.
      stride: tokens between the beginnings of two.
      position: where a window begins in its row.
    """
    ids, starts, ends = (np.array(x, np.int32) for x in context)
    # An empty context has one empty window.
    places = make_windows(len(ids), size, stride) or [(0, 0)]
    best = best_windows(len(ids), places)
    parts = [slice(start, start + length) for start, length in places]
    return [ids[part] for part in parts], [
        Window(position, starts[part], ends[part], best[part] == i)
        for i, part in enumerate(parts)
    ]


def answer(runner, query: dict, top_k: int) -> dict:
    """Return the likeliest answers to a `question` about a `context`."""
    tokenizer, c = runner.tokenizer, TaskConfig(**runner.task["config"])
    question = tokenizer.encode(query["question"])[: c.max_query_length]
    size = runner.length - 3 - len(question)
    if size < 1:
        raise InputError(
            "`max_seq_length` of the export must leave room for a context. "
            f"Received: {runner.length} tokens, {len(question)} of them for "
            "the question"
        )
    context = tokenizer.encode_with_offsets(query["context"])
    ids, windows = context_windows(
        context, size, min(c.doc_stride, size), len(question) + 2
    )
    outputs = runner.run([runner.two_parts(question, part) for part in ids])
    rows = [
        (spans_of(outputs, i, window, c.n_best_size), window)
        for i, window in enumerate(windows)
    ]
    best = n_best(query["context"], rows, top_k, c.max_answer_length)
    found = {
        "answer": best[0].text,
        "answers": [
            {
                "text": a.text,
                "start": a.place[0],
                "end": a.place[1],
                "score": a.score,
                "probability": p,
            }
            for a, p in zip(best, probabilities(best), strict=True)
        ],
    }
    if runner.task["impossible"]:
        found["null_odds"] = null_odds(outputs, best[0].score)
        if found["null_odds"] > (c.null_score_diff_threshold or 0.0):
            found["answer"] = ""
    return found


# Choices.


def choose(runner, query: dict, top_k: int) -> dict:
    """Return the likeliest of `choices` for a `question` about a `context`."""
    tokenizer, c = runner.tokenizer, TaskConfig(**runner.task["config"])
    if not query["choices"]:
        raise InputError("`choices` must not be empty. Received: choices=[]")
    context = tokenizer.encode(query["context"])
    rows = []
    for choice in query["choices"]:
        second = tokenizer.encode(with_choice(query["question"], choice))
        second = second[-min(c.max_qa_length, runner.length - 3) :]
        room = runner.length - 3 - len(second)
        rows.append(runner.two_parts(context[:room], second))
    shares = softmax(runner.run(rows)["logits"])
    best = int(shares.argmax())
    return {
        "choice": best,
        "text": query["choices"][best],
        "probabilities": shares.tolist(),
    }


# Entities.


def words_of(text: str) -> list[tuple[int, int]]:
    """Return start and end of the words of raw text.

    A word is a run of letters and digits, and every punctuation mark or
    ideograph by itself.
    """
    words: list[tuple[int, int]] = []
    goes_on = False
    for i, character in enumerate(text):
        if character.isspace():
            goes_on = False
            continue
        single = (
            is_punctuation(character) or clean_character(character)[:1] == " "
        )
        if goes_on and not single:
            words[-1] = (words[-1][0], i + 1)
        else:
            words.append((i, i + 1))
        goes_on = not single
    return words


def entity_spans(tags: list[str]) -> list[list]:
    """Return [first word, last word, kind] of the entities that tags mark."""
    found: list[list] = []
    before, closed = "", True
    for i, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if kind and (closed or kind != before or prefix in ("B", "S")):
            found.append([i, i, kind])
        elif kind:
            found[-1][1] = i
        before, closed = kind, prefix in ("E", "S")
    return found


def tag_words(runner, words: list[str]) -> tuple[list[str], np.ndarray]:
    """Return the tag of each word and its probability."""
    tokenizer, c = runner.tokenizer, TaskConfig(**runner.task["config"])
    unknown = np.array([tokenizer.unk_id], np.int32)
    pieces = [
        ids if len(ids) else unknown for ids in tokenizer.encode_batch(words)
    ]
    ids, lengths = np.concatenate(pieces), [len(p) for p in pieces]
    firsts = np.cumsum(lengths) - lengths  # first piece of each word
    size = runner.length - 2
    stride = min(c.doc_stride or max(1, 3 * size // 4), size)
    windows = make_windows(len(ids), size, stride)
    row_of = best_windows(len(ids), windows)[firsts]
    starts = np.array([start for start, _ in windows])
    logits = runner.run(
        [runner.one_part(ids[a : a + length]) for a, length in windows]
    )["logits"]  # [N, T, C]
    shares = softmax(logits[row_of, firsts - starts[row_of] + 1])  # [words, C]
    tags = [runner.task["labels"][i] for i in shares.argmax(-1)]
    return tags, shares.max(-1)


def entities(runner, query: dict, top_k: int) -> dict:
    """Return the entities of a `text`, and the tag of every word."""
    text = query["text"]
    places = words_of(text)
    if not places:
        return {"entities": [], "words": []}
    words = [text[start:end] for start, end in places]
    tags, shares = tag_words(runner, words)
    found = []
    for first, last, kind in entity_spans(tags):
        start, end = places[first][0], places[last][1]
        found.append(
            {"text": text[start:end], "kind": kind, "start": start, "end": end}
        )
    table = zip(words, tags, shares.tolist(), strict=True)
    return {
        "entities": found,
        "words": [
            {"text": word, "tag": tag, "probability": share}
            for word, tag, share in table
        ],
    }
