"""Files in the format of SQuAD, and the errors that name a question."""

import gzip
import json

import pytest

from albert_tf.base.errors import InputError
from albert_tf.tasks.squad_files import Reader, entries, find_answer

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
    """Answers are all texts, the span is that of the first."""
    (found,) = read(tmp_path, question(answers=[("dog", 21), ("cat", 2)]))
    assert (found.id, found.text, found.context) == ("q1", "Who?", CONTEXT)
    assert found.answers == ("dog", "cat")
    assert CONTEXT[slice(*found.span)] == "dog"


def test_an_answer_beside_its_place(tmp_path, capsys):
    """The nearest exact occurrence is taken, and counted."""
    found = read(
        tmp_path,
        question("a", [("cat", 11)]),
        question("b", [("cat", 4)]),
        question("c", [("cat", 2)]),
    )
    assert [q.span[0] for q in found] == [12, 2, 2]
    assert find_answer("anana", "ana", 4) == 2  # places may overlap
    assert find_answer("a cat", "ca", -3) == 2  # and none counts from the end
    assert (
        "2 answers are not at their `answer_start`" in capsys.readouterr().out
    )


def test_an_answer_that_is_not_there(tmp_path, capsys):
    """Not to learn from; to evaluate on, it counts and cannot be found."""
    absent = question("q7", [("bird", 2)])
    with pytest.raises(InputError, match="f.json, question q7.*'bird'"):
        read(tmp_path, absent)
    (found,) = read(tmp_path, absent, part="eval")
    assert found.span == (0, 0) and found.answers == ("bird",)
    assert "1 questions" in capsys.readouterr().out


def test_questions_without_an_answer(tmp_path):
    """No answer, by the mark or by an empty list, is () and not unknown."""
    marked = question("a", [], is_impossible=True)
    found = read(tmp_path, marked, question("b", []), part="eval")
    assert [q.answers for q in found] == [(), ()]
    unknown = {"id": "c", "question": "Who?"}
    found = read(tmp_path, unknown, question("d", []), part="predict")
    assert [q.answers for q in found] == [None, None]
    # What a model that always answers has no score for.
    for impossible, answers in ((True, ()), (False, None)):
        (found,) = read(tmp_path, marked, part="predict", impossible=impossible)
        assert found.answers == answers


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (question("a", []), ["question a", "squad-2.0"]),
        (
            {"id": "a", "question": 3, "answers": []},
            ["question a", "`question`"],
        ),
        ({"id": "a", "question": "x"}, ["question a", "`answers`"]),
        (question("a", [("cat", "2")]), ["question a", "`answer_start`"]),
        ({"question": "x"}, ["data[0]", "`id`"]),
    ],
)
def test_malformed_questions(tmp_path, broken, said):
    """Each fault is one message that names the file and the question."""
    with pytest.raises(InputError) as error:
        read(tmp_path, broken, impossible=False)
    message = str(error.value)
    assert "f.json" in message and all(part in message for part in said)


def test_two_questions_of_one_name(tmp_path):
    """Predictions could not tell them apart."""
    with pytest.raises(InputError, match="`id` of its own.*'q1'"):
        read(tmp_path, question(), question())


def test_another_format(tmp_path):
    """JSON without `data` is refused, a file that is no JSON too."""
    path = tmp_path / "f.json"
    path.write_text('{"version": "1.1"}')
    with pytest.raises(InputError, match="f.json: `data`"):
        Reader(str(path), "train", True).questions()
    path.write_text("{")
    with pytest.raises(InputError, match="JSON"):
        Reader(str(path), "train", True).questions()


def test_compressed_questions(tmp_path):
    """They are read as the plain file, on one line or on several."""
    path = write(tmp_path, question())
    content = json.load(open(path, encoding="utf-8"))
    wanted = list(entries(path))
    for indent in (None, 2):
        data = json.dumps(content, indent=indent).encode()
        other = tmp_path / "data"
        other.write_bytes(gzip.compress(data))
        assert [x[:2] for x in entries(str(other))] == [x[:2] for x in wanted]
