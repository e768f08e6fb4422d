"""Losses, metrics and weights of examples equal values computed in NumPy.

Weights, labels and logits differ in every row.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit, log_expit, log_softmax, softmax

from albert_tf.tasks.registry import find

RNG = np.random.default_rng(7)
LOGITS = RNG.normal(0, 2, [5, 4])  # [B, C]
TEACHER = RNG.normal(0, 2, [5, 4])
WEIGHTS = np.array([1.0, 1.0, 0.0, 1.0, 1.0], np.float32)  # a row of padding
CLASSES = ("a", "b", "c", "d")


def objective_of(name, labels=(), **config):
    """Return the objective of a task with the given labels, if any."""
    task = find(name).updated(**config)
    if labels:
        task = dataclasses.replace(task, labels=labels)
    return task.objective


def tensors(values):
    return {k: tf.constant(np.float32(x)) for k, x in values.items()}


def batch_of(labels, **features):
    """Return a batch of five examples, the third of which is padding."""
    batch = {"labels": tf.constant(labels), **tensors(features)}
    return batch | {"example_weights": tf.constant(WEIGHTS)}


class Model:
    """A model with a given output that records its keyword arguments."""

    def __init__(self, output):
        self.output, self.received = output, []

    def __call__(self, *inputs, **features):
        self.received.append(features)
        return self.output


INPUTS = {k: np.zeros(1) for k in ("input_ids", "input_mask", "segment_ids")}


def soft_by_hand(logits, teacher, temperature):
    """Return T^2 times the cross entropy with the teacher at temperature T."""
    log_p = log_softmax(logits / temperature, axis=-1)
    shares = softmax(teacher / temperature, axis=-1)
    return -(temperature**2) * (shares * log_p).sum(-1)


def test_sums_of_a_batch():
    """Losses are weighted by label, metrics only by example.

    Padding counts in neither. The seed of dropout reaches the model.
    """
    objective = objective_of("classification", CLASSES)
    labels = np.int32([0, 3, 1, 2, 2])
    own = np.array([0.5, 2.0, 3.0, 1.0, 0.25])
    batch = batch_of(labels, label_weights=own, **INPUTS)
    logits = LOGITS.copy()
    logits[[0, 3], labels[[0, 3]]] = 9.0  # right; other predictions are wrong
    logits[[1, 4], labels[[1, 4]]] = -9.0
    model = Model(tf.constant(logits, tf.float32))
    sums, metrics = objective.losses(model, batch, "seed")
    losses = -log_softmax(logits, -1)[np.arange(5), labels]
    weights = own * WEIGHTS
    assert float(sums["task"]) == pytest.approx(weights @ losses, rel=1e-5)
    assert float(objective.weights(batch)["task"]) == weights.sum() == 3.75
    assert [float(x) for x in metrics["accuracy"]] == [2.0, 4.0]
    assert model.received == [{"seed": "seed"}]
    found = objective.measured_outputs(model, batch)
    np.testing.assert_allclose(found["task_loss"], losses, rtol=1e-3)
    np.testing.assert_allclose(found["loss_weights"], weights)
    unlabeled = {k: x for k, x in batch.items() if k != "labels"}
    assert objective.measured_outputs(model, unlabeled).keys() == {"logits"}


def test_labels_that_are_shares():
    """If labels are shares, the likeliest class counts as right."""
    objective = objective_of("classification", CLASSES)
    shares = np.float32(softmax(TEACHER, axis=-1))
    outputs = tensors({"logits": LOGITS})
    found = objective.example_losses(outputs, batch_of(shares))
    expected = -(shares * log_softmax(LOGITS, -1)).sum(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    right = objective.example_metrics(outputs, batch_of(shares))["accuracy"]
    expected = LOGITS.argmax(-1) == shares.argmax(-1)
    assert right.numpy().tolist() == expected.tolist()
    assert 0 < expected.sum() < 5


def test_losses_of_sets():
    """A set's loss is the weighted mean of its classes' losses.

    The weight of the set is the mean of its classes' weights.
    """
    objective = objective_of("multilabel", CLASSES)
    labels = np.float32(RNG.integers(0, 2, [5, 4]))
    labels[1] = LOGITS[1] > 0
    own = RNG.uniform(0.5, 2, [5, 4])
    outputs = tensors({"logits": LOGITS})
    batch = batch_of(labels, label_weights=own)
    each = -np.where(labels > 0, log_expit(LOGITS), log_expit(-LOGITS))
    found = objective.example_losses(outputs, batch)
    expected = (own * each).sum(-1) / own.sum(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    found = objective.loss_weights(batch)
    np.testing.assert_allclose(found, own.mean(-1) * WEIGHTS, rtol=1e-5)
    right = objective.example_metrics(outputs, batch)["accuracy"].numpy()
    assert right.tolist() == [*(labels == (LOGITS > 0)).all(-1)]
    assert 0 < right.sum() < 5
    yes, p = expit(TEACHER / 3), LOGITS / 3
    each = -yes * log_expit(p) - (1 - yes) * log_expit(-p)
    expected = 9 * (own * each).sum(-1) / own.sum(-1)
    targets = tensors({"logits": TEACHER})
    found = objective.soft_losses(outputs, targets, 3.0, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("labels", [(), CLASSES])
def test_losses_of_numbers(labels):
    """The loss is the mean squared error, against labels or a teacher."""
    objective = objective_of("regression", labels)
    width = len(labels) or 1
    outputs = tensors({"logits": LOGITS[:, :width]})
    targets = tensors({"logits": TEACHER[:, :width]})
    numbers = np.float32(RNG.normal(size=[5, 4] if labels else 5))
    batch = batch_of(numbers)
    found = objective.example_losses(outputs, batch)
    errors = (LOGITS[:, :width] - numbers.reshape(5, width)) ** 2
    np.testing.assert_allclose(found, errors.mean(-1), rtol=1e-5)
    found = objective.soft_losses(outputs, targets, 2.0, batch)
    errors = (LOGITS - TEACHER)[:, :width] ** 2
    np.testing.assert_allclose(found, errors.mean(-1), rtol=1e-5)


@pytest.mark.parametrize("name", ["classification", "multiple_choice"])
def test_losses_against_a_teacher(name):
    """A teacher assigns no share to absent choices, whatever its logits are."""
    objective = objective_of(name, CLASSES if name == "classification" else ())
    present = np.ones([5, 4], bool)
    logits, teacher = LOGITS.copy(), TEACHER.copy()
    if name == "multiple_choice":
        present[1, 2:] = present[3, 3] = False
        teacher[1, 3] = 50.0
    batch = batch_of(np.zeros(5, np.int32), choice_mask=present, **INPUTS)
    outputs = objective.outputs(Model(tf.constant(logits, tf.float32)), batch)
    targets = tensors({"logits": teacher})
    found = objective.soft_losses(outputs, targets, 2.0, batch)
    expected = [
        soft_by_hand(x[own], y[own], 2.0)
        for x, y, own in zip(logits, teacher, present, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_losses_of_tags():
    """Losses and metrics are means over words; weights count in losses only.

    A row's weight is the sum over its words, or 0 if the row is padding.
    """
    objective = objective_of("token_classification", ("O", "B-A", "I-A"))
    labels = np.int32(RNG.integers(-1, 3, [5, 6]))
    labels[:, 2], labels[:, 3] = 1, -1
    own, is_word = RNG.uniform(0.5, 2, [5, 6]), labels >= 0
    logits, teacher = RNG.normal(0, 2, [2, 5, 6, 3])
    batch = batch_of(labels, label_weights=own)
    outputs = tensors({"logits": logits})
    at = np.maximum(labels, 0)[..., None]
    each = -np.take_along_axis(log_softmax(logits, -1), at, -1)[..., 0]
    weights = own * is_word
    expected = (weights * each).sum(1) / weights.sum(1)
    found = objective.example_losses(outputs, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    each = soft_by_hand(logits, teacher, 2.0)
    expected = (weights * each).sum(1) / weights.sum(1)
    targets = tensors({"logits": teacher})
    found = objective.soft_losses(outputs, targets, 2.0, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    right = (logits.argmax(-1) == labels) & is_word
    found = objective.example_metrics(outputs, batch)["accuracy"]
    np.testing.assert_allclose(found, right.sum(1) / is_word.sum(1), rtol=1e-6)
    found = objective.label_counts(batch)
    np.testing.assert_allclose(found, is_word.sum(1) * WEIGHTS)
    found = objective.loss_weights(batch)
    np.testing.assert_allclose(found, weights.sum(1) * WEIGHTS, rtol=1e-6)


def test_losses_of_spans_against_a_teacher():
    """The loss is the mean of the losses of starts and ends."""
    objective = objective_of("squad-1.1")
    starts, ends = RNG.normal(0, 2, [2, 2, 5, 4])
    student, teacher = (
        {"start_logits": s, "end_logits": e}
        for s, e in zip(starts, ends, strict=True)
    )
    losses = [soft_by_hand(x, y, 3.0) for x, y in (starts, ends)]
    found = objective.soft_losses(tensors(student), tensors(teacher), 3.0, {})
    np.testing.assert_allclose(found, np.mean(losses, axis=0), rtol=1e-5)


def test_a_beam_head_learns_from_labels():
    """A beam head receives the labels and the seed of dropout."""
    objective = objective_of("squad-2.0")
    batch = batch_of(np.int32([[1, 2]] * 5), **INPUTS)
    model = Model({})
    objective.outputs(model, batch, "seed")
    assert model.received == [{"seed": "seed", "labels": batch["labels"]}]


VECTORS = RNG.normal(size=[5, 3, 6])  # [B, C, H]


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("is_unit", [True, False])
def test_losses_of_rated_pairs(is_unit):
    """The loss is the squared difference of the cosine and the score."""
    objective = objective_of("embedding", unit_length=is_unit)
    vectors = unit(VECTORS[:, :2]) if is_unit else VECTORS[:, :2]
    scores = np.float32(RNG.uniform(0, 1, 5))
    batch = batch_of(scores, is_rated=np.ones(5))
    found = objective.example_losses(tensors({"embedding": vectors}), batch)
    cosines = np.prod(unit(VECTORS[:, :2]), axis=1).sum(-1)
    np.testing.assert_allclose(found, (cosines - scores) ** 2, rtol=1e-4)


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("is_unit", [True, False])
def test_losses_of_matches(number, is_unit):
    """A text's match competes with the matches and negatives of all rows.

    Rows of padding do not compete.
    """
    how = {"temperature": 0.2, "unit_length": is_unit}
    objective = objective_of("embedding", **how)
    vectors = VECTORS[:, :number]
    vectors = unit(vectors) if is_unit else vectors
    batch = batch_of(np.ones(5, np.float32))
    found = objective.example_losses(tensors({"embedding": vectors}), batch)
    texts = unit(VECTORS)
    real = np.flatnonzero(WEIGHTS)
    for row in real:
        others = [r for r in real if r != row]
        rivals = [texts[row, 1], *texts[others, 1]]
        rivals += [*texts[real, 2]] * (number > 2)
        logits = np.stack(rivals) @ texts[row, 0] / 0.2
        expected = -log_softmax(logits)[0]
        assert float(found[row]) == pytest.approx(expected, rel=1e-4)


def test_only_training_crops_single_texts():
    """Without a seed, as in evaluation, a text is not cut into two crops."""
    objective = objective_of("embedding", crop_rate=0.5)
    ids = np.int32([[2, *range(10, 20), 3]])
    ones = np.ones_like(ids)
    batch = {"input_ids": ids, "input_mask": ones, "segment_ids": 0 * ones}
    batch = {k: tf.constant(x) for k, x in batch.items()}

    def model(ids, mask, segments, seed):
        return ids

    found = objective.outputs(model, batch)["embedding"].numpy()
    assert found.tolist() == ids.tolist()
    seed = tf.constant([1, 2])
    crops = objective.outputs(model, batch, seed)["embedding"].numpy()
    assert crops.shape == (1, 2, 12)
    assert [crop[6] for crop in crops[0]] == [3, 3]  # [SEP] after five of ten


@pytest.mark.parametrize("number", [2, 3])
def test_no_rows_have_no_losses(number):
    """A replica may have no rows of a small last batch, even in a graph."""
    objective = objective_of("embedding")
    batch = {"example_weights": tf.zeros([0])}

    def losses(vectors):
        return objective.example_losses({"embedding": vectors}, batch)

    form = tf.TensorSpec([None, number, 6])
    for compute in (losses, tf.function(losses, input_signature=[form])):
        assert compute(tf.zeros([0, number, 6])).shape == (0,)
