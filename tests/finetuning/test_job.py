"""Samples and steps, and which model and directory a run is about."""

import dataclasses
import os
import shutil

import pytest
import tiny
import tiny_tasks
from tiny_runs import build, refusal, run

from albert_tf.finetuning import finetune
from albert_tf.finetuning.job import FinetuningConfig, Job, read_parts, sample
from albert_tf.tasks.registry import find
from albert_tf.tasks.scoring import Split
from albert_tf.tasks.task import DataConfig


def test_a_sample_is_a_part_in_order():
    """It has so many different examples, in order, from all over the file."""
    examples = list(range(1000))
    found = sample(examples, 100)
    assert len(set(found)) == 100 and found == sorted(found)
    assert max(found) > 900 and min(found) < 100
    assert found == sample(examples, 100)
    assert sample(examples, 0) == sample(examples, 2000) == examples


def test_labels_are_those_of_the_whole_file(tmp_path):
    """A label that no sampled example has is a label all the same."""
    rows = [(f"film {i}", "good" if i else "rare") for i in range(300)]
    path = tiny_tasks.write_tsv(tmp_path / "t.tsv", ("text", "label"), *rows)
    data = DataConfig(task="classification", train_file=path, eval_file=path)
    config = FinetuningConfig(
        model_dir="m",
        output_dir="o",
        do_train=True,
        do_eval=True,
        max_train_examples=20,
        max_eval_examples=30,
    )
    task, parts = read_parts(config, data, find(data.task).with_data(data))
    assert {k: len(x[""]) for k, x in parts.items()} == {
        "train": 20,
        "eval": 30,
    }
    assert "rare" not in {example.label for example in parts["train"][""]}
    assert task.labels == ("good", "rare")


def test_workers_need_the_same_settings_and_examples(
    pretrained, opinions, tmp_path, monkeypatch
):
    """Their files may lie elsewhere, and hold what those of the others do."""
    compared = []
    monkeypatch.setattr(
        finetune.distribution,
        "require_alike",
        lambda _, values: compared.append(values),
    )

    def differences(**changes):
        for values in ({}, changes):
            how = {"model_dir": pretrained, "do_train": True, "do_eval": True}
            s = build(**{**how, "output_dir": "o", **opinions, **values})
            job = finetune.prepare_job(s, s.data)
            finetune.require_alike("several workers", s, job)
        one, two = compared[-2:]
        return {k for k in one | two if one.get(k) != two.get(k)}

    elsewhere = shutil.copy(opinions["train_file"], tmp_path / "t.tsv")
    assert not differences(train_file=elsewhere, output_dir="p")
    other = tiny_tasks.write_opinions(tmp_path / "other.tsv", 300, 5)
    assert differences(train_file=other) == {"train examples of classification"}
    assert differences(num_train_epochs=1.0) == {"num_train_epochs"}
    examples = "predict examples of classification"
    assert differences(do_predict=True) == {"do_predict", examples}
    finetune.require_alike(None, *[None] * 2)  # one process


def test_the_first_split_chooses_the_best_weights():
    """Of MNLI's two it is the matched one."""
    names = "eval_matched", "eval_mismatched"
    splits = tuple(Split(name, (), None) for name in names)
    job = Job(find("mnli"), None, None, (), splits, ())
    assert job.best_metric == "matched_accuracy"


@pytest.mark.slow
def test_a_run_of_samples(pretrained, opinions, tmp_path):
    """Steps follow from the sample, metrics are those of the sample.

    The features of all examples in the cache are not taken for its own.
    """
    values = opinions | {
        "model_dir": pretrained,
        "do_train": True,
        "do_eval": True,
        "feature_cache_dir": str(tmp_path / "cache"),
        "num_train_steps": None,
        "num_train_epochs": 1.0,
    }
    run(output_dir=str(tmp_path / "all"), **values)
    output = str(tmp_path / "o")
    values |= {"max_train_examples": 40, "max_eval_examples": 11}
    found = run(output_dir=output, **values)
    assert found["eval"]["examples"] == 11
    assert (tmp_path / "o" / "ckpt-3.index").exists()
    assert (
        len((tmp_path / "o" / "eval_predictions.tsv").open().readlines()) == 12
    )


def test_steps_follow_from_epochs():
    """Steps, warm-up and evaluation follow from the number of examples."""
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


def test_samples_are_not_below_nothing():
    """A negative number of examples is refused by name."""
    with pytest.raises(ValueError, match="max_train_examples=-1"):
        build(
            model_dir="m",
            output_dir="o",
            do_train=True,
            max_train_examples=-1,
        )


def test_dropout_of_the_encoder_can_be_set(pretrained):
    """The flags replace the config's dropout."""
    found = FinetuningConfig(
        model_dir=pretrained,
        output_dir="o",
        do_train=True,
        hidden_dropout_prob=0.25,
        attention_probs_dropout_prob=0.1,
    ).encoder()
    assert found == dataclasses.replace(
        tiny.CONFIG, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.1
    )


def test_the_model_that_is_named_is_evaluated(finished, copy, tmp_path):
    """`output_dir` may hold that model, but not another fine-tuned one."""
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
        assert "must not hold another fine-tuned model" in message
        assert finished[0] in message and f"output_dir={copy}" in message
    assert sorted(os.listdir(copy)) == before
