"""ALBERT's pretraining objective: masked words and sentence order."""

import dataclasses

import tensorflow as tf

from albert_tf.model import ops
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.ops import cross_entropy, hits
from albert_tf.training.evaluator import Batch


def pair_weights(batch: Batch) -> tf.Tensor:
    """Return example weights [B]; 0 for examples with a single segment."""
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
        # Workers cannot gather bfloat16 tensors.
        "states": tf.cast(outputs["sequence_output"], tf.float32),  # [B, P, H]
        "ids": tf.gather(batch["input_ids"], positions, batch_dims=1),
        "weights": batch["masked_lm_weights"],
    }


@dataclasses.dataclass(frozen=True)
class PretrainingObjective:
    """MLM loss plus SOP loss, 1:1 as in the paper, with both accuracies.

    Examples with one segment have no order and count only for MLM.

    Attributes:
      layers: number of layers to run; None for all.
    """

    layers: int | None = None

    terms = ("mlm", "sop")
    metrics = ("mlm_accuracy", "sop_accuracy")

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return the numbers of predictions and pairs."""
        return {
            "mlm": tf.reduce_sum(batch["masked_lm_weights"]),
            "sop": tf.reduce_sum(pair_weights(batch)),
        }

    def losses(self, model: AlbertForPretraining, batch: Batch, seed):
        """Return the sums of both losses, and both accuracies."""
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
        # The logits over V pieces are the largest tensor in a small model.
        compiled = model.albert.encoder.xla.pieces
        loss_of = ops.fused_cross_entropy if compiled else cross_entropy
        sums, metrics = {}, {}
        for term, (logits, labels, weights) in parts.items():
            right = hits(logits, labels)
            sums[term] = tf.reduce_sum(loss_of(logits, labels) * weights)
            metrics[f"{term}_accuracy"] = (
                tf.reduce_sum(right * weights),
                tf.reduce_sum(weights),
            )
        return sums, metrics
