"""ALBERT's pretraining objective: masked words and sentence order."""

import dataclasses

import tensorflow as tf

from albert_tf.model import ops
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.training.evaluator import Batch


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return float32 losses [...] from logits [..., C] and int labels [...]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=tf.cast(logits, tf.float32)
    )


def soft_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, temperature: float
) -> tf.Tensor:
    """Return float32 losses [...] from logits and a teacher's logits [..., C].

    Both are divided by the temperature, and the loss is multiplied by its
    square, which preserves the size of gradients (Hinton et al., 2015, section
    2, https://arxiv.org/abs/1503.02531).
    """
    loss = tf.nn.softmax_cross_entropy_with_logits(
        labels=tf.nn.softmax(tf.cast(targets, tf.float32) / temperature),
        logits=tf.cast(logits, tf.float32) / temperature,
    )
    return loss * temperature**2


def hits(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return float32 [...], 1 where no logit is larger than the label's.

    Args:
      logits: [..., C].
      labels: [...], from 0 to C - 1.
    """
    right = tf.gather(logits, labels, batch_dims=len(labels.shape))
    return tf.cast(right >= tf.reduce_max(logits, axis=-1), tf.float32)


def weighted_mean(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return weighted means over the last axis, 0 if all weights are 0."""
    total = tf.reduce_sum(values * weights, axis=-1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=-1))


def pair_weights(batch: Batch) -> tf.Tensor:
    """Return example weights [B], 0 for examples with only one segment."""
    paired = tf.reduce_max(batch["segment_ids"], axis=1) > 0
    return batch["example_weights"] * tf.cast(paired, tf.float32)


def masked_states(
    model: AlbertForPretraining, batch: Batch
) -> dict[str, tf.Tensor]:
    """Return the arguments of `health.masked_spread`."""
    keys = "input_ids", "input_mask", "segment_ids"
    positions = batch["masked_lm_positions"]
    outputs = model.albert(*(batch[k] for k in keys), places=positions)
    return {
        # Workers cannot gather bfloat16.
        "states": tf.cast(outputs["sequence_output"], tf.float32),  # [B, P, H]
        "ids": tf.gather(batch["input_ids"], positions, batch_dims=1),
        "weights": batch["masked_lm_weights"],
    }


@dataclasses.dataclass(frozen=True)
class PretrainingObjective:
    """MLM loss plus SOP loss, 1:1 as in the paper, with both accuracies.

    Examples with one segment have no order, and count for MLM only.

    Attributes:
      layers: number of layers to run; None for all.
    """

    layers: int | None = None

    terms = ("mlm", "sop")
    metrics = ("mlm_accuracy", "sop_accuracy")

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return the numbers of predictions and of pairs."""
        return {
            "mlm": tf.reduce_sum(batch["masked_lm_weights"]),
            "sop": tf.reduce_sum(pair_weights(batch)),
        }

    def losses(self, model: AlbertForPretraining, batch: Batch, seed):
        """Return both loss sums and both accuracies."""
        outputs = model(
            batch["input_ids"],
            batch["input_mask"],
            batch["segment_ids"],
            batch["masked_lm_positions"],
            seed=seed,
            layers=self.layers,
        )
        parts = {
            "mlm": (
                outputs["mlm_logits"],  # [B, P, V]
                batch["masked_lm_ids"],
                batch["masked_lm_weights"],
            ),
            "sop": (
                outputs["sop_logits"],  # [B, 2]
                batch["sentence_order_labels"],
                pair_weights(batch),
            ),
        }
        # The logits over V words are a small model's largest tensor.
        compiled = model.albert.encoder.xla.pieces
        loss_of = ops.cross_entropy if compiled else cross_entropy
        sums, metrics = {}, {}
        for term, (logits, labels, weights) in parts.items():
            right = hits(logits, labels)
            sums[term] = tf.reduce_sum(loss_of(logits, labels) * weights)
            metrics[f"{term}_accuracy"] = (
                tf.reduce_sum(right * weights),
                tf.reduce_sum(weights),
            )
        return sums, metrics
