"""Operations for training that pass over memory as seldom as they can.

Each is TensorFlow's own, compiled with XLA each way: what several operations
would write and read again stays in registers, and only what is named here is
kept for the backward pass. Where XLA compiles the whole, they are part of it.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from albert_tf.model.custom_gradients import custom_gradient
from albert_tf.model.devices import is_tpu


class XlaPolicy(NamedTuple):
    """What XLA compiles. A TPU compiles the whole step anyway.

    Attributes:
      whole: forward and backward as one, in training.
      pieces: the operations of this module, and an optimizer's update. GELU in
        training alone: without gradients oneDNN computes it with its product.
    """

    whole: bool = False
    pieces: bool = True


def choose_xla(jit_compile: bool | None, on_tpu: bool) -> XlaPolicy:
    """Return the policy of a setting: everything, nothing or, None, pieces."""
    whole = bool(jit_compile) and not on_tpu
    return XlaPolicy(whole, jit_compile is not False)


def in_float32(function: Callable) -> Callable:
    """Have a function of one dtype round its result alone."""

    @functools.wraps(function)
    def call(*args):
        wide = [tf.cast(x, tf.float32) for x in args]
        return tf.cast(function(*wide), args[0].dtype)

    return call


@contextlib.contextmanager
def beside(x: tf.Tensor):
    """Place operations on the device of x, but colocate them with nothing.

    A `tf.function` keeps a trace for each variable that a call was colocated
    with, and the trace keeps the caller's graph.
    """
    graph = tf.compat.v1.get_default_graph()
    with graph.colocate_with(None, ignore_existing=True), tf.device(x.device):
        yield


def xla_compiled(
    function: Callable, wide: bool = False, static: bool = False
) -> Callable:
    """Have XLA compile a function, but inside what a TPU compiles.

    Args:
      function: of tensors.
      wide: whether to compute bfloat16 in float32; XLA's CPU code would round
        each operation's result, which takes several times as long.
      static: whether to compile for shapes that are known alone: others may be
        many, and each would be compiled.
    """
    alone = tf.function(
        in_float32(function) if wide else function, jit_compile=True
    )

    @functools.wraps(function)
    def call(*args):
        legal = not static or args[0].shape.is_fully_defined()
        if is_tpu() or not legal:
            return function(*args)
        if not tf.is_symbolic_tensor(args[0]):
            return alone(*args)
        with beside(args[0]):
            return alone(*args)

    return call


_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def _tanh(x):
    return tf.tanh(_SCALE * (x + _CUBIC * x * x * x))


@functools.partial(xla_compiled, wide=True)
def _gelu(x):
    return 0.5 * x * (1.0 + _tanh(x))


@functools.partial(xla_compiled, wide=True)
def _gelu_gradient(x, upstream):
    t = _tanh(x)
    slope = _SCALE * (1.0 + 3.0 * _CUBIC * x * x)
    return upstream * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)


@custom_gradient
def gelu(x: tf.Tensor):
    """Return the tanh form of GELU of a tensor of any shape; keep x."""
    return _gelu(x), lambda upstream: _gelu_gradient(x, upstream)


@functools.partial(xla_compiled, static=True)
def _norm(x, gamma, beta, epsilon):
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    scale = tf.math.rsqrt(variance + epsilon)
    standard = centred * scale
    return standard * gamma + beta, standard, scale


@functools.partial(xla_compiled, static=True)
def _norm_gradient(upstream, standard, scale, gamma):
    rows = list(range(upstream.shape.rank - 1))
    product = upstream * standard
    wide = upstream * gamma
    mean = tf.reduce_mean(wide, axis=-1, keepdims=True)
    share = tf.reduce_mean(product * gamma, axis=-1, keepdims=True)
    dx = (wide - (standard * share + mean)) * scale
    return dx, tf.reduce_sum(product, rows), tf.reduce_sum(upstream, rows)


@custom_gradient
def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float):
    """Return x [..., H] normed along its last axis, times gamma, plus beta.

    Float32; keeps what has mean 0 and variance 1, and a number for each row.
    """
    y, standard, scale = _norm(x, gamma, beta, epsilon)

    def gradient(upstream):
        return *_norm_gradient(upstream, standard, scale, gamma), None

    return y, gradient


@xla_compiled
def _log_normalizer(logits):
    largest = tf.reduce_max(logits, axis=-1, keepdims=True)
    total = tf.reduce_sum(tf.exp(logits - largest), axis=-1)
    return tf.math.log(total) + largest[..., 0]


@xla_compiled
def _cross_entropy_gradient(logits, labels, normalizer, upstream):
    probs = tf.exp(logits - normalizer[..., None])
    right = tf.equal(tf.range(logits.shape[-1]), labels[..., None])
    return upstream[..., None] * (probs - tf.cast(right, probs.dtype))


@custom_gradient
def cross_entropy(logits: tf.Tensor, labels: tf.Tensor):
    """Return float32 [...] of float32 logits [..., C] and int32 labels [...].

    Keeps the logits and their normalizers, where TensorFlow's own keeps the
    gradient, which is as large as the logits.
    """
    normalizer = _log_normalizer(logits)
    right = tf.gather(logits, labels, batch_dims=labels.shape.rank)

    def gradient(upstream):
        return (
            _cross_entropy_gradient(logits, labels, normalizer, upstream),
            None,
        )

    return normalizer - right, gradient
