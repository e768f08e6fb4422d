"""Every kind of task trains, evaluates and predicts from files."""

import json
import os

import numpy as np
import pytest
import tiny_tasks
from tiny_questions import write_squad
from tiny_runs import run

from albert_tf.base import files

NAMES = {word: "B-GOOD" for word in tiny_tasks.GOOD} | {
    word: "B-BAD" for word in tiny_tasks.BAD
}


def write_words(path, number, seed):
    """Write sentences in which words determine tags; return the path."""
    lines = []
    for text, _ in tiny_tasks.opinions(number, seed):
        lines += [f"{w} {NAMES.get(w, 'O')}\n" for w in text.split()] + ["\n"]
    files.write_text(str(path), "".join(lines))
    return str(path)


def write_questions(path, number, seed, impossible):
    """Write questions whose answer is the only opinion in the context.

    If `impossible` is set, some questions have no answer. Return the path.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for text, _ in tiny_tasks.opinions(number, seed):
        answer = next(w for w in text.split() if w in NAMES)
        if impossible and rng.random() < 0.4:
            text, answer = text.replace(answer, "the"), ""
        rows.append((text, answer))
    return write_squad(path, rows)


def write_choices(path, number, seed):
    """Write examples in which only the correct choice has an opinion.

    Return the path.
    """
    rng = np.random.default_rng(seed)
    lines = []
    for _, label in tiny_tasks.opinions(number, seed):
        right = int(rng.integers(3))
        choices = [tiny_tasks.opinion(rng, "so") for _ in range(3)]
        choices[right] = tiny_tasks.opinion(rng, label)
        row = {"context": "film", "question": "is", "choices": choices}
        lines.append(json.dumps(row | {"label": right}) + "\n")
    files.write_text(str(path), "".join(lines))
    return str(path)


WRITERS = {
    "token_classification": (write_words, ".conll", {}),
    "squad-1.1": (write_questions, ".json", {"impossible": False}),
    "squad-2.0": (write_questions, ".json", {"impossible": True}),
    "multiple_choice": (write_choices, ".jsonl", {}),
}
MORE = {
    "squad-1.1": {"max_query_length": 3, "doc_stride": 5},
    "squad-2.0": {"max_query_length": 3, "doc_stride": 5},
    "multiple_choice": {"max_qa_length": 10},
}
WRITTEN = {
    "token_classification": "predictions.conll eval_entities.tsv",
    "squad-1.1": "predictions.json nbest_predictions.json eval_errors.tsv",
    "squad-2.0": "null_odds.json eval_null_odds.json predictions.json",
    "multiple_choice": "predictions.tsv eval_errors.tsv",
}


def finetune(name, pretrained, tmp_path, steps, **values):
    """Train, evaluate and predict with files of a task; return the metrics."""
    write, ending, settings = WRITERS[name]
    paths = {
        f"{part}_file": write(tmp_path / f"{part}{ending}", n, n, **settings)
        for part, n in (("train", 300), ("eval", 40), ("predict", 30))
    }
    output = str(tmp_path / "output")
    metrics = run(
        task=name,
        model_dir=pretrained,
        output_dir=output,
        do_train=True,
        do_eval=True,
        do_predict=True,
        num_train_steps=steps,
        eval_steps=steps,
        steps_per_loop=min(steps, 20),
        **paths,
        **MORE.get(name, {}),
        **values,
    )
    assert set(WRITTEN[name].split()) <= set(os.listdir(output))
    again = run(
        model_dir=output,
        output_dir=str(tmp_path / "again"),
        do_predict=True,
        predict_file=paths["predict_file"],
        max_seq_length=None,
    )
    assert again["predict"] == pytest.approx(metrics["predict"], rel=1e-5)
    return metrics


@pytest.mark.slow
def test_a_run_with_windows(pretrained, tmp_path):
    """A run on windows of contexts evaluates every question.

    Only the run's directory is needed for predictions.
    """
    metrics = finetune("squad-1.1", pretrained, tmp_path, 2)
    assert metrics["eval"]["examples"] == 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metric", "values"),
    [
        # At a rate of 0.01, some seeds do not learn to distinguish the kinds of
        # entities.
        ("token_classification", "f1", {"learning_rate": 0.003}),
        ("squad-1.1", "exact_match", {}),
        # Random choices among three have an accuracy of one third.
        (
            "multiple_choice",
            "accuracy",
            {"learning_rate": 0.003, "num_warmup_steps": 15},
        ),
    ],
)
def test_what_follows_from_words_is_learned(
    name, metric, values, pretrained, tmp_path
):
    """Models learn tags, answers and choices that one word determines."""
    metrics = finetune(name, pretrained, tmp_path, 150, **values)
    assert metrics["eval"][metric] > 0.9
    assert metrics["predict"][metric] > 0.9


@pytest.mark.slow
def test_whether_there_is_an_answer_is_learned(pretrained, tmp_path):
    """The beam head finds answers and recognizes unanswerable questions.

    The null odds separate the two kinds of questions without a tuned threshold.
    """
    values = {"learning_rate": 0.003, "num_warmup_steps": 40}
    values["train_batch_size"] = 32
    metrics = finetune("squad-2.0", pretrained, tmp_path, 400, **values)
    for split in ("eval", "predict"):
        assert metrics[split]["HasAns_exact"] > 0.9
        assert metrics[split]["NoAns_exact"] > 0.9
    odds = files.read_json(str(tmp_path / "output" / "eval_null_odds.json"), "")
    content = files.read_json(str(tmp_path / "eval.json"), "")
    questions = content["data"][0]["paragraphs"]
    without = {
        qa["id"]
        for paragraph in questions
        for qa in paragraph["qas"]
        if qa["is_impossible"]
    }
    right = [(x > 0) == (name in without) for name, x in odds.items()]
    assert np.mean(right) > 0.9
