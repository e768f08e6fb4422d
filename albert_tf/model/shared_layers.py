"""The forms of the encoder's loop over layers that share their weights.

All forms of the loop compute the same result. With a `while` loop, the compiler
compiles one layer instead of all layers. If the loop also rematerializes its
layers, each additional layer needs memory for only one hidden state [B, T, H].

Shapes: B batch, T tokens, H hidden width.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import keras
import tensorflow as tf

from albert_tf.model.ops import custom_gradient

# (hidden states [B, T, H], number of the layer) -> hidden states [B, T, H]
Layer = Callable[[tf.Tensor, int | tf.Tensor], tf.Tensor]


def unrolled(layer: Layer, x: tf.Tensor, numbers: range) -> tf.Tensor:
    """Apply a layer once per number; the graph contains one copy per number."""
    for number in numbers:
        x = layer(x, number)
    return x


def while_loop(layer: Layer, x: tf.Tensor, numbers: range) -> tf.Tensor:
    """Apply a layer once per number; the graph contains only one copy."""
    if len(numbers) < 2:
        return unrolled(layer, x, numbers)
    _, x = tf.while_loop(
        lambda number, _: number < numbers.stop,
        lambda number, x: (number + 1, layer(x, number)),
        (tf.constant(numbers.start), x),
        # XLA needs this bound to allocate the memory for the backward pass.
        maximum_iterations=len(numbers),
    )
    return x


LOOPS: dict[str, Callable] = {"unrolled": unrolled, "while": while_loop}
REMATERIALIZE = {"none": False, "layer": True}
AUTO = "auto"  # depends on the kind of device


@custom_gradient
def narrowed(wide: tf.Tensor, narrow: tf.Tensor) -> tf.Tensor:
    """Return `narrow`, but pass its gradient to `wide`, its float32 source."""
    return tf.identity(narrow), lambda dy: (tf.cast(dy, wide.dtype), None)


class Weights:
    """The weights of blocks, read and cast once for all layers.

    Keras would cast the kernels in every layer. The sum of the layers'
    gradients is still computed in float32.

    Attributes:
      tensors: all weights in float32, then the kernels in half precision.
    """

    def __init__(self, blocks: Iterable[keras.Layer]):
        pairs = [(v, b.compute_dtype) for b in blocks for v in b.variables]
        self._variables = [v for v, _ in pairs]
        wide = [tf.convert_to_tensor(v.value) for v in self._variables]
        narrow = {
            i: tf.cast(x, dtype)
            for i, (x, (_, dtype)) in enumerate(zip(wide, pairs, strict=True))
            if x.dtype == tf.float32 != dtype and x.shape.rank > 1
        }
        self._kernels, self.tensors = list(narrow), (*wide, *narrow.values())

    @contextlib.contextmanager
    def read_as(self, *tensors: tf.Tensor) -> Iterator[None]:
        """Use these tensors, in the order of `self.tensors`, as the weights."""
        values = [*tensors[: len(self._variables)]]
        kernels = tensors[len(self._variables) :]
        for i, narrow in zip(self._kernels, kernels, strict=True):
            values[i] = narrowed(values[i], narrow)
        with keras.StatelessScope() as scope:
            # The argument `state_mapping` would cast kernels back to float32.
            for pair in zip(self._variables, values, strict=True):
                scope.add_update(pair)
            yield


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


@dataclasses.dataclass(frozen=True)
class EncoderLoop:
    """The form of the loop over layers that call the same blocks.

    Attributes:
      form: a key of `LOOPS`.
      rematerialize: whether the backward pass recomputes each layer.
    """

    form: str = "unrolled"
    rematerialize: bool = False

    def __call__(
        self,
        layer: Layer,
        x: tf.Tensor,
        numbers: range,
        blocks: Sequence[keras.Layer],
    ) -> tf.Tensor:
        """Return the hidden states [B, T, H] after the last layer.

        Args:
          layer: a function that applies one layer; its number affects only
            dropout.
          x: hidden states [B, T, H].
          numbers: the numbers of the layers, which all call the same blocks.
          blocks: the blocks that the layers call. Their weights become tensors,
            because loops and recomputation have no gradients of variables.
        """
        weights = Weights(blocks)

        def call(x, number, *tensors):
            with weights.read_as(*tensors):
                return layer(x, number)

        pure = rematerialized(call) if self.rematerialize else call
        return LOOPS[self.form](
            lambda x, number: pure(x, number, *weights.tensors), x, numbers
        )


PLAIN = EncoderLoop()
# The choice is based on measurements with the TPU compiler; see
# docs/experiments.md, "Which form should the encoder's loop have?"
ON_TPU = EncoderLoop("while", rematerialize=True)


def encoder_loop(form: str, rematerialize: str, on_tpu: bool) -> EncoderLoop:
    """Return the loop for two settings, given the kind of device.

    Args:
      form: a key of `LOOPS`, or `AUTO`.
      rematerialize: a key of `REMATERIALIZE`, or `AUTO`.
      on_tpu: whether the run uses TPUs.
    """
    default = ON_TPU if on_tpu else PLAIN
    return EncoderLoop(
        default.form if form == AUTO else form,
        REMATERIALIZE.get(rematerialize, default.rematerialize),
    )
