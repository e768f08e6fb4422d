"""Custom gradients that are freed with their graph.

TensorFlow registers the custom gradients of a graph for the life of the
process. They refer to their graph, which refers to the model.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator

import tensorflow as tf
from tensorflow.python.framework import ops


class WeakGradient:
    """A registered gradient that its graph keeps alive."""

    def __init__(self, gradient: Callable):
        self.gradient = weakref.ref(gradient)

    def __call__(self, *args):
        return self.gradient()(*args)


@contextlib.contextmanager
def freed_with_graph() -> Iterator[None]:
    """Let the graph own the custom gradients that it registers in the block.

    Use it around other libraries' code with custom gradients, such as an
    all-reduce; our own functions are decorated with `custom_gradient`.
    """
    if tf.executing_eagerly():  # registers nothing
        yield
        return
    registry = ops.gradient_registry._registry
    known = set(registry)
    yield
    graph = tf.compat.v1.get_default_graph()
    owned = list(getattr(graph, "albert_gradients", ()))
    for name in registry.keys() - known:
        gradient = registry[name]["type"]
        if not isinstance(gradient, WeakGradient):
            registry[name]["type"] = WeakGradient(gradient)
            weakref.finalize(gradient, registry.pop, name, None)
            owned.append(gradient)
    graph.albert_gradients = owned


def custom_gradient(function: Callable) -> Callable:
    """Decorate a function of tensors as `tf.custom_gradient` does.

    The one difference: graphs that call the function can be freed.
    """
    registered = tf.custom_gradient(function)

    @functools.wraps(function)
    def call(*args):
        with freed_with_graph():
            return registered(*args)

    return call
