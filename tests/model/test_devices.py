"""Choices that depend on the device are made when a graph is traced."""

import tensorflow as tf

from albert_tf.model.ops import (
    CompiledForTpu,
    XlaPolicy,
    choose_xla,
    dropout,
    gelu,
    is_tpu,
)


class ForTpu(CompiledForTpu, tf.distribute.OneDeviceStrategy):
    """A strategy that imitates a TPU strategy."""


def traced(strategy: tf.distribute.Strategy) -> tf.compat.v1.GraphDef:
    """Return a replica's graph, which applies dropout inside a loop."""

    def replica():
        with tf.GradientTape() as tape:
            x = tf.ones([4, 4])
            tape.watch(x)
            y = tf.while_loop(
                lambda y: True,
                lambda y: dropout(gelu(y), 0.5, tf.constant([1, 2])),
                [x],
                maximum_iterations=2,
            )
        return tape.gradient(y, x)

    run = tf.function(lambda: strategy.run(replica), autograph=False)
    return run.get_concrete_function().graph.as_graph_def()


def test_a_tpu_draws_bits_itself_and_has_nothing_nested():
    """On TPUs, dropout uses the TPU's generator; no XLA call is nested."""
    for strategy in ForTpu("CPU:0"), tf.distribute.OneDeviceStrategy("CPU:0"):
        functions = traced(strategy).library.function
        ops = {node.op for f in functions for node in f.node_def}
        nested = any(f.attr["_XlaMustCompile"].b for f in functions)
        assert is_tpu(strategy) == isinstance(strategy, ForTpu)
        assert ("StatelessRandomGetKeyCounter" in ops) == is_tpu(strategy)
        assert nested != is_tpu(strategy)


def test_no_setting_nests_on_a_tpu():
    """On TPUs, `jit_compile` never selects a separate compilation of a step.

    XLA compiles the whole program there. On other devices, the default compiles
    only `pieces`, not the whole step.
    """
    assert not any(choose_xla(x, True).whole for x in (None, False, True))
    assert choose_xla(True, False) == (True, True)
    assert choose_xla(False, False) == (False, False)
    assert choose_xla(None, False) == XlaPolicy() == (False, True)


def test_nothing_is_computed_for_a_rate_of_zero():
    """With no seed or a rate of 0, dropout returns its input."""
    x, seed = tf.ones([3]), tf.constant([1, 2])
    assert dropout(x, 0.0, seed) is dropout(x, 0.5, None) is x
    assert dropout(x, 0.5, seed) is not x
