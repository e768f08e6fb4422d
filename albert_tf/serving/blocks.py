"""A large batch in blocks of rows, so that memory is that of a block.

Shapes: B batch, T tokens.
"""

from collections.abc import Callable

import tensorflow as tf

Tensors = dict[str, tf.Tensor]

# Tokens of a block. At the lengths that models have, larger blocks are no
# faster, and what a block needs stays below about a gigabyte for base.
BLOCK_TOKENS = 8192


def block_rows(length: tf.Tensor) -> tf.Tensor:
    """Return the rows of a block for inputs of T tokens, at least 1."""
    return tf.maximum(BLOCK_TOKENS // tf.maximum(length, 1), 1)


def in_blocks(
    body: Callable[..., Tensors], inputs: Tensors, rows: tf.Tensor
) -> Tensors:
    """Return `body(**inputs)`, computed for a number of rows at a time.

    Args:
      body: a function whose outputs' rows depend on the same rows of its
        inputs alone.
      inputs: {name: [B, ...]}.
      rows: most rows to give to `body` at once.

    Returns:
      {name: [B, ...]}. A batch of no row gives outputs of no row.
    """
    number = tf.shape(next(iter(inputs.values())))[0]  # B
    # One block of no rows tells the shapes of what an empty batch gives.
    blocks = tf.maximum((number + rows - 1) // rows, 1)
    specs = body.structured_outputs
    parts = {
        name: tf.TensorArray(spec.dtype, blocks, infer_shape=False)
        for name, spec in specs.items()
    }

    def step(i, parts):
        block = {k: x[i * rows : (i + 1) * rows] for k, x in inputs.items()}
        computed = body(**block)
        return i + 1, {k: parts[k].write(i, x) for k, x in computed.items()}

    _, parts = tf.while_loop(
        lambda i, _: i < blocks,
        step,
        (tf.constant(0), parts),
        parallel_iterations=1,
    )
    outputs = {}
    for name, spec in specs.items():
        outputs[name] = parts[name].concat()
        outputs[name].set_shape([None, *spec.shape[1:]])
    return outputs
