"""Smoothed labels for choices, and a teacher's outputs for tokens."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.finetuning.soft_targets import SoftTargets, with_teacher
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import TASKS

LOGITS = np.random.default_rng(4).normal(size=(6, 3)).astype("f4")
LABELS = np.array([0, 1, 2, 2, 1, 0], np.int32)


def test_absent_choices_have_no_share():
    """Label smoothing assigns no probability to absent choices."""
    recipe = RecipeConfig(label_smoothing=0.3)
    objective = SoftTargets(TASKS["multiple_choice"], recipe)
    mask = np.array([[1, 1, 0], [1, 1, 1]], "f4")
    batch = {"labels": LABELS[:2], "choice_mask": mask}
    outputs = {"logits": tf.where(mask > 0, LOGITS[:2], -1e30)}
    found = objective.example_losses(outputs, batch).numpy()
    for i, number in enumerate((2, 3)):
        of_labels = -scipy.special.log_softmax(LOGITS[i, :number].astype("f8"))
        expected = 0.7 * of_labels[LABELS[i]] + 0.3 * of_labels.mean()
        np.testing.assert_allclose(found[i], expected, rtol=1e-5)


@pytest.mark.parametrize("bucketed", [False, True])
def test_outputs_of_tokens_stand_beside_them(bucketed):
    """Sorting by length keeps a teacher's outputs together with their tokens.

    Padding has the given fill value.
    """
    lengths = [3, 20, 9]
    rows = [(np.arange(1, n + 1, dtype=np.int32), n) for n in lengths]
    features = Features.from_rows(rows, {}, 0, 24)
    tags = np.zeros([3, 20, 2], "f4")
    for i, n in enumerate(lengths):
        tags[i, :n] = np.arange(1, n + 1)[:, None] * [1, 10] + i / 4
    outputs = {"tags": tags, "logits": np.arange(6).reshape(3, 2)}
    taught = with_teacher(features, outputs, {"tags": -7.0})
    for batch in evaluation_batches(taught, 1, bucketed):
        i = int(batch["example_numbers"][0])
        n = lengths[i]
        found = batch["teacher_tags"][0].numpy()
        np.testing.assert_array_equal(found[:n], tags[i, :n])
        assert np.all(found[n:] == -7.0)
        assert found.shape == (batch["input_ids"].shape[1], 2)
        assert batch["teacher_logits"].numpy().tolist() == [[2 * i, 2 * i + 1]]
