"""The steps, model and directory of a run."""

import dataclasses
import os
from unittest import mock

import numpy as np
import pytest
import tiny
from tiny_runs import build, refusal

from albert_tf.finetuning.finetuning_setup import (
    FinetuningConfig,
    Job,
    Split,
    prepare,
)
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import find


def test_the_usual_length_fits_the_model(pretrained, opinions):
    """The default length is at most the model's number of positions."""
    how = {"model_dir": pretrained, "output_dir": "o", "do_train": True}
    for setting, length in ((None, 16), (9, 9)):
        s = build(**how, **opinions | {"max_seq_length": setting})
        job = prepare(s.run, s.data, s.task)
        assert job.task.config.max_seq_length == length
    assert "at most the model's" in refusal(
        **how, **opinions | {"max_seq_length": 17}
    )


def test_the_first_split_chooses_the_best_weights():
    """For MNLI, the matched split selects the best weights."""
    names = "eval_matched", "eval_mismatched"
    splits = tuple(Split(name, (), None) for name in names)
    job = Job(find("mnli"), None, None, (), splits, ())
    assert job.best_metric == "matched_accuracy"


@pytest.mark.parametrize(
    ("examples", "counts"),
    [
        (3, "3 examples, 2 of at least 4 tokens"),
        (1, "1 example in 3 rows, 2 of at least 4 tokens"),
    ],
)
def test_rows_are_counted_where_they_are_not_examples(words, examples, counts):
    """The summary states the number of rows if examples have several rows."""
    rows = [(np.arange(n), n) for n in (4, 2, 4)]
    features = Features.from_rows(rows, {}, 0, max_seq_length=4)
    sentence = mock.Mock(words=("a", "b"))
    split = Split("train", [sentence] * examples, features)
    task = find("ner").updated(max_seq_length=4)
    summary = Job(task, None, words, (split,), (), ()).summary()
    assert f"train: {counts}\n" in f"{summary}\n"


def test_only_evaluation_is_compared_with_training(words):
    """The summary has a note below an evaluation split of training inputs."""
    rows = Features.from_rows([(np.full(4, 9), 4)], {}, 0, max_seq_length=4)
    splits = [
        (Split(name, [None], rows),) for name in ("train", "eval_a", "predict")
    ]
    task = find("regression").updated(max_seq_length=4)
    lines = Job(task, None, words, *splits).summary().splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        *("train:", "eval_a:", "Note:", "predict:")
    ]
    assert "1 of 1 different inputs" in lines[3]


def test_steps_follow_from_epochs():
    """Numbers of steps that are not set follow from the number of examples.

    The training steps also depend on `num_train_epochs`, and the warm-up steps
    on `warmup_proportion`.
    """
    s = build(
        model_dir="m",
        output_dir="o",
        do_train=True,
        num_train_steps=None,
        num_warmup_steps=None,
        eval_steps=None,
        eval_batch_size=8,
        num_train_epochs=2.5,
    )
    s = s.planned(100)
    assert s.training.num_train_steps == 16  # 250 examples in batches of 16
    assert s.training.eval_steps == 7
    assert s.optimizer.num_warmup_steps == 1
    assert s.planned(900) == s  # given values are kept
    run = dataclasses.replace(s.run, num_train_epochs=1e-6)
    training = dataclasses.replace(s.training, num_train_steps=None)
    s = dataclasses.replace(s, run=run, training=training)
    assert s.planned(100).training.num_train_steps == 1


@pytest.mark.parametrize("rate", [0.25, 0.0, None])
def test_dropout_of_the_encoder_can_be_set(tmp_path, rate):
    """Flags for dropout override the encoder's config, even with a rate of 0.

    A rate that is not set is the config's.
    """
    names = "hidden_dropout_prob", "attention_probs_dropout_prob"
    own = dataclasses.replace(tiny.CONFIG, **{names[0]: 0.3, names[1]: 0.2})
    own.save(str(tmp_path))
    how = {"model_dir": str(tmp_path), "output_dir": "o", "do_train": True}
    for name in names:
        found = FinetuningConfig(**how, **{name: rate}).encoder()
        changes = {} if rate is None else {name: rate}
        assert found == dataclasses.replace(own, **changes)


def test_the_model_that_is_named_is_evaluated(finished, copy, tmp_path):
    """When a model is evaluated, `output_dir` must not contain another model.

    If `model_dir` is not fine-tuned, the model in `output_dir` is evaluated.
    """
    pretrained = tmp_path / "pretrained"
    for folder, expected in (
        (finished[0], finished[0]),
        (f"{copy}/.", f"{copy}/."),
        (str(pretrained), str(copy)),
    ):
        config = FinetuningConfig(folder, str(copy), do_eval=True)
        assert config.source_dir == expected
    FinetuningConfig(f"{copy}/.", str(copy), do_eval=True).check_output()
    FinetuningConfig(str(pretrained), str(copy), do_eval=True).check_output()
    before = sorted(os.listdir(copy))
    for source in (
        {"model_dir": finished[0]},
        {"ensemble": (finished[0], str(copy))},
    ):
        message = refusal(**source, output_dir=str(copy), do_eval=True)
        assert "must not contain a fine-tuned model" in message
        assert finished[0] in message and f"output_dir={copy}" in message
    assert sorted(os.listdir(copy)) == before
