"""Replicas and micro-batches do not affect the result of training."""

import dataclasses
import re
import time
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tiny
from tiny_runs import eagerly

from albert_tf.base.errors import InputError
from albert_tf.training import update_rules
from albert_tf.training.distribution import DistributionConfig, make_strategy
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.trainer import Trainer, accumulated, cut, summed_steps


def trained(steps=6, **kwargs):
    trainer = tiny.new_trainer(**kwargs)
    tiny.run_steps(trainer, steps)
    return tiny.values(trainer)


@pytest.fixture(scope="module")
def one_replica():
    return trained()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kwargs",
    [
        {"replicas": 2, "gradient_accumulation_steps": 2},
        {"jit_compile": True},
        {"jit_compile": False},
    ],
    ids=str,
)
def test_weights_do_not_depend_on_how_the_batch_is_cut(one_replica, kwargs):
    """Weights and slots do not depend on replicas, micro-batches or XLA.

    The only differences are rounding errors.
    """
    found = trained(**kwargs)
    assert tiny.largest_difference(one_replica, found) < 2e-6


@eagerly()
def test_replicas_and_micro_batches_add_up_to_the_batch():
    """Replicas and micro-batches change weights only by rounding errors.

    The same holds for the report of the step.
    """
    trainers = (
        tiny.new_trainer(),
        tiny.new_trainer(replicas=2, gradient_accumulation_steps=2),
    )
    whole, cut = (tiny.run_steps(trainer, 1) for trainer in trainers)
    np.testing.assert_allclose(cut, whole, rtol=1e-5)
    whole, cut = map(tiny.values, trainers)
    assert tiny.largest_difference(whole, cut) < 2e-6


PIECES = {
    *("gelu", "gelu_gradient", "norm", "norm_gradient", "adam_update"),
    *("log_normalizer", "cross_entropy_gradient"),
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "jit_compile, names",
    [(None, PIECES), (False, set()), (True, PIECES | {"micro_gradients"})],
)
def test_one_switch_says_what_xla_compiles(jit_compile, names, monkeypatch):
    """`jit_compile` determines which functions XLA compiles.

    False selects no function, None some parts of the model and the update, and
    True these parts and the gradients of a micro-batch.
    """
    monkeypatch.setattr(update_rules, "FUSED_SIZE", 1)
    trainer = tiny.make_trainer(jit_compile=jit_compile)
    iterator = trainer.iterator(tiny.train_batches, 0)
    step = trainer.run_steps.get_concrete_function(iterator, tf.constant(1))
    compiled = {
        re.sub(r"^__inference_+|_\d+$", "", function.signature.name)
        for function in step.graph.as_graph_def().library.function
        if function.attr["_XlaMustCompile"].b
    }
    assert compiled == names


@pytest.mark.slow
def test_released_normalization_depends_on_the_replicas():
    """With two replicas, `per_replica` changes the trained weights.

    The loss is then the mean of the replicas' mean losses.
    """
    whole = trained(replicas=2)
    averaged = trained(replicas=2, per_replica=True)
    assert tiny.largest_difference(whole, averaged) > 1e-4


@pytest.mark.slow
def test_per_replica_clipping_bounds_each_share():
    """With `per_replica`, the reported norm is within the clipping limit."""
    optimizer = OptimizerConfig(
        learning_rate=0.01,
        num_warmup_steps=0,
        clip_norm=1e-3,
    )
    trainer = tiny.make_trainer(2, optimizer=optimizer, per_replica=True)
    iterator = trainer.iterator(tiny.train_batches, 0)
    norm = trainer.run_steps(iterator, tf.constant(1)).norm
    assert 0.0 < float(norm) <= 1e-3 * 1.0001


def test_each_step_is_summed_once():
    """Replicas agree about a step, so only one of them counts it.

    A report or a norm that is not finite makes a step bad. Bad steps change
    neither the sum nor the norm. The next call starts anew.
    """
    reports = np.reshape(np.arange(36, dtype="f4"), [6, 2, 3])
    norms = np.float32([2, 9, 5, 3, np.inf, 1])
    reports[1, 1, 2] = np.nan
    strategy = make_strategy(DistributionConfig(num_cpu_replicas=2))
    with strategy.scope():
        aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        updates = tf.Variable(10, dtype=tf.int64, aggregation=aggregation)

    def replica_step(batch):
        updates.assign_add(1)
        return batch

    run = summed_steps(strategy, replica_step, updates, 3)
    of_replicas = [np.repeat(x, 2, axis=0) for x in (reports, norms)]
    steps = tf.data.Dataset.from_tensor_slices(tuple(of_replicas))
    iterator = iter(strategy.distribute_datasets_from_function(lambda _: steps))
    first, second = run(iterator, tf.constant(5)), run(iterator, tf.constant(1))
    np.testing.assert_array_equal(first.report, reports[[0, 2, 3]].sum(axis=0))
    assert (first.norm, first.first_bad, first.bad) == (5, 11, 2)
    np.testing.assert_array_equal(second.report, reports[5])
    assert (second.norm, second.first_bad, second.bad) == (1, -1, 0)


def test_loss_falls():
    """In twenty steps on 48 examples, the loss of masked words falls.

    Before training, this loss is about the loss of equally probable pieces.
    """
    trainer = tiny.new_trainer()
    before = trainer.evaluator.evaluate(tiny.eval_batches)
    first = trainer.evaluator.summarize(tiny.run_steps(trainer, 3))
    tiny.run_steps(trainer, 14)
    last = trainer.evaluator.summarize(tiny.run_steps(trainer, 3))
    assert last["mlm_loss"] < first["mlm_loss"] - 0.1
    assert abs(before["mlm_loss"] - np.log(tiny.CONFIG.vocab_size)) < 0.1


@eagerly()
def test_dropout_differs_between_replicas_and_steps():
    """An example has different dropout on each replica and at each step."""
    changes = {"hidden_dropout_prob": 0.5, "num_hidden_layers": 1}
    config = dataclasses.replace(tiny.CONFIG, **changes)
    still = OptimizerConfig(learning_rate=0.0, num_warmup_steps=0)
    trainer = tiny.make_trainer(2, config, still, train_batch_size=2)
    example = {k: x[:1] for k, x in tiny.make_data().items()}

    def same_example(start, num_shards, shard, batch_size):
        dataset = tf.data.Dataset.from_tensors(example)
        return dataset.repeat().map(lambda x: x)

    losses = []
    local = trainer.strategy.experimental_local_results

    def step(batch):
        def replica(batch):
            context = tf.distribute.get_replica_context()
            report = trainer._accumulated(batch, trainer.seed())[1]
            return report, context.replica_id_in_sync_group

        return trainer.strategy.run(replica, (batch,))

    iterator = trainer.iterator(same_example, 0)
    for _ in range(2):
        reports, _ = step(next(iterator))
        losses += [float(report[0, 0]) for report in local(reports)]
        trainer.optimizer.iterations.assign_add(1)
    assert len(set(losses)) == 4


@pytest.mark.parametrize("changes", [{"random_seed": 6}, {"step": 8}])
def test_dropout_depends_on_the_seed_and_the_step(changes):
    """Runs with different seeds have different dropout, as steps have."""

    def seed(random_seed=5, step=7):
        trainer = mock.Mock()
        trainer.training.random_seed = random_seed
        trainer.optimizer.iterations.value = tf.constant(step, tf.int64)
        return Trainer.seed(trainer).numpy().tolist()

    assert seed() == seed() != seed(**changes)


@eagerly()
def test_prediction_keeps_the_order_of_examples_over_replicas():
    """Outputs from two replicas are in the order of the inputs."""
    trainer = tiny.make_trainer(replicas=2)

    def echo(model, batch):
        return {"echo": batch["input_ids"]}

    found = trainer.evaluator.predict(tiny.eval_batches, echo)["echo"]
    np.testing.assert_array_equal(found, tiny.make_data(1)["input_ids"])


@pytest.mark.parametrize(
    "kwargs, named",
    [
        ({"replicas": 2, "train_batch_size": 15}, "train_batch_size=15"),
        ({"gradient_accumulation_steps": 3}, "gradient_accumulation_steps=3"),
        ({"replicas": 2, "eval_batch_size": 15}, "eval_batch_size=15"),
    ],
)
def test_a_batch_that_cannot_be_cut_is_refused(kwargs, named):
    """If a batch cannot be divided evenly, the error states the sizes."""
    with pytest.raises(InputError, match=named):
        tiny.make_trainer(**kwargs)


def test_training_batches_are_endless_to_each_host(monkeypatch):
    """Each host's training batches are declared to be infinite.

    Workers therefore do not ask one another whether the data have ended.
    """
    made, calls = [], []

    def distribute(strategy, batches):
        made.append(batches(tf.distribute.InputContext()))
        return made

    def unknown(**arguments):
        calls.append(arguments)
        return tiny.train_batches(**arguments).filter(lambda _: True)

    monkeypatch.setattr("albert_tf.training.trainer.distribute", distribute)
    trainer = tiny.new_trainer()
    trainer.iterator(unknown, 0)
    assert made[0].cardinality() == tf.data.INFINITE_CARDINALITY
    trainer.iterator(unknown, 3, 8)
    alone = {"num_shards": 1, "shard": 0}
    assert calls == [
        {"start": 0, "batch_size": 16} | alone,
        {"start": 3, "batch_size": 8} | alone,
    ]


def test_a_micro_batch_is_a_part_of_each_tensor():
    """A micro-batch has consecutive examples from each tensor of a batch.

    Sizes other than the batch size may be unknown in the graph.
    """
    batch = {"x": tf.reshape(tf.range(24), [6, 4]), "y": tf.range(6)}
    specs = {
        "x": tf.TensorSpec([6, None], tf.int32),
        "y": tf.TensorSpec([6], tf.int32),
    }
    part = tf.function(
        lambda batch: cut(batch, 3, tf.constant(1)), input_signature=[specs]
    )(batch)
    for name, value in batch.items():
        np.testing.assert_array_equal(part[name], value[2:4])


def test_the_released_divisor_is_that_of_a_replica():
    """With `per_replica`, the divisor of a loss depends on a single replica.

    The divisor is the replica's total weight times the number of replicas.
    """
    weights = {"mlm": 3.0, "sop": 0.0}
    trainer = types.SimpleNamespace(
        objective=types.SimpleNamespace(weights=lambda batch: weights),
        per_replica=True,
        strategy=types.SimpleNamespace(num_replicas_in_sync=2),
    )
    found = Trainer._divisors(trainer, {})
    assert found == pytest.approx({"mlm": 6.00002, "sop": 2e-5})


def test_a_trainer_of_a_depth_shares_the_state():
    """`at_depth` returns one trainer per depth; all share the model's weights.

    A trainer's objective runs as many layers as the trainer's depth.
    """
    trainer = tiny.make_trainer(config=tiny.CONFIG)
    for layers in (None, 2):
        assert trainer.at_depth(layers) is trainer
    whole = trainer.run_steps
    other = trainer.at_depth(1)
    assert other is trainer.at_depth(1) is not trainer
    assert other.at_depth(2) is trainer
    assert (other.objective.layers, trainer.objective.layers) == (1, None)
    assert other.evaluator.objective.layers == 1
    assert other.model is trainer.model and other.weights is trainer.weights
    assert other.run_steps is not whole is trainer.run_steps
    assert other._gradients is not trainer._gradients


@pytest.mark.slow
def test_bfloat16_trains_near_float32(one_replica):
    """With bfloat16, weights are float32 and close to a float32 run's."""
    found = trained(dtype="bfloat16")
    assert all(v.dtype != tf.bfloat16 for v in found.values())
    assert 0 < tiny.largest_difference(one_replica, found) < 0.05


@eagerly()
def test_batches_without_a_pair_are_learned_from():
    """Batches without pairs train masked words; all weights stay finite."""
    trainer = tiny.make_trainer()
    before = tiny.values(trainer)

    def batches(*args, **kwargs):
        return tiny.train_batches(*args, **kwargs).map(
            lambda batch: batch | {"segment_ids": 0 * batch["segment_ids"]}
        )

    trainer.run_steps(trainer.iterator(batches, 0), tf.constant(2))
    after = tiny.values(trainer)
    assert all(np.isfinite(value).all() for value in after.values())
    assert np.any(after["mlm/output_bias"] != before["mlm/output_bias"])
    assert not after["optimizer/sop/classifier/kernel/m"].any()


@pytest.mark.parametrize("pieces", [1, 3])
def test_no_more_than_a_micro_batch_is_computed_at_once(pieces):
    """Every example is in one micro-batch, and the results are summed.

    The micro-batches have equal sizes and different seeds. A micro-batch starts
    only when the previous micro-batch has ended, although it does not need the
    results of the previous micro-batch.
    """
    batch = {"x": tf.reshape(tf.range(12.0), [6, 2])}
    seen, begun, most, seeds = [], [], [], []

    def work(x, seed):
        seeds.append(tuple(seed))
        begun.append(x)
        time.sleep(0.05)  # time for other micro-batches to start
        most.append(len(begun))
        begun.pop()
        return x

    def differentiate(micro_batch, seed):
        seen.append(micro_batch["x"].shape[0])
        total = tf.reduce_sum(micro_batch["x"], axis=0)  # [2]
        values = [total, seed]
        total = tf.numpy_function(work, values, tf.float32, stateful=False)
        total = tf.ensure_shape(total, [2])
        return [total], tf.stack([tf.reduce_sum(total), 1.0])

    gradients, report = tf.function(
        lambda: accumulated(
            differentiate,
            batch,
            tf.constant([1, 2]),
            pieces,
            ([tf.zeros([2])], tf.zeros([2])),
        )
    )()
    assert set(seen) == {6 // pieces}
    np.testing.assert_array_equal(gradients[0], [30.0, 36.0])
    np.testing.assert_array_equal(report, [66.0, pieces])
    assert most == [1] * pieces and len(set(seeds)) == pieces
