"""Files in SQuAD format; errors name the question."""

import csv
import gzip
import json

import numpy as np
import pytest

from albert_tf.base.errors import InputError
from albert_tf.tasks.numerics import Spans
from albert_tf.tasks.squad import (
    Answer,
    AnswerPrediction,
    Question,
    Reader,
    Window,
    entries,
    error_table,
    find_answer,
    n_best,
    nbest_entries,
    text_answer,
)

CONTEXT = "A cat saw a cat. The dog slept."


def question(name="q1", answers=(("cat", 2),), **more):
    listed = [{"text": t, "answer_start": s} for t, s in answers]
    return {"id": name, "question": "Who?", "answers": listed, **more}


def write(tmp_path, *questions, context=CONTEXT):
    paragraph = {"context": context, "qas": list(questions)}
    path = tmp_path / "f.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    return str(path)


def read(tmp_path, *questions, part="train", impossible=True):
    return Reader(write(tmp_path, *questions), part, impossible).questions()


def test_what_is_read(tmp_path):
    """All answers are read; the question's span is the first answer's."""
    (found,) = read(tmp_path, question(answers=[("dog", 21), ("cat", 2)]))
    assert (found.id, found.text, found.context) == ("q1", "Who?", CONTEXT)
    assert found.answers == ("dog", "cat")
    assert CONTEXT[slice(*found.span)] == "dog"


def test_an_answer_beside_its_place(tmp_path, capsys):
    """An answer with a wrong offset is found at the nearest occurrence."""
    found = read(
        tmp_path,
        question("a", [("cat", 11)]),
        question("b", [("cat", 4)]),
        question("c", [("cat", 2)]),
    )
    assert [q.span[0] for q in found] == [12, 2, 2]
    assert find_answer("anana", "ana", 4) == 2  # occurrences may overlap
    assert find_answer("a cat", "ca", -3) == 2  # not counted from the end
    assert find_answer("abc (a.c)", "a.c", 0) == 5  # not a pattern
    assert "2 answers not at `answer_start`" in capsys.readouterr().out


def test_an_answer_that_is_not_there(tmp_path, capsys):
    """Only in training does an answer outside the context raise an error."""
    absent = question("q7", [("bird", 2)])
    with pytest.raises(InputError, match="f.json, question q7.*'bird'"):
        read(tmp_path, absent)
    (found,) = read(tmp_path, absent, part="eval")
    assert found.span == (0, 0) and found.answers == ("bird",)
    assert "1 question" in capsys.readouterr().out


def test_questions_without_an_answer(tmp_path):
    """`is_impossible` or an empty list means that a question has no answer.

    For prediction, an empty list or no list means that answers are unknown.
    """
    marked = question("a", [], is_impossible=True)
    found = read(tmp_path, marked, question("b", []), part="eval")
    assert [q.answers for q in found] == [(), ()]
    del marked["answers"]
    assert read(tmp_path, marked)[0].answers == ()
    unknown = {"id": "c", "question": "Who?"}
    found = read(tmp_path, unknown, question("d", []), part="predict")
    assert [q.answers for q in found] == [None, None]
    # SQuAD 1.1 has no score for unanswerable questions.
    for impossible, answers in ((True, ()), (False, None)):
        (found,) = read(tmp_path, marked, part="predict", impossible=impossible)
        assert found.answers == answers


@pytest.mark.parametrize(
    ("broken", "parts"),
    [
        (question("a", []), ["question a", "squad-2.0"]),
        (question("a", [], is_impossible=True), ["question a", "squad-2.0"]),
        (question("a", is_impossible=True), ["question a", "`is_impossible`"]),
        (question("a", is_impossible="no"), ["question a", "must be true or"]),
        (
            {"id": "a", "question": 3, "answers": []},
            ["question a", "`question`"],
        ),
        ({"id": "a", "question": "x"}, ["question a", "`answers`"]),
        (question("a", [("cat", "2")]), ["question a", "`answer_start`"]),
        (
            question("a") | {"answers": {"text": ["cat"], "answer_start": []}},
            ["question a", "every answer must have an `answer_start`"],
        ),
        ({"question": "x"}, ["data[0]", "`id`"]),
    ],
)
def test_malformed_questions(tmp_path, broken, parts):
    """The error for a malformed question names the file and the question."""
    with pytest.raises(InputError) as error:
        read(tmp_path, broken, impossible=False)
    message = str(error.value)
    assert "f.json" in message and all(part in message for part in parts)


@pytest.mark.parametrize("names", [("q1", "q1"), (7, 7), ("7", 7), (7, "7")])
def test_two_questions_of_one_name(names, tmp_path):
    """Two questions that share an `id` raise an error.

    A number and its text are the same `id`, because predictions are text.
    """
    with pytest.raises(InputError, match=f"unique `id`.*{names[1]!r}$"):
        read(tmp_path, *map(question, names))


def test_an_answer_in_another_unicode_form(tmp_path):
    """The error states that the answer has another Unicode form in the context.

    For example, one form is composed, and the other is decomposed.
    """
    context = "He saw the cafe\u0301."
    for answer, message in (
        ("caf\u00e9", "in its context; the context has another Unicode form"),
        ("bar", "in its context. Received"),
    ):
        path = write(tmp_path, question("q", [(answer, 11)]), context=context)
        with pytest.raises(InputError, match=message):
            Reader(path, "train", False).questions()


def test_all_questions_that_do_not_fit_are_listed(tmp_path):
    """One error lists all missing and contradictory answers."""
    rows = [
        question(f"q{i}", [(f"bird {i}", 2), ("fish", 9)]) for i in range(30)
    ]
    rows += [question("ok"), question("no", is_impossible=True)]
    with pytest.raises(InputError, match="remove 31 questions") as error:
        read(tmp_path, *rows)
    lines = str(error.value).splitlines()[1:]
    assert len(lines) == 31
    assert "question q7: an answer must be in its context" in lines[7]
    assert lines[7].endswith("Received: answer='bird 7'")
    assert "question no: a question with `is_impossible`" in lines[30]


@pytest.mark.parametrize(
    ("flag", "impossible"),
    [
        (True, True),
        ("True", True),
        ("false", False),
        (None, False),
    ],
)
def test_a_flag_is_what_it_says(tmp_path, flag, impossible):
    """`is_impossible` may be a number or a string; "false" means false."""
    answers = [] if impossible else [("cat", 2)]
    row = question(answers=answers, is_impossible=flag)
    for part in ("train", "eval", "predict"):
        (found,) = read(tmp_path, row, part=part)
        assert found.answers == (() if impossible else ("cat",))
    (found,) = read(
        tmp_path,
        {"id": "q", "question": "Who?", "is_impossible": flag},
        part="predict",
    )
    assert found.answers == (() if impossible else None)


@pytest.mark.parametrize("value", [None, "", [], {}, float("nan")])
def test_a_name_is_a_text_or_a_number(tmp_path, value):
    """An `id` that is empty, or neither a string nor a number, is rejected."""
    with pytest.raises(InputError, match="unique `id`"):
        read(tmp_path, question(value))
    assert read(tmp_path, question(0))[0].id == "0"


WAYS = [
    "cat",
    ["cat"],
    '["cat"]',
    {"text": ["cat"], "answer_start": [2]},
    {"text": "cat", "answer_start": 2},
    [{"text": "cat", "answer_start": 2}],
    '{"text": ["cat"], "answer_start": [2]}',
]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize("answers", WAYS)
def test_questions_of_a_table(tmp_path, ending, answers, capsys):
    """Each row is a question; answers are texts, with or without offsets.

    Without a column `id`, questions are numbered.
    """
    path = tmp_path / f"t{ending}"
    row = {"question": "Who?", "context": CONTEXT, "answers": answers}
    rows, names = [row, row | {"answers": ""}], ("0", "1")
    if isinstance(answers, list):
        names = ("n3", "n1")
        rows = [x | {"id": i} for x, i in zip(rows, names, strict=True)]
    if ending == ".jsonl":
        text = "\n".join(map(json.dumps, rows))
    else:
        with open(path, "w", newline="") as file:
            mark = {"delimiter": "," if ending == ".csv" else "\t"}
            if ending == ".tsv":
                mark |= {"quoting": csv.QUOTE_NONE, "quotechar": None}
            writer = csv.DictWriter(file, rows[0], **mark)
            writer.writeheader()
            for cells in rows:
                value = cells["answers"]
                if not isinstance(value, str):
                    value = json.dumps(value)
                writer.writerow(cells | {"answers": value})
        text = path.read_text()
    path.write_text(text)
    first, second = Reader(str(path), "train", True).questions()
    assert first.answers == ("cat",) and first.span == (2, 5)
    assert (first.id, second.id, second.answers) == (*names, ())
    assert not capsys.readouterr().out  # an unknown start is not wrong
    path.write_text(text.replace(CONTEXT, "The dog slept."))
    with pytest.raises(InputError, match=rf"t\{ending}:[12]: an answer must"):
        Reader(str(path), "train", True).questions()


def test_a_text_that_looks_like_json_is_an_answer(tmp_path):
    """Only lists and objects that contain answers are read as JSON."""
    for text in ("5", '"cat"', "[1]", "{x", "true", '["cat", 1]'):
        path = tmp_path / "t.jsonl"
        row = {"question": "q", "context": f"a {text}.", "answers": text}
        path.write_text(json.dumps(row))
        (found,) = Reader(str(path), "train", True).questions()
        assert found.answers == (text,)


@pytest.mark.parametrize("part", ["train", "eval", "predict"])
def test_printed_answers_are_not_an_answer(tmp_path, part):
    """Answers as Python prints them, which pandas writes, are an error.

    As a text, they would be a wrong answer, even to an unanswerable question.
    """
    path = tmp_path / "t.csv"
    for answers in (
        "{'text': ['cat'], 'answer_start': [2]}",
        "{'text': array([], dtype=object), 'answer_start': array([])}",
        "[{'answer_start': 2, 'text': 'cat'}]",
    ):
        path.write_text(f'question,context,answers\nq,a cat,"{answers}"\n')
        with pytest.raises(InputError, match="t.csv:2: an object .* be JSON"):
            Reader(str(path), part, True).questions()


def test_another_format(tmp_path):
    """Files that are not JSON, or have no `data`, raise errors.

    A file that ends in .jsonl is a table, even without the column `context`.
    """
    path = tmp_path / "f.json"
    path.write_text('{"version": "1.1"}')
    with pytest.raises(InputError, match="f.json: `data`"):
        Reader(str(path), "train", True).questions()
    path.write_text("{")
    with pytest.raises(InputError, match="JSON"):
        Reader(str(path), "train", True).questions()
    path = tmp_path / "t.jsonl"
    path.write_text('{"question": "q", "text": "c", "answers": "c"}')
    with pytest.raises(InputError, match="t.jsonl:1: .*`context`"):
        Reader(str(path), "train", True).questions()


def test_compressed_questions(tmp_path):
    """Compressed JSON is read, whether it has one line or several lines."""
    path = write(tmp_path, question())
    content = json.load(open(path, encoding="utf-8"))
    wanted = [(x.context, x.qa) for x in entries(path)]
    for indent in (None, 2):
        data = json.dumps(content, indent=indent).encode()
        other = tmp_path / "data"
        other.write_bytes(gzip.compress(data))
        found = [(x.context, x.qa) for x in entries(str(other))]
        assert found == wanted
    row = {"context": "c", "question": "q", "answers": "c"}
    other.write_text(json.dumps(row))  # a table, whatever its name
    (found,) = entries(str(other))
    assert found.qa == {"id": 0} | row


def test_an_answer_has_no_spaces_at_its_ends():
    """An answer's span in the context does not include outer spaces.

    The span also excludes zero-width joiners and marks at its ends.
    """
    starts, ends = np.array([0, 3, 6]), np.array([3, 6, 10])
    window = Window(4, starts, ends, np.ones(3, bool))
    found = text_answer("so  a b  x", window, 5, 6)
    assert found == ("a b  x", (4, 10))
    assert text_answer("so  a  b x", window, 4, 5) == ("so  a", (0, 5))
    joined = "\u0645\u06cc\u200c\u0628\u0631\u0645\u200f x."  # Persian
    assert text_answer(joined, window, 4, 5) == (joined[:6], (0, 6))
    starts[1] = 2
    assert text_answer(joined, window, 5, 5) == (joined[3:6], (3, 6))


def test_equal_texts_are_one_answer():
    """Of several spans with the same text, only the best one is an answer.

    The scores of starts and ends are written under separate names.
    """
    every = np.ones(3, bool)
    windows = [Window(1, np.array([0, 2, 4]), np.array([1, 3, 5]), every)]
    position = np.array([[1, 3, 2, 1]])
    last = np.array([[1, 3, 2, 2]])
    start, end = np.array([[1.0, 2.0, 1.5, 0.0], [0.5, 1.0, 0.25, 0.0]])
    spans = Spans(position, last, start[None], end[None])
    best = n_best("a b a", windows, spans, 3)
    assert best == [
        Answer("a", 2.0, 1.0, (4, 5)),
        Answer("b", 1.5, 0.25, (2, 3)),
        Answer("a b", 0.0, 0.0, (0, 3)),
    ]
    entry = nbest_entries(best)[0]
    assert (entry["start_log_prob"], entry["end_log_prob"]) == (2.0, 1.0)
    share = np.exp(3.0) / np.exp([3.0, 1.75, 0.0]).sum()
    assert entry["probability"] == pytest.approx(share)


def test_the_odds_must_exceed_the_threshold():
    """An answer is withheld if the null odds exceed a known threshold."""
    best = [Answer("x", 0.0, 0.0, (0, 1))]
    for odds, threshold, text in (
        (1.0, 1.0, "x"),
        (1.0, 0.5, ""),
        (-1.0, 0.0, "x"),
        (1.0, None, "x"),
        (None, 0.5, "x"),
    ):
        assert AnswerPrediction(best, odds).text(threshold) == text


def test_the_table_of_errors():
    """The table lists the questions that were not answered exactly."""
    golds = (("x",), ("a y", "z", "a y"), (), (), ("x", "y"))
    texts = ("X.", "b", "b", "", "y")
    questions = [Question(f"q{i}", "?", "", x) for i, x in enumerate(golds)]
    assert error_table(questions, texts) == [
        ["id", "question", "prediction", "answers"],
        ["q1", "?", "b", "a y | z"],
        ["q2", "?", "b", ""],
    ]
