"""ALBERT with PL-BERT's heads, which predict symbols and words.

Source: https://arxiv.org/abs/2301.08810. The word head is wide: in the English
release, it has 84,827 classes at every position. Its logits are therefore
computed for one slice of positions at a time, and recomputed in the backward
pass.

Shapes: B batch, T positions, H hidden width, V symbols, C words, S slices.
"""

import keras
import tensorflow as tf

from albert_tf.model import ops
from albert_tf.model.albert import AlbertModel
from albert_tf.model.config import AlbertConfig
from albert_tf.model.layers import AlbertNetwork, registered

HEADS = ("symbols/", "words/")  # prefixes of the heads' variable names
MAX_LOGITS = 1 << 24  # maximum number of word logits in memory: 64 MB


def count_slices(positions: int, classes: int) -> int:
    """Return the number of equal slices to divide a batch's positions into.

    The result is the smallest divisor of `positions` for which a slice has at
    most `MAX_LOGITS` logits.
    """
    counts = range(1, positions + 1)
    return next(
        n
        for n in counts
        if positions % n == 0 and positions * classes <= n * MAX_LOGITS
    )


def sliced_scores(
    states: tf.Tensor,
    labels: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor,
    slices: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the losses and hits [B, T] of a linear head.

    Args:
      states: float32 [B, T, H].
      labels: int32 [B, T].
      kernel, bias: the weights of the head, [H, C] and [C].
      slices: the number of slices, S, which divides B * T.
    """
    parts = tf.reshape(states, [slices, -1, states.shape[-1]])
    targets = tf.reshape(labels, [slices, -1])

    def scores(x, number, kernel, bias):
        logits, classes = tf.matmul(x, kernel) + bias, targets[number]
        return tf.stack(
            [ops.cross_entropy(logits, classes), ops.hits(logits, classes)]
        )

    recomputed = ops.rematerialized(scores)
    both = tf.map_fn(
        lambda part: recomputed(*part, kernel, bias),
        (parts, tf.range(slices)),
        parallel_iterations=1,  # one slice in memory
        fn_output_signature=tf.float32,
    )  # [S, 2, B * T / S]
    both = tf.reshape(tf.transpose(both, [1, 0, 2]), [2, *labels.shape])
    return both[0], both[1]


@registered
class AlbertForPhonemes(AlbertNetwork):
    """ALBERT with two linear heads, for symbols and for words.

    Args:
      config: the architecture; `vocab_size` is the number of symbols.
      num_words: the number of words, C.
    """

    def __init__(
        self,
        config: AlbertConfig,
        num_words: int,
        dtype=None,
        name="phonemes",
        **kwargs,
    ):
        super().__init__(config, dtype=dtype, name=name, **kwargs)
        self.num_words = num_words
        self.build()

    def build(self):
        c = self.config
        self.albert = self.sublayer(AlbertModel, "albert")
        self.symbols = self.logits("symbols", c.hidden_size, c.vocab_size)
        self.words = self.logits("words", c.hidden_size, self.num_words)

    @property
    def output_bias(self) -> keras.Variable:
        """The bias [V] of the symbols' logits."""
        return self.symbols.bias

    def get_config(self) -> dict:
        return super().get_config() | {"num_words": self.num_words}

    def compute(self, input_ids, input_mask, segment_ids, **kwargs):
        """Return the outputs of `AlbertModel`, and `symbol_logits` [B, T, V].

        `word_scores` computes the outputs of the word head.
        """
        outputs = self.albert(input_ids, input_mask, segment_ids, **kwargs)
        states = outputs["sequence_output"]
        return outputs | {"symbol_logits": self.symbols(states)}

    def word_scores(self, states: tf.Tensor, labels: tf.Tensor):
        """Return the word head's losses and hits, float32 [B, T].

        Args:
          states: `sequence_output` [B, T, H].
          labels: int32 [B, T].
        """
        positions = labels.shape.num_elements()
        return sliced_scores(
            tf.cast(states, tf.float32),
            labels,
            tf.convert_to_tensor(self.words.kernel),
            tf.convert_to_tensor(self.words.bias),
            count_slices(positions, self.num_words),
        )
