"""Many steps in one `tf.function`, and what they gave together.

The sums stay on the devices until the last step: a host that waited for each
step's figures could not hand over the next one before.
"""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.settings import Fact, facts
from albert_tf.model.layers import choose
from albert_tf.model.ops import choose_xla, fold_in, is_tpu
from albert_tf.training.distribution import all_sum, distribute, on_devices
from albert_tf.training.evaluator import Batch, Evaluator, Objective
from albert_tf.training.optimizer import Optimizer, OptimizerConfig
from albert_tf.training.schedules import RunRate
from albert_tf.training.training_config import MASKS, TrainingConfig


class StepSums(NamedTuple):
    """What some steps gave, without those that were not finite.

    Attributes:
      report: float32 [2, names], see `Evaluator.report`, over the steps.
      norm: the largest norm of a gradient.
      first_bad: the first step, counted from 0, whose loss or gradient was
        not finite; -1 if there was none.
      bad: how many such steps there were.
    """

    report: tf.Tensor
    norm: tf.Tensor
    first_bad: tf.Tensor
    bad: tf.Tensor


def _device_variable(value: tf.Tensor) -> tf.Variable:
    """Return a variable of each replica's own; the first one's is read."""
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
    """Return a function (iterator, number of steps) -> `StepSums`.

    Args:
      strategy: where to run.
      replica_step: updates once with a replica's batch; returns the report of
        all replicas, float32 [2, names], and the norm of the gradient.
      iterations: the updates made so far.
      names: how many names a report has.
    """

    nothing = StepSums(
        tf.zeros([2, names]),
        tf.zeros([]),
        tf.constant(-1, tf.int64),
        tf.constant(0, tf.int64),
    )
    with strategy.scope():
        sums = StepSums(*map(_device_variable, nothing))

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
        for variable, value in zip(sums, nothing, strict=True):
            variable.assign(value)
        for _ in tf.range(steps):
            strategy.run(step, (next(iterator),))
        return StepSums(*map(tf.identity, sums))

    # TensorFlow warns of a function that is traced often, and takes those of
    # one `def` as one. That each depth has its own is no fault.
    return tf.function(functools.partial(run))


def add(left: list[tf.Tensor], right: list[tf.Tensor]) -> list[tf.Tensor]:
    """Add two lists of tensors element by element."""
    return [a + b for a, b in zip(left, right, strict=True)]


def cut(batch: Batch, pieces: int, index: tf.Tensor) -> Batch:
    """Return one of the equal micro-batches of a batch."""

    def piece(x):
        size = x.shape[0] // pieces
        rest = [n or tf.shape(x)[i] for i, n in enumerate(x.shape)][1:]
        return tf.reshape(x, [pieces, size, *rest])[index]

    return {key: piece(x) for key, x in batch.items()}


def accumulated(
    differentiate: Callable, batch: Batch, seed, pieces: int, zeros: tuple
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the gradients and the report of a batch, added up.

    Args:
      differentiate: (micro-batch, seed) -> gradients, report.
      batch: the whole batch.
      seed: of its dropout; each micro-batch has its own.
      pieces: how many micro-batches.
      zeros: gradients and a report to begin with.
    """
    if pieces == 1:
        return differentiate(batch, seed)

    def body(i, gradients, report):
        more, part = differentiate(cut(batch, pieces, i), fold_in(seed, i))
        return i + 1, add(gradients, more), report + part

    # No part of a micro-batch but the sum needs the one before: TensorFlow
    # would begin ten of them at once, and hold what they keep.
    _, gradients, report = tf.while_loop(
        lambda i, *_: i < pieces, body, (0, *zeros), parallel_iterations=1
    )
    return gradients, report


# Added to the weight of a term by the release, where it is per replica.
RELEASED_WEIGHT_EPSILON = 1e-5


class Trainer:
    """A model with an optimizer and compiled training steps.

    Args:
      strategy: where to run.
      build_model: makes the model; called inside the strategy's scope.
      objective: what to learn.
      optimizer: rule and schedule.
      training: batch, precision and seed.
      trainable: tells from a variable's name whether it is trained.

    Attributes:
      evaluator: evaluates and predicts with the same model.
      weights: {name: variable} of the model.
      trained: those of them that are trained.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        build_model: Callable,
        objective: Objective,
        optimizer: OptimizerConfig,
        training: TrainingConfig,
        trainable: Callable[[str], bool] = lambda name: True,
    ):
        self.strategy, self.objective = strategy, objective
        self.training = training
        self.evaluator = Evaluator(
            strategy, build_model, objective, training.eval_batch_size
        )
        self.model, self.weights = self.evaluator.model, self.evaluator.weights
        self._check_batch()
        self.xla = choose_xla(training.jit_compile, is_tpu(strategy))
        encoder = self.model.albert.encoder
        encoder.xla = self.xla
        encoder.loop = choose(
            training.encoder_loop, training.rematerialize, is_tpu(strategy)
        )
        self.trained = {n: v for n, v in self.weights.items() if trainable(n)}
        with strategy.scope():
            self.rate = RunRate(optimizer, training.num_train_steps)
            self.optimizer = Optimizer(optimizer, self.rate)
            self.optimizer.build(
                list(self.trained.values()), list(self.trained)
            )
        self.optimizer.compiled = self.xla.pieces
        self.optimizer.products = training.dtype
        self._gradients = self._compiled_gradients()
        every = self.model.albert.config.num_hidden_layers
        self._depths: dict[int | None, Trainer] = {None: self, every: self}

    def _compiled_gradients(self):
        return tf.function(
            self._micro_gradients, jit_compile=self.xla.whole or None
        )

    def evaluated_weights(self) -> contextlib.AbstractContextManager:
        """Return a context in which the model has the weights that count."""
        # Before the first step there is nothing to average.
        average = self.optimizer.average
        return average.in_place() if self.step else contextlib.nullcontext()

    def _check_batch(self) -> None:
        replicas = self.strategy.num_replicas_in_sync
        pieces = self.training.gradient_accumulation_steps
        require(
            self.training.train_batch_size % (replicas * pieces) == 0,
            "`train_batch_size` must be a multiple of the replicas times "
            "`gradient_accumulation_steps`.",
            train_batch_size=self.training.train_batch_size,
            replicas=replicas,
            gradient_accumulation_steps=pieces,
        )

    @property
    def step(self) -> int:
        """The number of updates made so far."""
        return int(self.optimizer.iterations.numpy())

    def state(self) -> dict[str, tf.Variable]:
        """Return {name: variable} of everything that a resume needs."""
        return self.weights | self.optimizer.state()

    def facts(self) -> dict[str, Fact]:
        """Return what the weights follow from, to stand beside checkpoints."""
        return {
            "replicas": Fact(self.strategy.num_replicas_in_sync, MASKS),
            **facts(self.training),
            **facts(self.optimizer.config, "another update rule"),
        }

    def _divisors(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return what each term's sum is divided by in this replica."""
        weights = self.objective.weights(batch)
        if self.training.loss_normalization == "per_replica":
            replicas = self.strategy.num_replicas_in_sync
            return {
                term: (weight + RELEASED_WEIGHT_EPSILON) * replicas
                for term, weight in weights.items()
            }
        terms = self.objective.terms
        whole = all_sum(tf.stack([weights[term] for term in terms]))
        return dict(zip(terms, tf.unstack(whole), strict=True))

    def _loss(self, batch: Batch, divisors: dict, seed):
        """Return the loss and the report of a micro-batch."""
        sums, metrics = self.objective.losses(self.model, batch, seed)
        means = [
            tf.math.divide_no_nan(sums[term], divisors[term])
            for term in self.objective.terms
        ]
        return tf.add_n(means), self.evaluator.report(batch, sums, metrics)

    def _differentiate(self, tape, loss, more: Sequence[tf.Tensor] = ()):
        """Return the gradients of what is trained, and of more tensors."""
        gradients = tape.gradient(
            loss,
            [*self.trained.values(), *more],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # The word table's gradient is a sum over lookups and the tied head.
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
        """Return the seed of this step on this replica."""
        context = tf.distribute.get_replica_context()
        seed = tf.constant([self.training.random_seed, 0])
        seed = fold_in(seed, tf.cast(self.optimizer.iterations.value, tf.int32))
        return fold_in(seed, context.replica_id_in_sync_group)

    def replica_step(self, batch: Batch):
        """Update once; return the report of all replicas and the norm."""
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
        """A function of nothing -> `Optimizer.trust_ratios`."""
        return on_devices(self.strategy, self.optimizer.trust_ratios)

    def at_depth(self, layers: int | None) -> "Trainer":
        """Return a trainer of the same state that runs so many layers.

        None is all. Such trainers are made once, with their graphs.
        """
        if layers not in self._depths:
            other = copy.copy(self)
            other.objective = dataclasses.replace(self.objective, layers=layers)
            other.evaluator = Evaluator(
                self.strategy,
                lambda: self.model,
                other.objective,
                self.training.eval_batch_size,
            )
            other.__dict__.pop("run_steps", None)
            other._gradients = other._compiled_gradients()
            self._depths[layers] = other
        return self._depths[layers]

    def iterator(
        self, batches: Callable, start: int, batch_size: int | None = None
    ):
        """Return the distributed training batches from an example on.

        Args:
          batches: makes a dataset of keywords, a pure function of them:
            `start`, the first example; `num_shards`, hosts; `shard`, which
            of them; `batch_size` of a replica.
          start: the first example.
          batch_size: over all replicas; None is that of the settings.
        """
        size = batch_size or self.training.train_batch_size
        # Of others, workers would ask each other in each step whether there is
        # one more, and the shapes of batches would be unknown.
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
