"""Whether a program is for a TPU: the one place that decides it."""

import tensorflow as tf


class CompiledForTpu:
    """What a strategy is whose replicas are compiled for TPUs, and not run."""


def is_tpu(strategy: tf.distribute.Strategy | None = None) -> bool:
    """Return whether a strategy's replicas are TPU cores.

    Without one it is that of the replica, or the scope, which is entered.
    """
    strategy = strategy or tf.distribute.get_strategy()
    return isinstance(strategy, (tf.distribute.TPUStrategy, CompiledForTpu))
