"""Batches of ids from a `PyDataset`, with checked labels and weights."""

import keras

from albert_tf.library.user_data import labels_of_ids, weights_of_ids
from albert_tf.tasks.task import Task


class CheckedBatches(keras.utils.PyDataset):
    """A `PyDataset` whose labels and weights have a form that Keras accepts.

    Args:
      batches: the data set, which returns tuples of ids, labels and weights;
        the last two are optional.
      task: see `labels_of_ids`.
      own_loss: see `labels_of_ids`.
    """

    def __init__(
        self, batches: keras.utils.PyDataset, task: Task, own_loss: bool
    ):
        super().__init__(
            batches.workers, batches.use_multiprocessing, batches.max_queue_size
        )
        self._batches, self._labels_are = batches, (task, own_loss)

    @property
    def num_batches(self) -> int | None:
        return self._batches.num_batches

    def __getitem__(self, index):
        batch = self._batches[index]
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            return batch
        ids, labels, *weights = batch
        labels = labels_of_ids(labels, *self._labels_are)
        return ids, labels, *map(weights_of_ids, weights)

    def on_epoch_begin(self):
        self._batches.on_epoch_begin()

    def on_epoch_end(self):
        self._batches.on_epoch_end()
