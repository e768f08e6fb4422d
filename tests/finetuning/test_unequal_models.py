"""An ensemble of unequal models has the mean outputs of its members."""

import dataclasses

import keras
import numpy as np
import pytest
import tiny

from albert_tf.finetuning.evaluation import averaged_outputs, load_ensemble
from albert_tf.finetuning.finetuning_setup import Job, Split
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.classification import Example
from albert_tf.tasks.registry import find
from albert_tf.training import checkpoints
from albert_tf.training.distribution import DistributionConfig, make_strategy

# Layers share weights, so both models have variables of the same shapes.
SMALL = dataclasses.replace(tiny.CONFIG, initializer_range=0.5)
LARGE = dataclasses.replace(SMALL, num_hidden_layers=3, num_attention_heads=4)
TASK = dataclasses.replace(
    find("classification"), labels=("bad", "fair", "good")
).updated(max_seq_length=16)
TEXTS = ("a good film", "so awful it is", "bad", "the plot of " * 9)


def finetuned(folder, config, tokenizer, seed):
    """Write a fine-tuned model directory and return the model."""
    keras.utils.set_random_seed(seed)
    model = TASK.build_model(config, "float32")
    config.save(folder)
    TASK.save(folder)
    tokenizer.save(folder)
    checkpoints.save(folder, checkpoints.named_variables(model))
    return model


def job_of(tokenizer):
    """Return a job with rows of different lengths."""
    examples = [Example(str(i), x, "", "bad") for i, x in enumerate(TEXTS)]
    features = TASK.features(examples, tokenizer)
    split = Split("train", examples, features)
    return Job(TASK, SMALL, tokenizer, (split,), (), ())


@pytest.mark.slow
def test_members_have_their_own_shapes(words, tmp_path):
    """An ensemble averages logits from a small model and a large model."""
    job = job_of(words)
    features = job.train[0].features
    folders = [str(tmp_path / name) for name in ("small", "large")]
    logits = [
        finetuned(folder, config, words, seed)(*features.dense().values())
        for seed, (folder, config) in enumerate(
            zip(folders, (SMALL, LARGE), strict=True)
        )
    ]
    strategy = make_strategy(DistributionConfig())
    evaluator = load_ensemble(folders, job, strategy, 2, "float32")
    outputs = evaluator.predict(
        lambda: evaluation_batches(features, 2, True), averaged_outputs(TASK)
    )
    # Batches are ordered by length, but predictions have the file's order.
    mean = np.mean(logits, axis=0)
    np.testing.assert_allclose(outputs["logits"], mean, atol=1e-4)
    assert np.abs(logits[0] - logits[1]).max() > 0.1
