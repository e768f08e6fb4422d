"""Update rules: LAMB and AdamW as released with ALBERT, and Muon.

LAMB and AdamW follow the released `lamb_optimizer.py` and `optimization.py`: by
default, there is no bias correction, and the trust ratio includes weight decay.
Rules are functions of tensors, without side effects.
"""

import math
import re
from typing import NamedTuple

import tensorflow as tf

from albert_tf.model.ops import xla_compiled


def debias(beta: float, t):
    """Return 1 - beta^t, accurately in float32 even for beta near 1."""
    return -tf.math.expm1(t * math.log(beta)) if beta else 1.0


class Adam(NamedTuple):
    """Adam's hyperparameters, as a hashable tuple.

    Calls with equal tuples share a trace of a `tf.function`.
    """

    beta_1: float
    beta_2: float
    epsilon: float
    bias_correction: bool

    @classmethod
    def of(cls, c) -> "Adam":
        """Return the hyperparameters in an `OptimizerConfig`."""
        return cls(*(getattr(c, name) for name in cls._fields))


def adam_direction(m, v, t, c: Adam):
    """Return the update direction for moments m and v after t steps."""
    if c.bias_correction:
        m = m / debias(c.beta_1, t)
        v = v / debias(c.beta_2, t)
    return m / (tf.sqrt(v) + c.epsilon)


def adam_update(w, g, m, v, t, decay: float, c: Adam):
    """Return the update direction u, including decay, and the new m and v."""
    m = c.beta_1 * m + (1.0 - c.beta_1) * g
    v = c.beta_2 * v + (1.0 - c.beta_2) * tf.square(g)
    u = adam_direction(m, v, t, c)
    return (u + decay * w if decay else u), m, v


# The smallest number of elements at which XLA updates a variable. With XLA, an
# update needs one pass over memory instead of ten. For small variables,
# launching XLA's code would take longer than the passes that it saves.
FUSED_SIZE = 1 << 16
compiled_adam_update = xla_compiled(adam_update)


def trust_ratio(w, u):
    """Return ||w|| / ||u||, or 1 if either norm is 0."""
    w_norm, u_norm = tf.norm(w), tf.norm(u)
    defined = tf.logical_and(w_norm > 0.0, u_norm > 0.0)
    return tf.where(defined, tf.math.divide_no_nan(w_norm, u_norm), 1.0)


# The matrices that Muon updates; they map hidden states. As usual, AdamW
# updates embedding tables, heads, norms and biases.
MATRICES = re.compile(
    r"albert/(encoder/.*|embeddings/embedding_hidden_mapping_in)/kernel$"
)
MOMENTUM = 0.95
# Root mean square of an update: twice the value in
# https://arxiv.org/abs/2502.16982, so that a rate that suits AdamW suits Muon.
# Losses of `tiny` after 1,000 steps of batch size 64: 4.31 with 0.4 at a rate
# of 1.4e-3; 4.34 with 0.2 at 2e-3 and at 2.8e-3; 4.44 with AdamW.
RMS = 0.4
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # coefficients of x, x^3 and x^5


def orthogonalized(x: tf.Tensor, dtype: str = "float32") -> tf.Tensor:
    """Approximate U V^T of x = U S V^T by Newton-Schulz iterations.

    The singular values of the result are close to 1, even if products are
    computed in bfloat16 (the argument `dtype`), as in Jordan's code.
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


def muon_update(w, g, m, decay: float, dtype: str):
    """Return the update direction u of a matrix, and the new m.

    u is the momentum with all singular values set close to 1 (Jordan et al.,
    https://kellerjordan.github.io/posts/muon), plus weight decay.
    """
    m = MOMENTUM * m + g
    u = orthogonalized(g + MOMENTUM * m, dtype)
    u = u * (RMS * math.sqrt(max(w.shape)))
    return u + decay * w, m


class Rule(NamedTuple):
    """Adam's update rule or, if an attribute is true, a variant of this rule.

    Attributes:
      has_trust_ratio: whether the trust ratio scales the updates.
      has_muon: whether Muon updates `MATRICES`.
    """

    has_trust_ratio: bool = False
    has_muon: bool = False


RULES = {
    "lamb": Rule(has_trust_ratio=True),
    "adamw": Rule(),
    "muon": Rule(has_muon=True),
}


def update_rule(
    w,
    g,
    m,
    v,
    rate,
    t,
    excluded: bool,
    c,
    name: str = "",
    compiled: bool = True,
    dtype: str = "float32",
):
    """Return the new (w, m, v) of one variable, without side effects.

    If the rule has a trust ratio r, as LAMB (https://arxiv.org/abs/1904.00962)
    does, r scales the update.

    Args:
      w: the variable's value.
      g: the variable's gradient.
      m, v: the gradient's first and second moments.
      rate: the learning rate at this step.
      t: the float32 number of this step, counted from 1.
      excluded: whether w has neither weight decay nor a trust ratio.
      c: the hyperparameters, an `OptimizerConfig`.
      name: the variable's name, by which Muon recognizes matrices.
      compiled: whether XLA may compile parts.
      dtype: the dtype of Muon's matrix products.
    """
    decay = 0.0 if excluded else c.weight_decay_rate
    if c.rule.has_muon and MATRICES.match(name):
        u, m = muon_update(w, g, m, decay, dtype)
    else:
        compiled = compiled and w.shape.num_elements() >= FUSED_SIZE
        update = compiled_adam_update if compiled else adam_update
        u, m, v = update(w, g, m, v, t, decay, Adam.of(c))
    adapts = c.rule.has_trust_ratio and not excluded
    r = trust_ratio(w, u) if adapts else 1.0
    return w - (rate * r) * u, m, v
