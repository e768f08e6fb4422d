"""The trainer, which runs many steps in one `tf.function`.

The summed results stay on the devices until the last step: a host that waited
for the results of each step could not launch the next step in time.
"""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.settings import RunFact, facts
from albert_tf.model.layers import encoder_loop
from albert_tf.model.ops import choose_xla, fold_in, is_tpu
from albert_tf.training.distribution import all_sum, distribute, on_devices
from albert_tf.training.evaluator import Evaluator
from albert_tf.training.objectives import Batch, Objective, report_of
from albert_tf.training.optimizer import Optimizer, OptimizerConfig, RunRate
from albert_tf.training.training_config import MASKS, TrainingConfig


class StepSums(NamedTuple):
    """The results of several steps.

    Attributes:
      report: float32 [2, names], the sum of `report_of` over the steps,
        excluding steps whose loss or gradient was not finite.
      norm: the largest gradient norm of the same steps.
      first_bad: the first step, counted from 0, whose loss or gradient was
        not finite; -1 if there was none.
      bad: the number of steps whose loss or gradient was not finite.
    """

    report: tf.Tensor
    norm: tf.Tensor
    first_bad: tf.Tensor
    bad: tf.Tensor


def _device_variable(value: tf.Tensor) -> tf.Variable:
    """Return a variable with one copy per replica.

    Code in a replica uses that replica's copy; other code reads the first
    replica's copy.
    """
    return tf.Variable(
        value,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def summed_steps(
    strategy: tf.distribute.Strategy,
    replica_step: Callable,
    iterations: tf.Variable,
    names: int,
):
    """Return a function that runs steps and sums their reports.

    The signature of this function is (iterator, number of steps) -> `StepSums`.

    Args:
      strategy: the strategy to run on.
      replica_step: a function that updates the weights once with a replica's
        batch, and returns the report of all replicas, float32 [2, names], and
        the gradient's norm.
      iterations: the number of updates so far.
      names: the number of names in a report.
    """
    first_bad, bad = tf.constant(-1, tf.int64), tf.constant(0, tf.int64)
    initial = StepSums(tf.zeros([2, names]), tf.zeros([]), first_bad, bad)
    with strategy.scope():
        sums = StepSums(*map(_device_variable, initial))

    def step(batch):
        report, norm = replica_step(batch)
        finite = tf.reduce_all(tf.math.is_finite(report))
        finite = tf.logical_and(finite, tf.math.is_finite(norm))
        first = tf.logical_and(~finite, sums.bad == 0)
        sums.report.assign_add(tf.where(finite, report, 0.0))
        largest = tf.maximum(sums.norm, norm)
        sums.norm.assign(tf.where(finite, largest, sums.norm))
        sums.first_bad.assign(tf.where(first, iterations - 1, sums.first_bad))
        sums.bad.assign_add(tf.cast(~finite, tf.int64))

    def run(iterator, steps):
        for variable, value in zip(sums, initial, strict=True):
            variable.assign(value)

        def body(done):
            strategy.run(step, (next(iterator),))
            return (done + 1,)

        tf.while_loop(lambda done: done < steps, body, (0,))
        return StepSums(*map(tf.identity, sums))

    # TensorFlow warns if a `def` is traced often. `partial` creates a new
    # function for each depth, which needs its own trace. AutoGraph's conversion
    # would take longer than tracing.
    return tf.function(functools.partial(run), autograph=False)


def add(left: list[tf.Tensor], right: list[tf.Tensor]) -> list[tf.Tensor]:
    """Add two lists of tensors elementwise."""
    return [a + b for a, b in zip(left, right, strict=True)]


def cut(batch: Batch, pieces: int, index: tf.Tensor) -> Batch:
    """Return part `index` of a batch divided into `pieces` equal parts."""

    def piece(x):
        size = x.shape[0] // pieces
        other_axes = [n or tf.shape(x)[i] for i, n in enumerate(x.shape)][1:]
        return tf.reshape(x, [pieces, size, *other_axes])[index]

    return {key: piece(x) for key, x in batch.items()}


def accumulated(
    differentiate: Callable, batch: Batch, seed, pieces: int, zeros: tuple
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the summed gradients and the summed report of a batch.

    Args:
      differentiate: a function (micro-batch, seed) -> gradients, report.
      batch: the whole batch.
      seed: dropout seed of the batch, from which the seeds of the micro-batches
        are derived.
      pieces: number of micro-batches.
      zeros: the zero gradients and report from which the sums start.
    """
    if pieces == 1:
        return differentiate(batch, seed)

    def body(i, gradients, report):
        piece_gradients, piece_report = differentiate(
            cut(batch, pieces, i), fold_in(seed, i)
        )
        return i + 1, add(gradients, piece_gradients), report + piece_report

    # Micro-batches depend on each other only through the sum, so by default,
    # TensorFlow would run ten at once, with all their activations in memory.
    _, gradients, report = tf.while_loop(
        lambda i, *_: i < pieces, body, (0, *zeros), parallel_iterations=1
    )
    return gradients, report


# The released code adds this number to the weight of a term in each replica.
RELEASED_WEIGHT_EPSILON = 1e-5


class Trainer:
    """A model with an optimizer and compiled training steps.

    Args:
      strategy: the strategy to run on.
      build_model: a function that builds the model; called inside the
        strategy's scope.
      objective: the loss to minimize.
      optimizer: the update rule and its schedule.
      training: the settings for batch, precision and seed.
      trainable: a function that returns whether to train the variable with a
        given name.
      per_replica: whether each replica clips its own gradient and divides its
        losses by its own weights, as in the released code.

    Attributes:
      evaluator: an evaluator of the same model.
      weights: {name: variable} of the model.
      trained: {name: variable} of the trained weights.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        build_model: Callable,
        objective: Objective,
        optimizer: OptimizerConfig,
        training: TrainingConfig,
        trainable: Callable[[str], bool] = lambda name: True,
        per_replica: bool = False,
    ):
        self.strategy, self.objective = strategy, objective
        self.training, self.per_replica = training, per_replica
        self.evaluator = Evaluator(
            strategy, build_model, objective, training.eval_batch_size
        )
        self.model, self.weights = self.evaluator.model, self.evaluator.weights
        self._check_batch()
        self.xla = choose_xla(training.jit_compile, is_tpu(strategy))
        encoder = self.model.albert.encoder
        encoder.xla = self.xla
        encoder.loop = encoder_loop(
            training.encoder_loop, training.rematerialize, is_tpu(strategy)
        )
        self.trained = {n: v for n, v in self.weights.items() if trainable(n)}
        with strategy.scope():
            self.rate = RunRate(optimizer, training.num_train_steps)
            # Keras would number the optimizers of a process, and the
            # fingerprint of a checkpoint depends on their names.
            self.optimizer = Optimizer(optimizer, self.rate, name="optimizer")
            self.optimizer.build(
                list(self.trained.values()), list(self.trained)
            )
        self.optimizer.compiled = self.xla.pieces
        self.optimizer.products = training.dtype
        self.optimizer.per_replica = per_replica
        self._gradients = self._compiled_gradients()
        all_layers = self.model.albert.config.num_hidden_layers
        self._depths: dict[int | None, Trainer] = {None: self, all_layers: self}

    def _compiled_gradients(self):
        return tf.function(
            self._micro_gradients,
            jit_compile=self.xla.whole or None,
            autograph=False,
        )

    def evaluated_weights(self) -> contextlib.AbstractContextManager:
        """Return a context in which the model uses averaged weights, if any."""
        # Before the first step, there is nothing to average.
        average = self.optimizer.average
        return average.swapped_in() if self.step else contextlib.nullcontext()

    def _check_batch(self) -> None:
        replicas = self.strategy.num_replicas_in_sync
        pieces = self.training.gradient_accumulation_steps
        require(
            self.training.train_batch_size % (replicas * pieces) == 0,
            "`train_batch_size` must be a multiple of the number of replicas "
            "times `gradient_accumulation_steps`.",
            train_batch_size=self.training.train_batch_size,
            replicas=replicas,
            gradient_accumulation_steps=pieces,
        )

    @property
    def step(self) -> int:
        """The number of updates so far."""
        return int(self.optimizer.iterations.numpy())

    def state(self) -> dict[str, tf.Variable]:
        """Return {name: variable} for everything needed to resume."""
        return self.weights | self.optimizer.state()

    def facts(self) -> dict[str, RunFact]:
        """Return {name: fact} for settings that determine the weights."""
        return {
            "replicas": RunFact(self.strategy.num_replicas_in_sync, MASKS),
            "per_replica": RunFact(self.per_replica, "another loss"),
            **facts(self.training),
            **facts(self.optimizer.config, change="another update rule"),
        }

    def _divisors(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return {loss term: the number by which to divide its sum}."""
        weights = self.objective.weights(batch)
        if self.per_replica:
            replicas = self.strategy.num_replicas_in_sync
            return {
                term: (weight + RELEASED_WEIGHT_EPSILON) * replicas
                for term, weight in weights.items()
            }
        terms = self.objective.terms
        totals = all_sum(tf.stack([weights[term] for term in terms]))
        return dict(zip(terms, tf.unstack(totals), strict=True))

    def _loss(self, batch: Batch, divisors: dict, seed):
        """Return the loss and the report of a micro-batch."""
        sums, metrics = self.objective.losses(self.model, batch, seed)
        means = [
            tf.math.divide_no_nan(sums[term], divisors[term])
            for term in self.objective.terms
        ]
        report = report_of(self.objective, batch, sums, metrics)
        return tf.add_n(means), report

    def _differentiate(self, tape, loss, extra: Sequence[tf.Tensor] = ()):
        """Return gradients with respect to the trained weights and `extra`."""
        gradients = tape.gradient(
            loss,
            [*self.trained.values(), *extra],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # The gradient of the word embeddings is summed over lookups and the
        # tied head.
        return [tf.convert_to_tensor(g) for g in gradients]

    def _micro_gradients(self, batch: Batch, divisors: dict, seed):
        with tf.GradientTape() as tape:
            loss, report = self._loss(batch, divisors, seed)
        return self._differentiate(tape, loss), report

    def _accumulated(self, batch: Batch, seed):
        """Return the gradients and the report of a replica's whole batch."""
        divisors = self._divisors(batch)
        zeros = [tf.zeros(v.shape) for v in self.trained.values()]
        return accumulated(
            lambda batch, seed: self._gradients(batch, divisors, seed),
            batch,
            seed,
            self.training.gradient_accumulation_steps,
            (zeros, tf.zeros([2, len(self.evaluator.names)])),
        )

    def seed(self) -> tf.Tensor:
        """Return the dropout seed of this step on this replica, int32 [2]."""
        context = tf.distribute.get_replica_context()
        seed = tf.constant([self.training.random_seed, 0])
        seed = fold_in(seed, tf.cast(self.optimizer.iterations.value, tf.int32))
        return fold_in(seed, context.replica_id_in_sync_group)

    def replica_step(self, batch: Batch):
        """Update weights; return the summed report and the gradient norm."""
        gradients, report = self._accumulated(batch, self.seed())
        report = all_sum(report)
        skips = self.training.on_nonfinite == "skip"
        healthy = tf.reduce_all(tf.math.is_finite(report)) if skips else None
        return report, self.optimizer.apply(gradients, healthy=healthy)

    @functools.cached_property
    def run_steps(self):
        """A function (iterator, number of steps) -> `StepSums`."""
        return summed_steps(
            self.strategy,
            self.replica_step,
            self.optimizer.iterations.value,
            len(self.evaluator.names),
        )

    @functools.cached_property
    def trust_ratios(self):
        """A compiled function that calls `Optimizer.trust_ratios`."""
        return on_devices(self.strategy, self.optimizer.trust_ratios)

    def at_depth(self, layers: int | None) -> "Trainer":
        """Return a trainer that runs `layers` layers with the same state.

        None means all layers. The trainer for each depth is created only once,
        with its graphs.
        """
        if layers not in self._depths:
            trainer = copy.copy(self)
            trainer.objective = dataclasses.replace(
                self.objective, layers=layers
            )
            trainer.evaluator = Evaluator(
                self.strategy,
                lambda: self.model,
                trainer.objective,
                self.training.eval_batch_size,
            )
            trainer.__dict__.pop("run_steps", None)
            trainer._gradients = trainer._compiled_gradients()
            self._depths[layers] = trainer
        return self._depths[layers]

    def iterator(
        self, batches: Callable, start: int, batch_size: int | None = None
    ):
        """Return distributed training batches, starting at a given example.

        Args:
          batches: a function that creates a dataset from the keyword arguments
            `start`, the first example; `num_shards`, the number of hosts;
            `shard`, the index of this host; and `batch_size` per replica.
          start: the first example.
          batch_size: examples per step, over all replicas; None means
            `train_batch_size`.
        """
        size = batch_size or self.training.train_batch_size
        # With finite datasets, workers would ask each other at every step
        # whether batches are left, and the shapes of batches would be unknown.
        endless = tf.data.experimental.assert_cardinality(
            tf.data.INFINITE_CARDINALITY
        )

        def host_dataset(context):
            return batches(
                start=start,
                num_shards=context.num_input_pipelines,
                shard=context.input_pipeline_id,
                batch_size=context.get_per_replica_batch_size(size),
            ).apply(endless)

        return iter(distribute(self.strategy, host_dataset))
