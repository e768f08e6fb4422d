"""Which attention heads a task needs least, and a model without them.

Michel et al., https://arxiv.org/abs/1905.10650, equation 2: a head is worth
I = E_x |dL(x)/dm|, where m = 1 multiplies what the head puts out, in every
layer that calls its block. Shapes: N blocks, A heads, D head width, H hidden
width.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from albert_tf.model.config import AlbertConfig
from albert_tf.training.step.evaluator import Objective

# The axis along which a block's weights belong to heads, one after the other.
HEAD_AXES = {
    "query/kernel": 1,
    "query/bias": 0,
    "key/kernel": 1,
    "key/bias": 0,
    "value/kernel": 1,
    "value/bias": 0,
    "output/kernel": 0,
}


def mask_gradients(kernel, gradient, heads: int) -> tf.Tensor:
    """Return dL/dm [A] for an output kernel [A * D, H] and its gradient.

    To multiply what a head puts out is to multiply its rows of the kernel.
    """
    products = tf.reshape(kernel * gradient, [heads, -1])  # [A, D * H]
    return tf.reduce_sum(products, axis=1)


def importances(
    model, objective: Objective, examples: tf.data.Dataset
) -> dict[str, np.ndarray]:
    """Return {block: what each of its heads is worth [A]}.

    Args:
      model: a model whose encoder is its `albert`.
      objective: gives the loss.
      examples: batches of one example, for the mean is one of absolute values.
    """
    config, blocks = model.albert.config, model.albert.encoder.attentions
    kernels = [b.output_projection.kernel.value for b in blocks.values()]

    @tf.function(input_signature=[examples.element_spec])
    def step(batch):
        with tf.GradientTape() as tape:
            sums, _ = objective.losses(model, batch, None)
            loss = tf.add_n(list(sums.values()))
        gradients = tape.gradient(loss, kernels)
        heads = config.num_attention_heads
        return [
            tf.abs(mask_gradients(kernel, gradient, heads))
            for kernel, gradient in zip(kernels, gradients, strict=True)
        ]

    sizes = [[x.numpy() for x in step(batch)] for batch in examples]
    names = [block.name for block in blocks.values()]
    return dict(zip(names, np.mean(sizes, axis=0), strict=True))


def most_important(worth: np.ndarray, number: int) -> np.ndarray:
    """Return which heads are worth most, in their old order."""
    return np.sort(np.argsort(-worth, kind="stable")[:number])


def without_heads(
    config: AlbertConfig,
    weights: dict[str, np.ndarray],
    kept: dict[str, np.ndarray],
) -> tuple[AlbertConfig, dict[str, np.ndarray]]:
    """Return a config and weights that have the kept heads alone.

    Args:
      config: the architecture.
      weights: {name: value} of the model.
      kept: {block: its heads}, of every block as many.
    """
    size, weights = config.head_size, dict(weights)
    for block, heads in kept.items():
        places = (heads[:, None] * size + np.arange(size)).ravel()
        for part, axis in HEAD_AXES.items():
            name = f"albert/encoder/{block}/{part}"
            weights[name] = np.take(weights[name], places, axis)
    (number,) = {len(heads) for heads in kept.values()}
    new = dataclasses.replace(
        config, num_attention_heads=number, attention_head_size=size
    )
    return new, weights
