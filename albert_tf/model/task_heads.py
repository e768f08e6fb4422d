"""The layers that fine-tuning adds to the encoder.

Shapes: B batch; C classes, outputs, choices or texts per example; T tokens; H
hidden width; K starts in the beam; M ends per start.
"""

from collections.abc import Callable
from typing import ClassVar

import tensorflow as tf

from albert_tf.base.settings import as_type, plain
from albert_tf.model.albert import AlbertModel
from albert_tf.model.config import AlbertConfig
from albert_tf.model.layers import AlbertNetwork, registered
from albert_tf.model.ops import dropout, fold_in
from albert_tf.text.packing import INPUTS

IMPOSSIBLE = -1e30  # log probability of a position that cannot be an answer


class AlbertWithHead(AlbertNetwork):
    """The base class of models with a task head and dropout before the head.

    Attributes:
      reads_pooled: whether the head reads only the pooled output.

    Args:
      config: the architecture.
      classifier_dropout: dropout rate of the head's input, 0.1 as in the
        release.
      albert: an encoder to share with other heads; None creates a new encoder.
      **kwargs: `dtype` (see `AlbertModel`) and `name`.
    """

    reads_pooled: ClassVar[bool] = False

    def __init__(
        self,
        config: AlbertConfig,
        classifier_dropout: float = 0.1,
        albert: AlbertModel | None = None,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.classifier_dropout = plain(classifier_dropout)
        self.albert = albert
        self.build()

    def get_config(self):
        return super().get_config() | {
            "classifier_dropout": self.classifier_dropout
        }

    def build(self):
        if self.albert is None:
            self.albert = AlbertModel(self.config, dtype=self.dtype_policy)
            self.albert.build()
        self.build_head()

    def build_head(self):
        """Create the layers of the head."""
        raise NotImplementedError

    def compute(self, input_ids, input_mask, segment_ids, seed=None, **further):
        """Encode a batch with `AlbertModel`; return the outputs of `head`."""
        inputs = input_ids, input_mask, segment_ids
        # The pooled output needs only [CLS] from the last block.
        positions = input_ids[:, :0] if self.reads_pooled else None
        encoded = self.albert(*inputs, seed=seed, positions=positions)
        inputs = dict(zip(INPUTS, inputs, strict=True))
        return self.head(encoded, inputs, seed, **further)

    def head(self, encoded, inputs, seed=None):
        """Return the head's outputs.

        Args:
          encoded: the encoder's outputs.
          inputs: {name: int32 [B, T]}, the encoder's inputs.
          seed: the dropout seed, or None for inference.
        """
        raise NotImplementedError

    def drop(self, x, seed):
        """Apply dropout to the head's input during training."""
        return dropout(x, self.classifier_dropout, fold_in(seed, 2))


class AlbertWithOutputs(AlbertWithHead):
    """The base class of heads that consist of one dense layer.

    Args:
      config: the architecture.
      outputs: C, the number of classes or, for regression, of predicted values.
      **kwargs: see `AlbertWithHead`.
    """

    def __init__(self, config: AlbertConfig, outputs: int, **kwargs):
        self.outputs = as_type("outputs", outputs, int)
        super().__init__(config, **kwargs)

    def get_config(self):
        return super().get_config() | {"outputs": self.outputs}

    def build_head(self):
        self.classifier = self.logits(
            "classifier", self.config.hidden_size, self.outputs
        )


@registered
class AlbertClassifier(AlbertWithOutputs):
    """ALBERT with a dense layer on the pooled output."""

    reads_pooled = True

    def head(self, encoded, inputs, seed=None):
        """Return float32 logits [B, C]."""
        pooled = self.drop(encoded["pooled_output"], seed)  # [B, H]
        return self.classifier(pooled)


def by_row(compute: Callable, *inputs: tf.Tensor, seed) -> tf.Tensor:
    """Apply a function of rows [N, T] to inputs [..., T].

    N is the product of the leading axes of the inputs, which replace the axis N
    in the output.
    """
    shape = tf.shape(inputs[0])
    rows = [tf.reshape(x, [-1, shape[-1]]) for x in inputs]  # [N, T]
    outputs = compute(*rows, seed=seed)
    axes = tf.concat([shape[:-1], outputs.shape[1:]], axis=0)
    return tf.reshape(outputs, axes)


@registered
class AlbertChooser(AlbertClassifier):
    """An ALBERT model that scores each of several choices independently."""

    id_shapes: ClassVar = {3: "[B, C, T]"}

    def __init__(self, config: AlbertConfig, outputs: int = 1, **kwargs):
        super().__init__(config, outputs, **kwargs)

    def head(self, encoded, inputs, seed=None):
        """Return the float32 logit [B * C] of each row."""
        return tf.reshape(super().head(encoded, inputs, seed), [-1])

    def compute(self, input_ids, input_mask, segment_ids, seed=None):
        """Return float32 logits [B, C] from inputs [B, C, T]."""
        inputs = input_ids, input_mask, segment_ids
        return by_row(super().compute, *inputs, seed=seed)


@registered
class AlbertTokenClassifier(AlbertWithOutputs):
    """ALBERT with a dense layer on every token."""

    def head(self, encoded, inputs, seed=None):
        """Return float32 logits [B, T, C]."""
        tokens = self.drop(encoded["sequence_output"], seed)  # [B, T, H]
        return self.classifier(tokens)


@registered
class AlbertForSpans(AlbertWithHead):
    """ALBERT with two logits per token, for the start and end of an answer."""

    def build_head(self):
        self.classifier = self.logits("classifier", self.config.hidden_size, 2)

    def head(self, encoded, inputs, seed=None):
        """Return `start_logits` and `end_logits`, float32 [B, T].

        Unlike the released head, this head excludes padding, so the loss does
        not depend on the amount of padding in a batch.
        """
        sequence = self.drop(encoded["sequence_output"], seed)  # [B, T, H]
        logits = self.classifier(sequence)  # [B, T, 2]
        padding = tf.cast(1 - inputs["input_mask"], tf.float32)
        start, end = tf.unstack(
            logits + IMPOSSIBLE * padding[..., None], axis=-1
        )
        return {"start_logits": start, "end_logits": end}


def answer_mask(input_mask: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
    """Return float32 [B, T]: 1 at tokens where an answer can begin or end.

    These tokens are the context and [CLS]; [CLS] means that there is no answer.
    Source: `p_mask` of the released `squad_utils.py`.
    """
    later = tf.pad(input_mask[:, 1:], [[0, 0], [0, 1]])
    context = tf.cast(segment_ids * later, tf.float32)  # without the last [SEP]
    return tf.concat([tf.ones_like(context[:, :1]), context[:, 1:]], axis=1)


@registered
class AlbertForBeamSpans(AlbertWithHead):
    """ALBERT with the released SQuAD 2.0 head.

    The head predicts the end from the start. It predicts answerability from
    [CLS] and the mean of all tokens, weighted by their start probabilities.

    Source: `create_v2_model` of the released `squad_utils.py`, from XLNet.

    Args:
      config: the architecture.
      start_n_top: the number of starts, K.
      end_n_top: the number of ends for each start, M.
      **kwargs: see `AlbertWithHead`; dropout applies only to answerability.
    """

    further_inputs = ("labels",)

    def __init__(
        self, config: AlbertConfig, start_n_top: int, end_n_top: int, **kwargs
    ):
        self.start_n_top = as_type("start_n_top", start_n_top, int)
        self.end_n_top = as_type("end_n_top", end_n_top, int)
        super().__init__(config, **kwargs)

    def get_config(self):
        sizes = {"start_n_top": self.start_n_top, "end_n_top": self.end_n_top}
        return super().get_config() | sizes

    def build_head(self):
        width = self.config.hidden_size
        self.start = self.logits("start", width, 1)
        self.end_transform = self.dense("end_transform", 2 * width, width)
        self.end_norm = self.norm(width)
        self.end = self.logits("end", width, 1)
        self.answer_transform = self.dense(
            "answer_transform", 2 * width, width, activation="tanh"
        )
        self.answer = self.logits("answer", width, 1, use_bias=False)

    def log_probabilities(self, logits, mask):
        """Convert float32 logits [..., T] to log probabilities.

        Positions at which `mask` is 0 have a probability of 0.
        """
        return tf.nn.log_softmax(logits * mask + IMPOSSIBLE * (1.0 - mask))

    def end_logits(self, sequence, starts):
        """Return the logits [B, K, T] of ends, given starts [B, K, H].

        The transform of [token; start] is the sum of the transforms of both
        halves, so the tokens' half is computed once, not K times.
        """
        width = self.config.hidden_size
        kernel = self.end_transform.float_kernel()  # [2H, H]
        kernel = tf.cast(kernel, sequence.dtype)
        bias = tf.cast(self.end_transform.bias, sequence.dtype)
        tokens = tf.einsum("bth,hw->btw", sequence, kernel[:width])
        half = tf.einsum("bkh,hw->bkw", starts, kernel[width:])
        x = tf.tanh(tokens[:, None] + half[:, :, None] + bias)  # [B, K, T, H]
        # Keras 3.12 would multiply tensors with four axes, the second of size
        # 1. In this case, TensorFlow's oneDNN code writes out of bounds.
        logits = self.end(tf.reshape(self.end_norm(x), [-1, width]))
        return tf.reshape(logits, tf.shape(x)[:3])

    def head(self, encoded, inputs, seed=None, labels=None):
        """Return the outputs for inference and, with labels, for the loss.

        Args:
          encoded: the encoder's outputs.
          inputs: the encoder's inputs; `segment_ids` are 1 in the context.
          seed: the dropout seed, or None for inference; with a seed, `*_top_*`
            outputs are omitted.
          labels: int32 [B, 2], the start and end, or None.

        Returns:
          `answer_logits` [B], which are higher if there is no answer. Without a
          seed: `start_top_log_probs` and `start_top_index` [B, K], and
          `end_top_log_probs` and `end_top_index` [B, K, M]. With labels:
          `start_log_probs` [B, T], and `end_log_probs` [B, T] for the labeled
          start.
        """
        sequence = encoded["sequence_output"]  # [B, T, H]
        mask = answer_mask(inputs["input_mask"], inputs["segment_ids"])
        start = self.log_probabilities(self.start(sequence)[..., 0], mask)
        outputs = {"answer_logits": self.no_answer(sequence, start, seed)}
        if labels is not None:
            outputs["start_log_probs"] = start
            ends = self.ends(sequence, labels[:, :1], mask)  # [B, 1, T]
            outputs["end_log_probs"] = ends[:, 0]
        return outputs | (
            {} if seed is not None else self.beam(sequence, start, mask)
        )

    def ends(self, sequence, starts, mask):
        """Return log probabilities [B, K, T] of ends for starts [B, K]."""
        start_states = tf.gather(sequence, starts, batch_dims=1)  # [B, K, H]
        return self.log_probabilities(
            self.end_logits(sequence, start_states), mask[:, None]
        )

    def beam(self, sequence, start, mask):
        """Return the likeliest starts, and the likeliest ends of each start."""
        number = tf.minimum(self.start_n_top, tf.shape(start)[1])
        starts, start_index = tf.math.top_k(start, number)  # [B, K]
        ends = self.ends(sequence, start_index, mask)  # [B, K, T]
        number = tf.minimum(self.end_n_top, tf.shape(start)[1])
        ends, end_index = tf.math.top_k(ends, number)  # [B, K, M]
        return {
            "start_top_log_probs": starts,
            "start_top_index": start_index,
            "end_top_log_probs": ends,
            "end_top_index": end_index,
        }

    def no_answer(self, sequence, start, seed):
        """Return float32 logits [B] for "no answer"."""
        weights = tf.cast(tf.exp(start), sequence.dtype)
        mean = tf.einsum("bth,bt->bh", sequence, weights)
        x = tf.concat([mean, sequence[:, 0]], axis=-1)  # [B, 2H]
        x = self.drop(self.answer_transform(x), seed)
        return self.answer(x)[:, 0]


def token_mean(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return the mean [B, H] of vectors [B, T, H], excluding padding.

    The mean of a row that contains only padding is 0.
    """
    weights = tf.cast(mask, x.dtype)[..., None]
    number = tf.maximum(tf.reduce_sum(weights, 1), 1)
    return tf.reduce_sum(x * weights, 1) / number


def token_max(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return the maximum [B, H] of vectors [B, T, H], excluding padding.

    The maximum of a row that contains only padding is 0.
    """
    is_token = mask[..., None] > 0  # [B, T, 1]
    largest = tf.reduce_max(tf.where(is_token, x, x.dtype.min), 1)
    return tf.where(tf.reduce_any(is_token, 1), largest, 0)


POOLINGS = {
    "mean": token_mean,
    "cls": lambda x, mask: x[:, 0],
    "max": token_max,
}


def pooled(
    x: tf.Tensor, mask: tf.Tensor, pooling: str = "mean", unit: bool = True
) -> tf.Tensor:
    """Pool token vectors into one vector per text, float32 [B, H].

    Args:
      x: token vectors [B, T, H].
      mask: [B, T], 1 at tokens.
      pooling: a key of `POOLINGS`.
      unit: whether to scale vectors to unit length, which makes dot products
        cosine similarities.
    """
    vector = POOLINGS[pooling](tf.cast(x, tf.float32), mask)
    return tf.math.l2_normalize(vector, -1) if unit else vector


def two_crops(
    inputs: dict[str, tf.Tensor], rate: float, seed: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Return inputs [B, 2, T] with two random spans of each text.

    The two spans form a positive pair, which needs no label, as in
    https://arxiv.org/abs/2112.09118. At a rate of 0, both spans are the whole
    text and differ only in dropout, as in https://arxiv.org/abs/2104.08821.

    Args:
      inputs: model inputs [B, T], with texts in segment 0 only.
      rate: the share of a text's tokens that each span omits.
      seed: the random seed, int32 [2].
    """
    ids, mask = inputs["input_ids"], inputs["input_mask"]
    shape = tf.shape(ids)
    length = tf.reduce_sum(mask, axis=1)[:, None, None] - 2  # [CLS], [SEP]
    omitted = tf.cast(rate * tf.cast(length, tf.float32), tf.int32)
    share = tf.random.stateless_uniform(
        [shape[0], 2, 1], fold_in(seed, 3), alg="philox"
    )
    start = tf.cast(share * tf.cast(omitted + 1, tf.float32), tf.int32)
    position, size = tf.range(shape[1]), length - omitted  # [T], [B, 1, 1]
    source = tf.where(position <= size, position + start, length + 1)
    source = tf.where(position == 0, 0, source)  # [B, 2, T]
    is_token = tf.broadcast_to(position < size + 2, tf.shape(source))
    cropped = tf.gather(ids, source, batch_dims=1)
    mask = tf.cast(is_token, tf.int32)
    return dict(zip(INPUTS, (cropped, mask, tf.zeros_like(mask)), strict=True))


@registered
class AlbertEmbedder(AlbertWithHead):
    """An ALBERT model that returns pooled vectors, without additional weights.

    Args:
      config: the architecture.
      pooling: a key of `POOLINGS`.
      unit_length: whether vectors have unit length.
      **kwargs: see `AlbertWithHead`.
    """

    id_shapes: ClassVar = {2: "[B, T]", 3: "[B, C, T]"}

    def __init__(
        self,
        config: AlbertConfig,
        pooling: str = "mean",
        unit_length: bool = True,
        **kwargs,
    ):
        self.pooling, self.unit_length = pooling, unit_length
        super().__init__(config, **kwargs)

    def get_config(self):
        settings = {"pooling": self.pooling, "unit_length": self.unit_length}
        return super().get_config() | settings

    def build_head(self):
        """Create no layers."""

    def head(self, encoded, inputs, seed=None):
        """Return the float32 vectors [B, H] of the rows."""
        tokens, mask = encoded["sequence_output"], inputs["input_mask"]
        return pooled(tokens, mask, self.pooling, self.unit_length)

    def compute(self, input_ids, input_mask, segment_ids, seed=None):
        """Return float32 vectors [B, H], or [B, C, H] from [B, C, T]."""
        inputs = input_ids, input_mask, segment_ids
        return by_row(super().compute, *inputs, seed=seed)


# The model class for each `Task.head_kind`.
MODELS: dict[str, type[AlbertWithHead]] = {
    "classification": AlbertClassifier,
    "multilabel": AlbertClassifier,
    "regression": AlbertClassifier,
    "multiple_choice": AlbertChooser,
    "token_classification": AlbertTokenClassifier,
    "question_answering": AlbertForSpans,
    "beam": AlbertForBeamSpans,
    "embedding": AlbertEmbedder,
}
