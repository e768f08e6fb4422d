"""Forms of the encoder's loop over layers that share their weights.

All forms compute the same. A `while` loop compiles one layer instead of L,
and what is recomputed need not be kept: then neither compile time nor memory
grows with depth but for one hidden state [B, T, H] per layer.
"""

import dataclasses
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from albert_tf.model.custom_gradients import custom_gradient

# (hidden states [B, T, H], number of the layer) -> hidden states [B, T, H]
Layer = Callable[[tf.Tensor, int | tf.Tensor], tf.Tensor]


def unrolled(layer: Layer, x: tf.Tensor, numbers: range) -> tf.Tensor:
    """Apply a layer once for each number; the graph grows with them."""
    for number in numbers:
        x = layer(x, number)
    return x


def while_loop(layer: Layer, x: tf.Tensor, numbers: range) -> tf.Tensor:
    """Apply a layer once for each number; the graph has one layer."""
    if len(numbers) < 2:
        return unrolled(layer, x, numbers)
    _, x = tf.while_loop(
        lambda number, _: number < numbers.stop,
        lambda number, x: (number + 1, layer(x, number)),
        (tf.constant(numbers.start), x),
        # XLA must know how much the backward pass will need.
        maximum_iterations=len(numbers),
    )
    return x


LOOPS: dict[str, Callable] = {"unrolled": unrolled, "while": while_loop}
REMATERIALIZE = {"none": False, "layer": True}
AUTO = "auto"  # by the kind of device


def with_weights(layer: Layer, variables: Sequence[keras.Variable]) -> Callable:
    """Return the layer as a function of (x, number, *weights)."""

    def call(x, number, *weights):
        values = list(zip(variables, weights, strict=True))
        with keras.StatelessScope(state_mapping=values):
            return layer(x, number)

    return call


def after(x: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Return x, for use only once `other`, of the same shape, is known."""
    # XLA ignores control dependencies, and would not compute again what it
    # has; a NaN in `other` means a NaN gradient in any case.
    first = tf.reshape(other, [-1])[0]
    return x + tf.where(tf.math.is_nan(first), first, tf.zeros_like(first))


def rematerialized(call: Callable) -> Callable:
    """Keep only the layer's input; compute it again in the backward pass.

    Args:
      call: a function of (x, number, *weights) that reads no variables.
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
    """How a run goes through layers that call the same blocks.

    Attributes:
      form: a key of `LOOPS`.
      rematerialize: whether the backward pass computes each layer again.
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
          layer: one layer; its number decides nothing but dropout.
          x: hidden states [B, T, H].
          numbers: of the layers, which all call the same blocks.
          blocks: those that they call. Their weights are read here, once,
            for loops and recomputation get at gradients of tensors alone.
        """
        variables = [v for block in blocks for v in block.variables]
        call = with_weights(layer, variables)
        if self.rematerialize:
            call = rematerialized(call)
        weights = [tf.convert_to_tensor(v.value) for v in variables]
        return LOOPS[self.form](
            lambda x, number: call(x, number, *weights), x, numbers
        )


PLAIN = EncoderLoop()
# Measured with the TPU compiler: docs/cloud_tpu.md.
ON_TPU = EncoderLoop("while", rematerialize=True)


def choose(form: str, rematerialize: str, on_tpu: bool) -> EncoderLoop:
    """Return the loop that two settings stand for on a kind of device.

    Args:
      form: a key of `LOOPS`, or AUTO.
      rematerialize: a key of `REMATERIALIZE`, or AUTO.
      on_tpu: whether the run is on TPUs.
    """
    default = ON_TPU if on_tpu else PLAIN
    return EncoderLoop(
        default.form if form == AUTO else form,
        REMATERIALIZE.get(rematerialize, default.rematerialize),
    )
