"""Questions about a short text, and their task."""

from albert_tf.base import files
from albert_tf.tasks.registry import find
from albert_tf.tasks.squad import Question

CONTEXT = "Good film, the PLOT of this one is awful and so very poor in it."


def asked(name, text, answer=None, context=CONTEXT):
    """Return a question; "" means no answer, and None an unknown answer."""
    if answer is None:
        return Question(name, text, context, None)
    start = context.index(answer)
    span = (start, start + len(answer)) if answer else (0, 0)
    return Question(name, text, context, (answer,) if answer else (), span)


def write_squad(path, rows):
    """Write questions in SQuAD's format; return the path.

    Args:
      path: the file to write.
      rows: (context, answer) pairs; "" means no answer, and None an unknown
        answer. The last occurrence in the context is the answer.
    """
    paragraphs = []
    for i, (context, answer) in enumerate(rows):
        qa = {"id": f"q{i}", "question": "is it"}
        if answer is not None:
            start = context.rindex(answer)
            answers = [{"text": answer, "answer_start": start}]
            qa["answers"] = answers if answer else []
            qa["is_impossible"] = not answer
        paragraphs.append({"context": context, "qas": [qa]})
    files.write_json(str(path), {"data": [{"paragraphs": paragraphs}]})
    return str(path)


EXAMPLES = [
    asked("a", "is it good", "PLOT of this"),
    asked("b", "is the film bad", "Good film"),
    asked("c", "so is it", ""),
    asked("d", "this film", "one", context="so the one and this"),
    asked("e", "is it bad", "poor in it"),
]


def make_task(head="simple", **config):
    """Return a SQuAD 2.0 task with rows of 16 tokens, fitted to `EXAMPLES`."""
    values = {"max_seq_length": 16, "max_query_length": 4, "doc_stride": 3}
    task = find("squad-2.0").updated(answer_head=head, **values | config)
    return task.fitted(EXAMPLES)
