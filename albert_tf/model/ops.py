"""Operations of the model: gradients, dropout, fused ops, losses, attention.

XLA compiles the forward and backward passes of the fused ops: intermediate
results stay in registers, and only the tensors named in the docstrings are kept
for the backward pass. If XLA compiles the whole program, the fused ops become
part of it.

A dropout seed is an int32 pair for TensorFlow's stateless random ops; None
means inference. Replicas, steps and layers fold their numbers into the seed, so
their masks differ, but a repeated step uses the same masks.

Shapes: B batch, T tokens, P requested tokens, A heads, D head width, H hidden
width.
"""

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.framework import ops


class CompiledForTpu:
    """A mixin for strategies that compile TPU programs but never run them."""


def is_tpu(strategy: tf.distribute.Strategy | None = None) -> bool:
    """Return whether a strategy's replicas are TPU cores.

    The default is the strategy of the current replica or scope.
    """
    strategy = strategy or tf.distribute.get_strategy()
    return isinstance(strategy, (tf.distribute.TPUStrategy, CompiledForTpu))


class WeakGradient:
    """A registry entry that does not keep its gradient function alive."""

    def __init__(self, gradient: Callable):
        self.gradient = weakref.ref(gradient)

    def __call__(self, *args):
        return self.gradient()(*args)


@contextlib.contextmanager
def freed_with_graph() -> Iterator[None]:
    """Let the graph own the custom gradients that the `with` block registers.

    Use this context manager for custom gradients in other libraries' code, such
    as an all-reduce; functions of this project use the decorator
    `custom_gradient`.
    """
    if tf.executing_eagerly():  # nothing is registered
        yield
        return
    registry = ops.gradient_registry._registry
    existing = set(registry)
    yield
    graph = tf.compat.v1.get_default_graph()
    owned = list(getattr(graph, "albert_gradients", ()))
    for name in registry.keys() - existing:
        gradient = registry[name]["type"]
        if not isinstance(gradient, WeakGradient):
            registry[name]["type"] = WeakGradient(gradient)
            weakref.finalize(gradient, registry.pop, name, None)
            owned.append(gradient)
    graph.albert_gradients = owned


def custom_gradient(function: Callable) -> Callable:
    """Decorate a function of tensors as `tf.custom_gradient` does.

    Unlike with `tf.custom_gradient`, graphs that call the function can be
    freed.
    """
    registered = tf.custom_gradient(function)

    @functools.wraps(function)
    def call(*args):
        with freed_with_graph():
            return registered(*args)

    return call


@custom_gradient
def narrowed(wide: tf.Tensor, narrow: tf.Tensor) -> tf.Tensor:
    """Return `narrow`, but pass its gradient to `wide`, its float32 source."""
    return tf.identity(narrow), lambda dy: (tf.cast(dy, wide.dtype), None)


def after(x: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Return x with a data dependency on `other`, which has the same shape."""
    # XLA ignores control dependencies and would reuse earlier results instead
    # of recomputing them. A NaN in `other` makes the gradient NaN anyway.
    first = tf.reshape(other, [-1])[0]
    return x + tf.where(tf.math.is_nan(first), first, tf.zeros_like(first))


def rematerialized(call: Callable) -> Callable:
    """Wrap a layer so that the backward pass recomputes it from its input.

    The layer is a function of (x, number, *weights) that reads no variables.
    """

    @custom_gradient
    def forward(x, number, *weights):
        def backward(dy):
            with tf.GradientTape() as tape:
                again = after(x, dy)
                tape.watch([again, *weights])
                y = call(again, number, *weights)
            dx, *dw = tape.gradient(y, [again, *weights], dy)
            return dx, None, *dw

        return call(x, number, *weights), backward

    return forward


Seed = tf.Tensor | None


def fold_in(seed: Seed, number: int | tf.Tensor) -> Seed:
    """Derive a seed from a seed and a number; map None to None."""
    if seed is None:
        return None
    return tf.random.fold_in(seed, number, alg="philox")


def next_seed(generator: keras.random.SeedGenerator) -> Seed:
    """Draw a generator's next seed, which is different in each replica."""
    seed = tf.cast(generator.next(), tf.int32)
    context = tf.distribute.get_replica_context()
    return fold_in(seed, context.replica_id_in_sync_group) if context else seed


def dropout(x: tf.Tensor, rate: float, seed: Seed) -> tf.Tensor:
    """Drop units of x with a mask that depends only on the seed.

    Without a seed, return x unchanged.
    """
    if seed is None or rate == 0.0:
        return x
    # A TPU has a random generator; Philox would need 177 operations per
    # number. On CPUs, XLA's default generator would take 80 times as long.
    generator = "auto_select" if is_tpu() else "philox"
    return tf.nn.experimental.stateless_dropout(x, rate, seed, generator)


class XlaPolicy(NamedTuple):
    """The parts of a step that XLA compiles, except on TPUs.

    Attributes:
      whole: whether XLA compiles the forward and backward passes together, in
        training.
      pieces: whether XLA compiles the operations in this module and the
        optimizer's update. XLA compiles GELU only in training; in inference,
        oneDNN fuses GELU with the preceding matrix product.
    """

    whole: bool = False
    pieces: bool = True


def choose_xla(jit_compile: bool | None, on_tpu: bool) -> XlaPolicy:
    """Return the policy for the setting `jit_compile`.

    True selects `pieces` and, except on TPUs, `whole`; None selects only
    `pieces`; False selects neither.
    """
    whole = bool(jit_compile) and not on_tpu
    return XlaPolicy(whole, jit_compile is not False)


def in_float32(function: Callable) -> Callable:
    """Wrap a function to compute in float32 and to round only the result."""

    @functools.wraps(function)
    def call(*args):
        wide = [tf.cast(x, tf.float32) for x in args]
        return tf.cast(function(*wide), args[0].dtype)

    return call


@contextlib.contextmanager
def beside(x: tf.Tensor):
    """Place operations on the device of x without colocating them with x.

    A `tf.function` keeps a trace for each variable with which a call is
    colocated, and the trace keeps the caller's graph alive.
    """
    graph = tf.compat.v1.get_default_graph()
    with graph.colocate_with(None, ignore_existing=True), tf.device(x.device):
        yield


def xla_compiled(
    function: Callable, wide: bool = False, static: bool = False
) -> Callable:
    """Compile a function with XLA, except in a program compiled for a TPU.

    Args:
      function: a function of tensors.
      wide: whether to convert bfloat16 to float32 for the computation.
        Otherwise, XLA's CPU code rounds the result of each operation, which
        takes several times as long.
      static: whether to compile only for static shapes. Otherwise, XLA compiles
        again for every value of a dynamic shape.
    """
    compiled = tf.function(
        in_float32(function) if wide else function,
        jit_compile=True,
        autograph=False,
    )

    @functools.wraps(function)
    def call(*args):
        legal = not static or args[0].shape.is_fully_defined()
        if is_tpu() or not legal:
            return function(*args)
        if not tf.is_symbolic_tensor(args[0]):
            return compiled(*args)
        with beside(args[0]):
            return compiled(*args)

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
    """Return the tanh form of GELU; keep only x for the backward pass."""
    return _gelu(x), lambda upstream: _gelu_gradient(x, upstream)


@functools.partial(xla_compiled, static=True)
def _norm(x, gamma, beta, epsilon):
    centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    scale = tf.math.rsqrt(variance + epsilon)
    standard = centered * scale
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
    """Normalize x [..., H] along its last axis, then scale and shift it.

    All tensors are float32. The normalized x and the inverse standard deviation
    of each row are kept for the backward pass.
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
    is_label = tf.equal(tf.range(logits.shape[-1]), labels[..., None])
    return upstream[..., None] * (probs - tf.cast(is_label, probs.dtype))


@custom_gradient
def fused_cross_entropy(logits: tf.Tensor, labels: tf.Tensor):
    """Return float32 losses [...] for logits [..., C] and int32 labels [...].

    The float32 logits and their normalizers are kept for the backward pass;
    TensorFlow's own op keeps the gradient, which is as large as the logits.
    """
    normalizer = _log_normalizer(logits)
    label_logits = tf.gather(logits, labels, batch_dims=labels.shape.rank)

    def gradient(upstream):
        return (
            _cross_entropy_gradient(logits, labels, normalizer, upstream),
            None,
        )

    return normalizer - label_logits, gradient


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return float32 losses [...] from logits [..., C] and int labels [...]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=tf.cast(logits, tf.float32)
    )


def soft_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, temperature: float
) -> tf.Tensor:
    """Return float32 losses [...] of logits [..., C] against teacher logits.

    The logits of both models are divided by the temperature. The loss is
    multiplied by the square of the temperature to preserve the magnitude of the
    gradients (Hinton et al., 2015, section 2,
    https://arxiv.org/abs/1503.02531).
    """
    loss = tf.nn.softmax_cross_entropy_with_logits(
        labels=tf.nn.softmax(tf.cast(targets, tf.float32) / temperature),
        logits=tf.cast(logits, tf.float32) / temperature,
    )
    return loss * temperature**2


def hits(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return float32 [...]: 1 if no logit exceeds the label's logit, else 0.

    Args:
      logits: [..., C].
      labels: [...], from 0 to C - 1.
    """
    label_logits = tf.gather(logits, labels, batch_dims=len(labels.shape))
    return tf.cast(label_logits >= tf.reduce_max(logits, axis=-1), tf.float32)


def weighted_mean(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return weighted means over the last axis, or 0 if all weights are 0."""
    total = tf.reduce_sum(values * weights, axis=-1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=-1))


def flattened(x: tf.Tensor) -> tf.Tensor:
    """Reshape [B, T, H] to [B * T, H] so that products can fuse their bias.

    On TPUs, return x unchanged so that the compiler can choose the order of B
    and T in memory.
    """
    return x if is_tpu() else tf.reshape(x, [-1, x.shape[-1]])


class FlatProducts:
    """Attention as matrix products, with transposes that separate heads."""

    @staticmethod
    def heads(dense: keras.layers.Dense, x, shape):
        """Apply a dense layer to `flattened` x; return [B, T, A, D]."""
        return tf.reshape(dense(x), shape)

    @staticmethod
    def heads_first(x):
        """Transpose [B, T, A, D] to [B, A, T, D], or the reverse."""
        return tf.transpose(x, [0, 2, 1, 3])

    @classmethod
    def scores(cls, query, key, scale):
        """Map query [B, P, A, D] and key [B, T, A, D] to [B, A, P, T]."""
        query = cls.heads_first(query) * scale
        return tf.matmul(query, cls.heads_first(key), transpose_b=True)

    @classmethod
    def attended(cls, scores, value, drop):
        """Return the context [B, P, A, D] and probabilities [B, A, P, T].

        Args:
          scores: float32 [B, A, P, T], masked.
          value: [B, T, A, D].
          drop: a function that applies dropout to probabilities.
        """
        probs = tf.nn.softmax(scores)
        weights = tf.cast(drop(probs), value.dtype)
        product = tf.matmul(weights, cls.heads_first(value))
        return cls.heads_first(product), probs

    @staticmethod
    def joined(dense: keras.layers.Dense, context, shape):
        """Apply a dense layer to context [B, P, A, D]; return [B, P, H]."""
        width = context.shape[2] * context.shape[3]
        return tf.reshape(dense(tf.reshape(context, [-1, width])), shape)


class HeadProducts(FlatProducts):
    """Attention as one product per head, in a layout that XLA chooses for TPUs.

    With flat products, the compiler copies queries, keys and values, and
    computes scores separately from their softmax; see docs/experiments.md,
    "What made the model cheaper on v5e?"
    """

    @staticmethod
    def heads(dense, x, shape):
        kernel = tf.reshape(dense.kernel, [-1, *shape[2:]])
        bias = tf.reshape(dense.bias, shape[2:])
        return tf.einsum("bth,had->btad", x, kernel) + bias

    @staticmethod
    def scores(query, key, scale):
        # With scaling in float32, the softmax's gradient needs no extra memory.
        scores = tf.einsum("bpad,btad->bapt", query, key)
        return tf.cast(scores, tf.float32) * scale

    @staticmethod
    def attended(scores, value, drop):
        probs = tf.nn.softmax(scores)

        @custom_gradient
        def context_of(_, value):
            weights = tf.cast(drop(probs), value.dtype)
            context = tf.einsum("bapt,btad->bpad", weights, value)

            def gradient(dy):
                # The softmax's gradient subtracts dy * context, summed over the
                # head's width, so XLA need not keep or sum the products.
                means = tf.cast(dy, tf.float32) * tf.cast(context, tf.float32)
                means = tf.einsum("bpad->bap", means)[..., None]
                products = tf.einsum("bpad,btad->bapt", dy, value)
                change = drop(tf.cast(products, tf.float32)) - means
                return probs * change, tf.einsum("bapt,bpad->btad", weights, dy)

            return context, gradient

        return context_of(scores, value), probs

    @staticmethod
    def joined(dense, context, shape):
        kernel = tf.reshape(dense.kernel, [*context.shape[2:], dense.units])
        product = tf.einsum("bpad,adh->bph", context, kernel)
        return product + dense.bias


def attention_products() -> type[FlatProducts]:
    """Return the attention products for the current replica's device."""
    return HeadProducts if is_tpu() else FlatProducts
