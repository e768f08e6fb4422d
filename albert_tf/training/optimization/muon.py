"""Muon: a matrix moves by its momentum with all singular values near 1.

Jordan et al., https://kellerjordan.github.io/posts/muon, with the decay and
twice the scale of https://arxiv.org/abs/2502.16982: then a rate that suits
AdamW suits both the matrices and what AdamW moves.
"""

import math
import re

import tensorflow as tf

# The matrices between hidden states; tables, heads, norms and biases have
# AdamW, as is usual.
MATRICES = re.compile(
    r"albert/(encoder/.*|embeddings/embedding_hidden_mapping_in)/kernel$"
)
MOMENTUM = 0.95
# Of an update's entries. 1,000 steps of `tiny` with batches of 64: 0.4 at the
# rate 1.4e-3 ended at 4.31, 0.2 at 2e-3 and 2.8e-3 at 4.34, AdamW at 4.44.
RMS = 0.4
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of x, x^3 and x^5


def orthogonalized(x: tf.Tensor, dtype: str = "float32") -> tf.Tensor:
    """Return about U V^T of x = U S V^T, by Newton-Schulz iterations.

    Their products are of `dtype`; bfloat16, as in Jordan's, leaves the singular
    values as near 1 as the iterations bring them.
    """
    tall = x.shape[0] > x.shape[1]
    x = tf.transpose(x) if tall else x
    x = tf.cast(x / (tf.norm(x) + 1e-7), dtype)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = tf.matmul(x, x, transpose_b=True)
        x = a * x + tf.matmul(b * square + c * tf.matmul(square, square), x)
    x = tf.cast(x, "float32")
    return tf.transpose(x) if tall else x


def muon_rule(w, g, m, v, rate, t, excluded, c, compiled=True, dtype="float32"):
    """Return the new (w, m, v) of a matrix, as `optimizers.update_rule`.

    Only `rate` and the weight decay of `c` are read, and v stays as it is;
    `dtype` is that of products.
    """
    m = MOMENTUM * m + g
    u = orthogonalized(g + MOMENTUM * m, dtype)
    u = u * (RMS * math.sqrt(max(w.shape)))
    return w - rate * (u + c.weight_decay_rate * w), m, v
