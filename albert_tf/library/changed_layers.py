"""Changes to built dense layers: Keras's quantized kernels and LoRA.

LoRA adds a product A B of low-rank matrices to a kernel; see
https://arxiv.org/abs/2106.09685.
"""

from typing import Any

import keras
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.settings import positive
from albert_tf.model.albert import AlbertModel

# Quantization modes that can be restored without calibration.
QUANTIZED = ("int8", "int4", "float8")


def add_low_rank(albert: AlbertModel, rank: int) -> None:
    """Add low-rank matrices to an encoder, and freeze most of its weights.

    The matrices are added to attention and feed-forward layers, whose biases
    remain trainable. Embeddings, layer norms and the pooler are frozen.
    """
    rank = positive("lora_rank", rank)
    albert.embeddings.trainable = albert.pooler.trainable = False
    for layer in albert.encoder._flatten_layers():
        if isinstance(layer, keras.layers.LayerNormalization):
            layer.trainable = False
        if isinstance(layer, keras.layers.Dense):
            layer.enable_lora(rank)


def layer_changes(model: keras.Model) -> dict[str, dict[str, Any]]:
    """Return {layer number: changes to the layer}, for `change_layers`."""
    changes = {}
    for number, layer in enumerate(model._flatten_layers()):
        change, mode = {}, getattr(layer, "quantization_mode", None)
        if mode:
            rule = f"A quantized model must be {' or '.join(QUANTIZED)}."
            require(mode in QUANTIZED, rule, mode=mode)
            change["quantize"] = mode
        if getattr(layer, "lora_enabled", False):
            lora = {"rank": layer.lora_rank, "lora_alpha": layer.lora_alpha}
            change["lora"] = lora
        if change:
            changes[str(number)] = change
    return changes


def change_layers(model: keras.Model, changes: dict) -> None:
    """Apply the result of `layer_changes` to a new model."""
    layers = list(model._flatten_layers())
    for number, change in changes.items():
        layer = layers[int(number)]
        if "quantize" in change:
            layer.quantize(change["quantize"])
        if "lora" in change:
            layer.enable_lora(**change["lora"])


def merged_weights(
    model: keras.Model, named: dict[str, tf.Variable]
) -> dict[str, tf.Variable]:
    """Return {name: variable}, with low-rank matrices merged into kernels.

    Args:
      model: a model whose layers may have changed.
      named: the model's variables, by their names in a model directory.

    Raises:
      InputError: if a layer is quantized.
    """
    named = dict(named)
    names = {id(v): name for name, v in named.items()}
    for layer in model._flatten_layers():
        rule = "A quantized model must be saved as `.keras`. Save a model "
        rule += "directory or export the model before `quantize`."
        mode = getattr(layer, "quantization_mode", None)
        require(mode is None, rule, quantized=mode)
        if getattr(layer, "lora_enabled", False):
            a, b = layer.lora_kernel_a.value, layer.lora_kernel_b.value
            scale = layer.lora_alpha / layer.lora_rank
            kernel = layer._kernel.value + scale * tf.matmul(a, b)
            named[names[id(layer._kernel.value)]] = tf.Variable(kernel)
            del named[names[id(a)]], named[names[id(b)]]
    return named
