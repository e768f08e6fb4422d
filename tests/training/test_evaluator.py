"""The evaluator returns outputs in the order of the examples."""

import dataclasses
import functools
import json
import logging
import os
import pathlib
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
from tiny_runs import eagerly

from albert_tf.base.errors import InputError
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.features import Features
from albert_tf.training import evaluator as evaluator_module
from albert_tf.training.distribution import DistributionConfig, make_strategy
from albert_tf.training.evaluator import Evaluator
from albert_tf.training.history import means_of
from albert_tf.training.objectives import PretrainingObjective

ROOT = pathlib.Path(__file__).parents[2]
LENGTHS = [3, 16, 4, 15, 2]


@pytest.fixture(scope="module")
def features():
    rows = [
        (np.full(n, 10 + i, np.int32), n // 2) for i, n in enumerate(LENGTHS)
    ]
    return Features.from_rows(rows, {}, 0, 16)


def outputs(model, batch):
    """Return outputs with and without a token axis."""
    ids = tf.cast(batch["input_ids"], tf.float32)
    encoded = model.albert(
        batch["input_ids"], batch["input_mask"], batch["segment_ids"]
    )
    return {"tokens": ids[..., None] * [1.0, 2.0], **encoded}


def make_evaluator(strategy, eval_batch_size=16, config=tiny.SHALLOW):
    """Return an evaluator whose weights are always the same."""
    keras.utils.set_random_seed(3)
    return Evaluator(
        strategy,
        lambda: AlbertForPretraining(config),
        PretrainingObjective(),
        eval_batch_size,
    )


@eagerly()
def test_sorted_batches_change_no_output(features):
    """Sorting examples by length does not change the order of outputs.

    The outputs of padding are 0.
    """
    evaluator = make_evaluator(
        make_strategy(DistributionConfig(num_cpu_replicas=2)), 2
    )
    plain, sorted_ = (
        evaluator.predict(
            functools.partial(evaluation_batches, features, 2, bucketed),
            outputs,
        )
        for bucketed in (False, True)
    )
    pooled = "pooled_output"
    np.testing.assert_allclose(sorted_[pooled], plain[pooled], atol=1e-6)
    assert sorted_["tokens"].shape == (len(LENGTHS), 16, 2)
    for i, n in enumerate(LENGTHS):
        expected = np.zeros([16, 2])
        expected[:n] = [10 + i, 20 + 2 * i]
        np.testing.assert_array_equal(sorted_["tokens"][i], expected)
        one, two = (x["sequence_output"][i, :n] for x in (plain, sorted_))
        np.testing.assert_allclose(one, two, atol=1e-5)


def test_a_processor_computes_batches_at_once_to_the_same_bits(
    features, monkeypatch
):
    """Outputs are bit-identical whether batches run in parallel or in turn."""
    evaluator = make_evaluator(make_strategy(DistributionConfig()), 4)
    batches = functools.partial(evaluation_batches, features, 4, True)
    both = threading.Barrier(2, timeout=60)

    def met(model, batch):
        here = tf.numpy_function(both.wait, [], tf.int64)
        with tf.control_dependencies([here]):
            return outputs(model, batch)

    together = evaluator.predict(batches, met)
    monkeypatch.setattr(evaluator_module, "BATCHES_AT_ONCE", 1)
    for name, value in evaluator.predict(batches, outputs).items():
        np.testing.assert_array_equal(together[name], value)


def test_many_kinds_of_outputs_are_no_warning(features, caplog):
    """Predicting many kinds of outputs causes no warning about retracing.

    Functions of the same name may return different outputs.
    """
    evaluator = make_evaluator(make_strategy(DistributionConfig()), 5)
    batches = functools.partial(evaluation_batches, features, 5, False)
    with caplog.at_level(logging.WARNING, "tensorflow"):
        for n in range(6):
            found = evaluator.predict(
                batches, lambda model, batch, n=n: {"x": batch["input_ids"] + n}
            )
            assert found["x"].shape == (len(LENGTHS), 16)
            assert found["x"][0, 0] == 10 + n
    assert not caplog.records


def two_hosts():
    """Return a strategy with two replicas, each on a separate fake host."""
    strategy = make_strategy(DistributionConfig(num_cpu_replicas=2))
    devices = strategy.extended.worker_devices
    strategy.extended._input_workers_devices = tuple((d, (d,)) for d in devices)
    return strategy


def padded_batches(examples=20):
    """Return examples in batches of 16; padding fills the last batch."""
    data = {k: x[:examples] for k, x in tiny.make_data(1).items()}
    rest = -examples % 16
    data = {k: np.concatenate([x, x[:rest]]) for k, x in data.items()}
    for name in ("masked_lm_weights", "example_weights"):
        data[name][examples:] = 0.0
    return tf.data.Dataset.from_tensor_slices(data).batch(16)


def test_a_report_is_summarized_as_means():
    """A mean is a sum divided by its weight, which may be below 1.

    If the weight is 0, the mean is 0, not NaN. The loss is the sum of its
    terms.
    """
    names = "mlm_loss", "sop_loss", "accuracy"
    found = means_of(names, np.array([[1.0, 3.0, 0.0], [0.5, 4.0, 0.0]]))
    means = {"mlm_loss": 2.0, "sop_loss": 0.75, "accuracy": 0.0}
    assert found == {"loss": 2.75} | means and [*found][0] == "loss"


@eagerly()
def test_each_host_makes_its_own_batches():
    """Each host creates separate batches; the metrics match a single device.

    The second host has only padding in the last batch.
    """
    devices = []

    def batches():
        devices.append(tf.constant(0).device)
        return padded_batches()

    strategy = two_hosts()
    found = make_evaluator(strategy).evaluate(batches)
    assert tuple(devices) == strategy.extended.worker_devices
    one = make_evaluator(make_strategy(DistributionConfig()))
    exact = {k: x[:20] for k, x in tiny.make_data(1).items()}
    one.eval_batch_size = 20
    expected = one.evaluate(
        lambda: tf.data.Dataset.from_tensor_slices(exact).batch(20)
    )
    assert found == pytest.approx(expected, rel=1e-5)


@eagerly()
def test_outputs_of_two_hosts_stand_in_order(features):
    """Outputs of two hosts, each with half a batch, are in order."""
    evaluator = make_evaluator(two_hosts(), 4)
    for bucketed in (False, True):
        found = evaluator.predict(
            functools.partial(evaluation_batches, features, 4, bucketed),
            outputs,
        )
        first = found["tokens"][:, 0, 0]
        np.testing.assert_array_equal(first, 10 + np.arange(len(LENGTHS)))


@eagerly()
def test_an_evaluation_drops_no_units():
    """The dropout rates of a model have no effect on its metrics."""
    rates = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}
    none = dict.fromkeys(rates, 0.0)
    found, expected = (
        make_evaluator(
            make_strategy(DistributionConfig()),
            config=dataclasses.replace(tiny.SHALLOW, **changes),
        ).evaluate(tiny.eval_batches)
        for changes in (rates, none)
    )
    assert found == expected


@eagerly()
@pytest.mark.parametrize("large", [1e30, np.nan])
def test_a_model_that_diverged_has_no_results(features, large):
    """If an output or loss is not finite, there are no metrics or predictions.

    The weights themselves may be finite: an update may make them so large that
    only the next outputs overflow.
    """
    evaluator = make_evaluator(make_strategy(DistributionConfig()))
    for variable in evaluator.weights.values():
        variable.assign(tf.fill(variable.shape, np.float32(large)))
    with pytest.raises(InputError, match="not finite: its weights are too"):
        evaluator.evaluate(padded_batches)
    batches = functools.partial(evaluation_batches, features, 4, False)
    with pytest.raises(InputError, match="not finite: its weights are too"):
        evaluator.predict(batches, outputs)


@pytest.mark.slow
def test_one_program_evaluates_on_hosts_in_other_processes():
    """Several hosts, as in a TPU slice, compute the same metrics as one."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "remote_hosts.py")],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    one, two = map(json.loads, done.stdout.splitlines()[-2:])
    assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-5)
    assert two["ids"] == one["ids"]


@eagerly()
def test_examples_of_one_segment_have_words_and_no_order():
    """Labels of single-segment examples do not affect sentence-order metrics.

    Without pairs, these metrics are 0.
    """
    evaluator = make_evaluator(make_strategy(DistributionConfig()))
    data = tiny.make_data(1)
    data["segment_ids"][:, 0] = 1
    alone = np.arange(len(data["input_ids"])) % 3 == 0

    def losses(data):
        return evaluator.evaluate(
            lambda: tf.data.Dataset.from_tensor_slices(data).batch(16)
        )

    data["segment_ids"][alone] = 0
    whole = losses(data)
    turned = data | {
        "sentence_order_labels": data["sentence_order_labels"] ^ alone
    }
    assert losses(turned) == whole
    weights = np.where(alone, 0, 1).astype(np.float32)
    assert losses(data | {"example_weights": weights}) == whole
    pairs = losses({k: x[~alone] for k, x in data.items()})
    for name in ("sop_loss", "sop_accuracy"):
        assert whole[name] == pytest.approx(pairs[name], rel=1e-5)
    assert whole["mlm_loss"] != pytest.approx(pairs["mlm_loss"], rel=1e-5)
    none = losses(data | {"segment_ids": 0 * data["segment_ids"]})
    assert none["sop_loss"] == none["sop_accuracy"] == 0 < none["mlm_loss"]
