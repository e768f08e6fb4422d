"""Base classes of layers, and the encoder's loop over its layers.

All forms of the loop compute the same result. With a `while` loop, the compiler
compiles one layer instead of all layers. If the loop also rematerializes its
layers, each additional layer needs memory for only one hidden state [B, T, H].

Shapes: B batch, T tokens, H hidden width, P requested tokens.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from albert_tf.base.errors import InputError, require
from albert_tf.model import ops
from albert_tf.model.config import AlbertConfig
from albert_tf.model.ops import is_tpu, narrowed, next_seed, rematerialized
from albert_tf.text.packing import INPUTS

# A decorator for layers that lets Keras load saved layers.
registered = keras.saving.register_keras_serializable("albert_tf")

# Hugging Face's names of two inputs, and this project's names.
ALIASES = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}

# {input: the config's number of legal values}
SIZES = {"input_ids": "vocab_size", "segment_ids": "type_vocab_size"}

LAYER_NORM_EPSILON = 1e-12  # as in the release's contrib.layers.layer_norm


class LayerNorm(keras.layers.LayerNormalization):
    """Keras's layer norm with fewer memory passes, in training and on TPUs.

    On TPUs, the mean and the variance are computed in one pass so that the
    compiler can compute both sums together with the preceding matrix product.
    """

    def build(self, input_shape):
        """Create the weights, for inputs of any rank."""
        super().build(input_shape)
        # Keras 3.16 would store the axis as an index from the first axis.
        self.axis = [-1]

    def call(self, inputs, compiled=False):
        if not (compiled or is_tpu()):
            return super().call(inputs)
        arguments = inputs, self.gamma, self.beta
        x, gamma, beta = (tf.cast(each, tf.float32) for each in arguments)
        if not is_tpu():
            y = ops.layer_norm(x, gamma, beta, self.epsilon)
            return tf.cast(y, self.compute_dtype)
        mean = tf.reduce_mean(x, axis=-1, keepdims=True)
        square = tf.reduce_mean(x * x, axis=-1, keepdims=True)
        variance = tf.maximum(square - mean * mean, 0.0)
        scale = tf.math.rsqrt(variance + self.epsilon) * gamma
        y = x * scale + (beta - mean * scale)
        return tf.cast(y, self.compute_dtype)


class Dense(keras.layers.Dense):
    """A Keras dense layer that saves LoRA matrices separately.

    Keras would merge the matrices into the saved kernel, so they could not be
    trained further.
    """

    def _own_variables(self) -> dict[str, keras.Variable]:
        both = self._trainable_variables + self._non_trainable_variables
        return {v.name: v for v in both}

    def quantize(self, mode=None, type_check=True, **kwargs):
        """Quantize the kernel; skip Keras's check, which rejects subclasses."""
        super().quantize(mode, type_check=False, **kwargs)

    def float_kernel(self) -> tf.Tensor:
        """Return the kernel [inputs, units] as floats, even if it is quantized.

        In a quantized Keras layer, `kernel` contains unscaled integers,
        sometimes two per byte.
        """
        if self.quantization_mode is None:
            return self.kernel
        product = self(tf.eye(self.input_spec.axes[-1]))
        return product if self.bias is None else product - self.bias

    def save_own_variables(self, store):
        if not self.lora_enabled:
            super().save_own_variables(store)
            return
        for name, variable in self._own_variables().items():
            store[name] = variable

    def load_own_variables(self, store):
        variables = self._own_variables()
        if not self.lora_enabled or {*variables} != {*store.keys()}:
            super().load_own_variables(store)
            return
        for name, variable in variables.items():
            variable.assign(store[name])


class ConfiguredLayer(keras.layers.Layer):
    """A layer whose config determines all its shapes.

    A parent builds its sublayers in `build`, so the paths of variables have the
    form `parent/layer/variable`.
    """

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config

    def initializer(self) -> keras.Initializer:
        """Return a new truncated-normal initializer, as in the release."""
        return keras.initializers.TruncatedNormal(
            stddev=self.config.initializer_range
        )

    def get_config(self) -> dict:
        """Return the JSON-serializable argument of `from_config`."""
        values = dataclasses.asdict(self.config)
        return super().get_config() | {"config": values}

    @classmethod
    def from_config(cls, config: dict) -> "ConfiguredLayer":
        """Create a layer from the result of `get_config`."""
        architecture = AlbertConfig(**config["config"])
        return cls(**config | {"config": architecture})

    def sublayer(self, cls: type, name: str) -> "ConfiguredLayer":
        """Return a built layer with the same config and dtype policy."""
        layer = cls(self.config, name=name, dtype=self.dtype_policy)
        layer.build()
        return layer

    def table(self, name: str, rows: int, width: int) -> keras.Variable:
        """Add an embedding table [rows, width]."""
        return self.add_weight(
            name=name, shape=(rows, width), initializer=self.initializer()
        )

    def dense(self, name: str, fan_in: int, units: int, **kwargs):
        """Return a built dense layer with a kernel [fan_in, units]."""
        kwargs = {"dtype": self.dtype_policy} | kwargs
        layer = Dense(
            units, kernel_initializer=self.initializer(), name=name, **kwargs
        )
        layer.build((None, fan_in))
        return layer

    def logits(self, name: str, fan_in: int, units: int, **kwargs):
        """Return a built dense layer that computes and returns float32 values.

        In bfloat16, logits would be rounded and often equal: near 10, adjacent
        numbers differ by 1/16.
        """
        return self.dense(name, fan_in, units, dtype="float32", **kwargs)

    def norm(self, width: int) -> "LayerNorm":
        """Return a built layer norm, which computes in float32."""
        layer = LayerNorm(
            epsilon=LAYER_NORM_EPSILON,
            name="layer_norm",
            dtype=self.dtype_policy,
        )
        layer.build((None, width))
        return layer


def as_array(name: str, values: Any) -> np.ndarray:
    """Convert nested lists to an array; raise `InputError` for ragged rows."""
    with contextlib.suppress(ValueError):
        if not isinstance(values, tf.RaggedTensor):
            return np.asarray(values)
    rule = f"`{name}` must be padded to rows of equal length."
    raise InputError(f"{rule} Received: {str(values)[:60]}")


def with_defaults(ids: Any, mask: Any = None, segments: Any = None) -> dict:
    """Return a batch with defaults for a missing mask and missing segments.

    The default mask is all ones, and the default segments are all zeros. All
    three become int32, because `tf.gather` accepts few types of integers.

    Args:
      ids: the ids, or a dict of the whole batch.
      mask: the `input_mask`, or None.
      segments: the `segment_ids`, or None.
    """
    values = dict(zip(INPUTS, (ids, mask, segments), strict=True))
    batch = ids if isinstance(ids, Mapping) else values
    batch = {name: x for name, x in batch.items() if x is not None}
    batch |= {n: tf.cast(batch[n], tf.int32) for n in INPUTS if n in batch}
    make = {"input_mask": tf.ones_like, "segment_ids": tf.zeros_like}
    return batch | {
        name: default(batch["input_ids"])
        for name, default in make.items()
        if name not in batch
    }


class TakesIds:
    """A mixin that checks batches before Keras does, to shorten error messages.

    Callers pass a batch as a dict, or as `input_ids` and keyword arguments. The
    mask and the segments may have Hugging Face's names; see `ALIASES`.
    """

    def named_inputs(self, inputs: Any, extra: dict) -> dict:
        """Check a batch, and rename its inputs to the names in the model.

        Args:
          inputs: the ids, or a dict of the whole batch, as tensors, tensor
            specs, arrays or lists.
          extra: {name: value} for additional inputs; if a value is None, the
            default is used.
        """
        raise NotImplementedError

    def __call__(self, *args, **kwargs):
        arguments = dict(zip(INPUTS, args, strict=False))
        for name in {*INPUTS, *ALIASES} & kwargs.keys() - arguments.keys():
            arguments[name] = kwargs.pop(name)
        ids = arguments.pop("input_ids", {})
        batch = self.named_inputs(ids, arguments)
        is_mapping = isinstance(ids, Mapping)
        first = batch if is_mapping else batch.pop("input_ids")
        inputs = {} if is_mapping else batch
        positional = [inputs.pop(name, None) for name in INPUTS[1 : len(args)]]
        positional += args[len(INPUTS) :]
        return super().__call__(first, *positional, **kwargs, **inputs)


class AlbertNetwork(TakesIds, ConfiguredLayer):
    """A layer that accepts a batch of token ids.

    Attributes:
      further_inputs: names of inputs of `compute` besides `INPUTS`.
      id_shapes: {rank: shape} for the legal shapes of `input_ids`.
    """

    further_inputs: ClassVar[tuple[str, ...]] = ()
    id_shapes: ClassVar[dict[int, str]] = {2: "[B, T]"}

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(config, **kwargs)
        # Keras would draw this seed from Python's random generator, which would
        # change the initial weights.
        first = int(np.random.randint(2**31))
        self.seed_generator = keras.random.SeedGenerator(first)

    def check_inputs(self, batch: dict) -> None:
        """Raise `InputError` for types, shapes and ids that the model rejects.

        The method checks only static shapes, and the ids only in arrays. On
        GPUs, TensorFlow would read zeros for ids outside a table.
        """
        ids, limit = batch["input_ids"], self.config.max_position_embeddings
        dtype = str(getattr(ids.dtype, "name", ids.dtype))
        require(
            "int" in dtype,
            "`input_ids` must be integers; a tokenizer or a `Preprocessor` "
            "creates them from texts, as do `fit` and `predict` of a task's "
            'model. A `keras.Input` of ids needs dtype="int32".',
            dtype=dtype,
        )
        shape = tf.TensorShape(ids.shape)
        forms = " or ".join(self.id_shapes.values())
        rule = f"`input_ids` must have the shape {forms}; `input_mask` and "
        rule += "`segment_ids` are separate arguments."
        require(shape.rank in (None, *self.id_shapes), rule, shape=shape)
        rule = "`input_ids` must have at most `max_position_embeddings`, "
        rule += f"{limit}, tokens."
        require((shape[-1] or 0) <= limit, rule, shape=shape)
        rule = "The rows of `input_ids` must have at least one token."
        require(shape[-1:] != [0], rule, shape=shape)
        for name in batch.keys() & {*INPUTS[1:]}:
            rule = f"`{name}` must have the shape of `input_ids`."
            shapes = {"input_ids": shape, name: batch[name].shape}
            require(shape.is_compatible_with(shapes[name]), rule, **shapes)
        for name, field in SIZES.items():
            x, size = batch.get(name), getattr(self.config, field)
            if isinstance(x, np.ndarray) and x.size:
                rule = f"`{name}` must be from 0 to {size - 1}, because the "
                rule += f"model's `{field}` is {size}."
                first, last = x.min(), x.max()
                legal = 0 <= first and last < size
                require(legal, rule, smallest=first, largest=last)

    def named_inputs(self, inputs, extra, further=None):
        extra = {name: x for name, x in extra.items() if x is not None}
        batch = inputs if isinstance(inputs, Mapping) else {INPUTS[0]: inputs}
        batch = {**batch}
        rule = "A batch must contain each input once. Received twice: "
        duplicates = sorted(batch.keys() & extra.keys())
        require(not duplicates, f"{rule}{', '.join(duplicates)}")
        batch |= extra
        for alias in ALIASES.keys() & batch.keys():
            name = ALIASES[alias]
            rule = f"A batch must have only one of `{name}` and `{alias}`."
            require(name not in batch, rule, names=", ".join(sorted(batch)))
            batch[name] = batch.pop(alias)
        further = self.further_inputs if further is None else further
        legal = (*INPUTS, *further)
        require(
            "input_ids" in batch and not set(batch) - set(legal),
            "A batch must have `input_ids`; the legal inputs are "
            f"{', '.join(legal)}.",
            names=", ".join(sorted(map(str, batch))),
        )
        for name, x in batch.items():
            if isinstance(x, tf.RaggedTensor) or not hasattr(x, "dtype"):
                batch[name] = as_array(name, x)
        self.check_inputs(batch)
        return batch

    def call(
        self,
        input_ids,
        input_mask=None,
        segment_ids=None,
        training=None,
        seed=None,
        positions=None,
        **further,
    ):
        """Fill in defaults and call `compute`.

        Args:
          input_ids: integers [B, T], or a dict of the whole batch.
          input_mask: [B, T], 1 at tokens and 0 at padding. Default: ones.
          segment_ids: [B, T], 0 or 1. Default: zeros.
          training: whether to draw a new dropout seed if `seed` is None; Keras
            sets this argument in `fit`.
          seed: the dropout seed (see `ops.py`), which this project's training
            loop passes.
          positions: int32 [B, P], see `AlbertModel`.
          **further: the inputs in `further_inputs`, and options of `compute`.
        """
        batch = with_defaults(input_ids, input_mask, segment_ids)
        if seed is None and training:
            seed = next_seed(self.seed_generator)
        if positions is not None:  # Keras separates tensors from options
            further["positions"] = positions
        return self.compute(**batch | further, seed=seed)

    def compute(self, input_ids, input_mask, segment_ids, seed=None):
        """Return the outputs.

        A `seed` selects training; None selects inference.
        """
        raise NotImplementedError


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
AUTO = "auto"  # select a form for the kind of device


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
            because loops and recomputation cannot differentiate variables.
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
    """Return the loop that two settings select on a kind of device.

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
