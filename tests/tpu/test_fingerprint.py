"""A fingerprint changes with a module's work and with nothing else."""

import pytest
import tensorflow as tf
from lowered_function import lower

from albert_tf.tpu.compiler import CompileOnlyStrategy
from albert_tf.tpu.fingerprint import Fingerprint, fingerprint


def fingerprint_of(step, shape=(3, 4), dtype=tf.float32):
    """Return the fingerprint of a function of one tensor."""
    spec = tf.TensorSpec(shape, dtype)
    return fingerprint(lower(CompileOnlyStrategy(1), step, [spec]))


def plain(x):
    """The function that others differ from."""
    return tf.reduce_sum(tf.exp(x) - 2.0 * x, axis=0)


def renamed(tensor):
    """The same under other names, from other lines."""
    with tf.name_scope("elsewhere"):
        grown = tf.exp(tensor, name="grown")
        return tf.reduce_sum(grown - 2.0 * tensor, axis=0, name="total")


OTHERS = {
    "constant": lambda x: tf.reduce_sum(tf.exp(x) - 3.0 * x, axis=0),
    "operation": lambda x: tf.reduce_sum(tf.tanh(x) - 2.0 * x, axis=0),
    "axis": lambda x: tf.reduce_sum(tf.exp(x) - 2.0 * x, axis=1),
    "order of operations": lambda x: tf.reduce_sum(tf.exp(x - 2.0 * x), axis=0),
    "type": lambda x: tf.cast(plain(tf.cast(x, tf.bfloat16)), tf.float32),
}


def test_names_and_what_was_traced_before_do_not_matter():
    """The digest is that of the first trace."""
    first = fingerprint_of(plain)
    fingerprint_of(OTHERS["operation"])
    assert fingerprint_of(renamed) == first == fingerprint_of(plain)
    assert first.operations["exponential"] == 1


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_computed_matters(name):
    """Each change gives another digest."""
    assert fingerprint_of(OTHERS[name]).digest != fingerprint_of(plain).digest


def test_what_feeds_what_matters():
    """The same instructions in the same order, two operands exchanged."""
    one = fingerprint_of(lambda x: tf.exp(x) - x)
    other = fingerprint_of(lambda x: x - tf.exp(x))
    assert one.operations == other.operations and one.digest != other.digest


def test_shapes_matter():
    """The same function of another shape is another module."""
    assert fingerprint_of(plain, (4, 4)).digest != fingerprint_of(plain).digest


def test_a_difference_is_explained_by_operations():
    """Counts that changed are named, and a line is read as it was written."""
    first = Fingerprint("aa", {"add": 3, "dot": 2, "tanh": 1})
    assert Fingerprint.read(first.text()) == first
    assert first.difference(first) == ""
    other = Fingerprint("bb", {"add": 3, "dot": 4, "exp": 1})
    said = "module aa -> bb: dot 2 -> 4, exp 0 -> 1, tanh 1 -> 0"
    assert first.difference(other) == said
    same = Fingerprint("cc", first.operations)
    assert first.difference(same).endswith("as many operations of each kind")
