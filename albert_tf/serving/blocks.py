"""A large batch in blocks of rows, so that memory is that of a block.

Shapes: B batch, T tokens.
"""

from collections.abc import Callable

import tensorflow as tf

from albert_tf.text.packing import INPUTS

Tensors = dict[str, tf.Tensor]

# Tokens of a block. On CPUs larger blocks are no faster, and the fewer rows a
# block has, the less padding they need.
BLOCK_TOKENS = 2048


def block_rows(length: tf.Tensor) -> tf.Tensor:
    """Return the rows of a block for inputs of T tokens, at least 1."""
    return tf.maximum(BLOCK_TOKENS // tf.maximum(length, 1), 1)


def in_blocks(
    body: Callable[..., Tensors],
    inputs: Tensors,
    rows: tf.Tensor,
    prepare: Callable[[Tensors], Tensors] = dict,
) -> Tensors:
    """Return `body(**inputs)`, computed for a number of rows at a time.

    Args:
      body: a function whose outputs' rows depend on the same rows of its
        inputs alone.
      inputs: {name: [B, ...]}.
      rows: most rows to give to `body` at once.
      prepare: changes what is given.

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
        computed = body(**prepare(block))
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


def answers_rows_alone(body: Callable[..., Tensors]) -> bool:
    """Return whether no output has a number for every token."""
    specs = body.structured_outputs.values()
    return all(spec.shape[1:].is_fully_defined() for spec in specs)


def token_counts(mask: tf.Tensor) -> tf.Tensor:
    """Return how many columns of masks [B, T] end with a token, [B]."""
    return tf.reduce_max(mask * tf.range(1, tf.shape(mask)[1] + 1), axis=1)


def shortened(block: Tensors) -> Tensors:
    """Return a block without the columns that are padding in every row."""
    counts = token_counts(block["input_mask"])
    longest = tf.maximum(tf.reduce_max(counts), 1)
    return block | {name: block[name][:, :longest] for name in INPUTS}


def by_length(
    body: Callable[..., Tensors], inputs: Tensors, rows: tf.Tensor
) -> Tensors:
    """Return what `in_blocks` does, of blocks of rows about equally long.

    A block is as long as its own longest row, for a `body` that
    `answers_rows_alone`.
    """
    order = tf.argsort(token_counts(inputs["input_mask"]))
    ordered = {name: tf.gather(x, order) for name, x in inputs.items()}
    outputs = in_blocks(body, ordered, rows, shortened)
    back = tf.math.invert_permutation(order)
    return {name: tf.gather(x, back) for name, x in outputs.items()}
