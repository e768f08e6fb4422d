"""Teachers and ensembles whose models differ in size, against NumPy."""

import dataclasses

import keras
import numpy as np
import pytest
import tiny
import tiny_tasks
from reference import albert_numpy

from albert_tf.finetuning.distillation import teach
from albert_tf.finetuning.ensemble import averaged_outputs, load_ensemble
from albert_tf.finetuning.job import Job
from albert_tf.finetuning.recipes import RecipeConfig
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.registry import find
from albert_tf.tasks.scoring import Split
from albert_tf.tasks.sentences import Example
from albert_tf.tasks.task import TaskConfig
from albert_tf.training import checkpoints
from albert_tf.training.distribution import DistributionConfig, make_strategy

# Layers share their weights: both have the same variables, of other meaning.
SMALL = dataclasses.replace(tiny.CONFIG, initializer_range=0.5)
LARGE = dataclasses.replace(SMALL, num_hidden_layers=3, num_attention_heads=4)
TASK = dataclasses.replace(
    find("classification"), labels=("bad", "fair", "good")
).with_config(TaskConfig(max_seq_length=16))
TEXTS = ("a good film", "so awful it is", "bad", "the plot of " * 9)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny_tasks.make_tokenizer(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def job(tokenizer):
    """Return the job of a student, of rows that differ in length."""
    examples = [Example(str(i), x, "", "bad") for i, x in enumerate(TEXTS)]
    features = TASK.features(examples, tokenizer)
    split = Split("train", examples, features)
    return Job(TASK, SMALL, tokenizer, (split,), (), ())


def finetuned(folder, config, tokenizer, seed):
    """Write a fine-tuned model directory; return its logits of every row."""
    keras.utils.set_random_seed(seed)
    model = TASK.head.build_model(config, "float32")
    weights = checkpoints.named_variables(model)
    config.save(str(folder))
    TASK.save(str(folder))
    tokenizer.save(str(folder))
    checkpoints.save(str(folder), weights)
    table = {name: value.numpy() for name, value in weights.items()}

    def logits(features):
        rows = np.split(features.tokens, features.row_splits[1:-1])
        pooled = [
            albert_numpy.encode(table, config, row, 0 * row + 1, 0 * row)[3]
            for row in rows
        ]
        kernel, bias = (table[f"classifier/{x}"] for x in ("kernel", "bias"))
        return pooled @ kernel + bias

    return logits


def test_a_teacher_has_its_own_shape(job, tokenizer, tmp_path):
    """Its layers, heads and weights are its own, not its student's."""
    wanted = finetuned(tmp_path, LARGE, tokenizer, 1)
    taught = teach(
        job,
        RecipeConfig(teacher=str(tmp_path)),
        None,
        make_strategy(DistributionConfig()),
        2,
        True,
    )
    features = taught.train[0].features
    found = features.arrays["teacher_logits"]
    np.testing.assert_allclose(found, wanted(features), atol=1e-4)


def test_members_have_their_own_shapes(job, tokenizer, tmp_path):
    """The mean goes over the logits of a small and of a large model."""
    folders = [str(tmp_path / name) for name in ("small", "large")]
    features = job.train[0].features
    wanted = [
        finetuned(folder, config, tokenizer, seed)(features)
        for seed, (folder, config) in enumerate(
            zip(folders, (SMALL, LARGE), strict=True)
        )
    ]
    strategy = make_strategy(DistributionConfig())
    evaluator = load_ensemble(folders, job, strategy, 2, "float32")
    found = evaluator.predict(
        lambda: evaluation_batches(features, 2, True), averaged_outputs(TASK)
    )
    mean = np.mean(wanted, axis=0)
    np.testing.assert_allclose(found["logits"], mean, atol=1e-4)
