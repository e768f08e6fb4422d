"""Objectives: the losses that training minimizes, with metrics to report.

This module contains the objectives of pretraining; the objectives of tasks are
in `tasks/losses.py`.

Shapes: B batch, T tokens, P predictions, H hidden width, V vocabulary.
"""

import dataclasses
from typing import Protocol

import tensorflow as tf

from albert_tf.model import ops
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.ops import cross_entropy, hits
from albert_tf.model.phonemes import AlbertForPhonemes
from albert_tf.text.packing import INPUTS
from albert_tf.training.health import Monitor, PhonemeMonitor

Batch = dict[str, tf.Tensor]


class Objective(Protocol):
    """The loss that training minimizes, and the metrics to report.

    Attributes:
      terms: names of the loss terms, which are summed.
      metrics: names of additional means to report.
    """

    terms: tuple[str, ...]
    metrics: tuple[str, ...]

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return each term's float32 weight, computed only from the batch."""

    def losses(self, model, batch: Batch, seed) -> tuple[dict, dict]:
        """Return ({term: weighted sum of losses}, {metric: (sum, weight)}).

        Dropout is off if `seed` is None.
        """


def report_of(
    objective: Objective, batch: Batch, sums: dict, metrics: dict
) -> tf.Tensor:
    """Return the sums and weights of all terms and metrics, float32 [2, names].

    `sums` and `metrics` are the results of `Objective.losses` for the batch.
    """
    weights = objective.weights(batch)
    pairs = [(sums[term], weights[term]) for term in objective.terms]
    pairs += [metrics[name] for name in objective.metrics]
    return tf.stack([[s for s, _ in pairs], [w for _, w in pairs]])


def pair_weights(batch: Batch) -> tf.Tensor:
    """Return the weights [B] of examples in the loss on sentence order.

    The weight of an example with a single segment is 0. Other examples keep
    their weights.
    """
    paired = tf.reduce_max(batch["segment_ids"], axis=1) > 0
    return batch["example_weights"] * tf.cast(paired, tf.float32)


@dataclasses.dataclass(frozen=True)
class PretrainingObjective:
    """The sum of the MLM and SOP losses, as in the paper, and both accuracies.

    Examples with a single segment have no sentence order, so they contribute
    only to the MLM loss.

    Attributes:
      layers: number of layers to run; None for all.
    """

    layers: int | None = None

    terms = ("mlm", "sop")
    metrics = ("mlm_accuracy", "sop_accuracy")
    monitor = Monitor

    def masked_states(
        self, model: AlbertForPretraining, batch: Batch
    ) -> dict[str, tf.Tensor]:
        """Return the arguments of `health.masked_spread`."""
        inputs = (batch[name] for name in INPUTS)
        positions = batch["masked_lm_positions"]
        outputs = model.albert(*inputs, positions=positions, layers=self.layers)
        states = outputs["sequence_output"]  # [B, P, H]
        return {
            # Workers cannot gather bfloat16 tensors.
            "states": tf.cast(states, tf.float32),
            "ids": tf.gather(batch["input_ids"], positions, batch_dims=1),
            "weights": batch["masked_lm_weights"],
        }

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return {term: weight}, the counts of predictions and pairs."""
        return {
            "mlm": tf.reduce_sum(batch["masked_lm_weights"]),
            "sop": tf.reduce_sum(pair_weights(batch)),
        }

    def losses(self, model: AlbertForPretraining, batch: Batch, seed):
        """Return the sums of losses, and both accuracies; see `Objective`."""
        outputs = model(
            *(batch[name] for name in INPUTS),
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
        # The logits over V pieces are the largest tensor of a small model, so
        # their loss is fused if XLA compiles parts of the step.
        compiled = model.albert.encoder.xla.pieces
        loss_of = ops.fused_cross_entropy if compiled else cross_entropy
        sums, metrics = {}, {}
        for term, (logits, labels, weights) in parts.items():
            correct = hits(logits, labels)
            sums[term] = tf.reduce_sum(loss_of(logits, labels) * weights)
            metrics[f"{term}_accuracy"] = (
                tf.reduce_sum(correct * weights),
                tf.reduce_sum(weights),
            )
        return sums, metrics


@dataclasses.dataclass(frozen=True)
class PhonemeObjective:
    """The sum of the symbol loss and the word loss, as in PL-BERT.

    The model predicts symbols in masked words, and words at every position.

    Attributes:
      mask_id: id of the mask symbol.
      layers: number of layers to run; None for all.
    """

    mask_id: int
    layers: int | None = None

    terms = ("symbols", "words")
    metrics = (
        *("symbol_accuracy", "masked_symbol_accuracy", "word_accuracy"),
        "trained_share",
    )
    monitor = PhonemeMonitor

    def masked_states(
        self, model: AlbertForPhonemes, batch: Batch
    ) -> dict[str, tf.Tensor]:
        """Return the arguments of `health.masked_spread`."""
        inputs = batch["input_ids"], batch["input_mask"]
        outputs = model.albert(*inputs, layers=self.layers)
        return {
            "states": tf.cast(outputs["sequence_output"], tf.float32),
            "ids": batch["input_ids"],
            "weights": batch["symbol_weights"],
        }

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return {term: weight}, the counts of trained symbols and tokens."""
        return {
            "symbols": tf.reduce_sum(batch["symbol_weights"]),
            "words": tf.reduce_sum(tf.cast(batch["input_mask"], tf.float32)),
        }

    def losses(self, model: AlbertForPhonemes, batch: Batch, seed):
        """Return the sums of the symbol and word losses, and the metrics.

        Only symbols that the mask replaces are treated as masked, because the
        model could copy unchanged symbols.
        """
        ids, labels = batch["input_ids"], batch["symbol_ids"]
        outputs = model(ids, batch["input_mask"], seed=seed, layers=self.layers)
        logits = outputs["symbol_logits"]  # [B, T, V]
        words = model.word_scores(outputs["sequence_output"], batch["word_ids"])
        trained = batch["symbol_weights"]
        real = tf.cast(batch["input_mask"], tf.float32)
        masked = trained * tf.cast(ids == self.mask_id, tf.float32)
        correct = hits(logits, labels)
        means = (
            (correct, real),
            (correct, masked),
            (words[1], real),
            (trained, real),
        )
        metrics = {
            name: (tf.reduce_sum(x * weights), tf.reduce_sum(weights))
            for name, (x, weights) in zip(self.metrics, means, strict=True)
        }
        return {
            "symbols": tf.reduce_sum(cross_entropy(logits, labels) * trained),
            "words": tf.reduce_sum(words[0] * real),
        }, metrics
