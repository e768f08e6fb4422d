"""Floating-point operations of a config's model, from the config alone."""

from albert_tf.model.config import AlbertConfig

# A backward pass costs twice the forward one.
TRAINING_FACTOR = 3


def forward_flops(
    config: AlbertConfig, tokens: int, predictions: int
) -> dict[str, int]:
    """Return {part: FLOPs of one sequence's forward pass}.

    Matrix products only, two operations for each multiply-add; lookups,
    norms and activations are below one percent. The last block computes the
    outputs of [CLS] and of the predictions alone.

    Args:
      config: the architecture; sharing weights saves no operations.
      tokens: length of the sequence, T.
      predictions: masked positions that are predicted, P.
    """
    v, e, h = config.vocab_size, config.embedding_size, config.hidden_size
    i, t, p = config.intermediate_size, tokens, predictions
    a = config.attention_width
    blocks = config.num_hidden_layers * config.inner_group_num
    outputs = (blocks - 1) * t + p + 1  # of all blocks
    hidden = config.embedding_norm == "hidden"
    width = h if hidden else e
    multiply_adds = {
        "embedding projection": t * e * h if e != h or hidden else 0,
        "attention": 2 * a * (blocks * t * h + outputs * (h + t)),
        "feed-forward": outputs * 2 * h * i,
        "pooler": h * h,
        "masked-LM head": p * (h * width + e * v + hidden * h * e),
        "sentence-order head": 2 * h,
    }
    return {part: 2 * count for part, count in multiply_adds.items()}


def training_flops(config: AlbertConfig, tokens: int, predictions: int) -> int:
    """Return the FLOPs of one sequence's forward and backward pass.

    What recomputation adds is not counted: it is no work of the model.
    """
    forward = sum(forward_flops(config, tokens, predictions).values())
    return TRAINING_FACTOR * forward
