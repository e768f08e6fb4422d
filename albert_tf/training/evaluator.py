"""Evaluation of a model on any strategy.

An evaluator computes an objective's losses and metrics, and the model's
outputs, on held-out examples.
"""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.processes import in_order
from albert_tf.training.checkpoints import named_variables
from albert_tf.training.distribution import all_sum, distribute, on_devices
from albert_tf.training.health import require_finite
from albert_tf.training.history import means_of
from albert_tf.training.objectives import Batch, Objective, report_of

# A function that creates a finite dataset of global batches; examples with a
# weight of 0 pad the last batch. The function is called once per host, on the
# host's device, because a dataset created elsewhere cannot be sent to the host.
MakeBatches = Callable[[], tf.data.Dataset]
EXTRAS = ("example_weights", "example_numbers")  # returned with the outputs
# Number of batches that a CPU predicts in parallel: a single batch leaves cores
# idle between matrix products.
BATCHES_AT_ONCE = 2


def concatenate(arrays: list[np.ndarray]) -> np.ndarray:
    """Join arrays along axis 0, padding the other axes with zeros."""
    shape = np.max([array.shape[1:] for array in arrays], axis=0)

    def padded(array):
        widths = shape - array.shape[1:]
        return np.pad(array, [(0, 0), *((0, int(n)) for n in widths)])

    return np.concatenate([padded(array) for array in arrays])


class Evaluator:
    """A model on a strategy, with its objective and compiled evaluation steps.

    Args:
      strategy: the strategy to run on.
      build_model: a function that builds the model; called inside the
        strategy's scope.
      objective: the losses and metrics to measure.
      eval_batch_size: examples per batch, over all replicas.

    Attributes:
      weights: {name: variable} of the model.
      names: the columns of a report: the loss terms, then the metrics.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        build_model: Callable,
        objective: Objective,
        eval_batch_size: int,
    ):
        replicas = strategy.num_replicas_in_sync
        require(
            eval_batch_size % replicas == 0,
            "`eval_batch_size` must be a multiple of the number of replicas.",
            eval_batch_size=eval_batch_size,
            replicas=replicas,
        )
        self.strategy = strategy
        self.objective = objective
        self.eval_batch_size = eval_batch_size
        with strategy.scope():
            self.model = build_model()
        self.weights = named_variables(self.model)
        losses = [f"{term}_loss" for term in objective.terms]
        self.names = (*losses, *objective.metrics)
        self._prediction_steps: dict[tuple, Callable] = {}

    def summarize(self, report: np.ndarray) -> dict[str, float]:
        """Convert a report to means, with the total `loss` first."""
        return means_of(self.names, report)

    def _host_share(self, dataset: tf.data.Dataset, context):
        """Return this host's share of global batches, split by replica."""
        size = self.eval_batch_size
        share = size // context.num_input_pipelines
        first = share * context.input_pipeline_id

        def take(batch):
            return {k: x[first : first + share] for k, x in batch.items()}

        if context.num_input_pipelines > 1:
            dataset = dataset.map(take)
        local = context.get_per_replica_batch_size(size)
        if local != share:
            dataset = dataset.unbatch().batch(local, drop_remainder=True)
        return dataset.prefetch(tf.data.AUTOTUNE)

    def _distributed(self, batches: MakeBatches):
        return distribute(
            self.strategy, lambda context: self._host_share(batches(), context)
        )

    def replica_step(self, batch: Batch) -> tf.Tensor:
        """Evaluate this replica's batch; return the replicas' summed report."""
        sums, metrics = self.objective.losses(self.model, batch, None)
        return all_sum(report_of(self.objective, batch, sums, metrics))

    @functools.cached_property
    def _evaluation_step(self):
        return on_devices(self.strategy, self.replica_step)

    def evaluate(self, batches: MakeBatches) -> dict[str, float]:
        """Return the mean losses and metrics, computed without dropout.

        Args:
          batches: a function that creates batches of `eval_batch_size`.

        Raises:
          InputError: if a loss is not finite.
        """
        report = np.zeros([2, len(self.names)])
        for batch in self._distributed(batches):
            report += self._evaluation_step(batch).numpy()
        require_finite(report)
        return self.summarize(report)

    def _prediction_step(self, outputs: Callable, spec):
        """Return a cached function that predicts batches with a given spec."""
        key = (outputs, repr(spec))
        if key in self._prediction_steps:
            return self._prediction_steps[key]

        def replica(batch):
            extras = {name: batch[name] for name in EXTRAS if name in batch}
            return outputs(self.model, batch) | extras

        def step(batch):
            values = self.strategy.run(replica, (batch,))
            return {
                name: self.strategy.gather(value, axis=0)
                for name, value in values.items()
            }

        # With `partial`, each kind of output has its own trace; see
        # `on_devices`.
        self._prediction_steps[key] = tf.function(
            functools.partial(step), input_signature=[spec], autograph=False
        )
        return self._prediction_steps[key]

    def predict(
        self, batches: MakeBatches, outputs: Callable
    ) -> dict[str, np.ndarray]:
        """Return the outputs of every example, in order.

        Args:
          batches: as for `evaluate`, with `example_weights` [B], which are 0
            for padding, and `example_numbers` [B] if examples are out of order.
          outputs: a function (model, batch) -> {name: [B, ...]}; if batches
            differ in length, zeros pad the shorter outputs.

        Raises:
          InputError: if an output is not finite.
        """
        predicted = list(self.predicted_batches(batches, outputs))
        joined = {
            name: concatenate([batch[name] for batch in predicted])
            for name in predicted[0]
        }
        require_finite(*joined.values())
        numbers = joined.pop("example_numbers", None)
        if numbers is None:
            return joined
        order = np.argsort(numbers)
        return {name: value[order] for name, value in joined.items()}

    def predicted_batches(
        self, batches: MakeBatches, outputs: Callable
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the outputs of each batch, omitting padding examples."""
        distributed = self._distributed(batches)
        step = self._prediction_step(outputs, distributed.element_spec)

        def predicted(batch):
            values = {name: x.numpy() for name, x in step(batch).items()}
            real = values.pop("example_weights") > 0
            return {name: value[real] for name, value in values.items()}

        return self._map(predicted, distributed)

    def _map(self, function: Callable, batches) -> Iterator:
        """Yield a function's result for each batch, in order."""
        if self.strategy is not tf.distribute.get_strategy():
            yield from map(function, batches)
            return
        with ThreadPoolExecutor(BATCHES_AT_ONCE) as pool:
            submit = functools.partial(pool.submit, function)
            yield from in_order(submit, batches, BATCHES_AT_ONCE)
