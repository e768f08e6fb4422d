"""Warnings about a pretraining run, derived from its metrics.

The warnings depend only on the history, so they do not slow down training
steps.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from albert_tf.base.errors import InputError, require

# The run ends after this many consecutive steps whose loss or gradient is not
# finite, even if the updates of such steps are skipped.
MAX_BAD_STEPS = 100
# Warnings about losses and accuracies require at least this many steps and this
# many examples after warm-up. Chance then changes an accuracy by less than one
# percentage point.
ENOUGH_STEPS = 1000
ENOUGH_EXAMPLES = 10_000

# Bounds of healthy values.
CHANCE_MARGIN = 0.02
TOO_GOOD = 0.995
FLAT_FALL = 0.01  # relative fall of the loss from the first half to the second
FREQUENCIES_ONLY = 0.15  # just above the accuracy of predicting by frequency
DIVERGED_RISE = 0.5  # nats above the lowest loss
MASK_RATES = (0.10, 0.25)

# Number of steps after warm-up before the first check for a collapse, and the
# number of texts to check.
SETTLED_STEPS = 100
SPREAD_TEXTS = 32
# A `masked_spread` below this value indicates a collapse. On the records of the
# demo, the spread was at most 8.2e-5 in collapsed runs after warm-up, and at
# least 0.26 on the plateau of healthy runs; docs/experiments.md describes these
# runs.
COLLAPSED_SPREAD = 1e-3


class FiniteSteps:
    """A check that losses and gradients are finite.

    Args:
      skips: whether updates that are not finite are skipped; if so, only
        `MAX_BAD_STEPS` such steps in a row are an error.
    """

    def __init__(self, skips: bool):
        self.skips = skips
        self.bad_steps = 0  # consecutive, up to the last step

    def check(self, steps: int, bad: int, where: str) -> dict[str, float]:
        """Raise an error if steps are not finite, except for skipped steps.

        The result is {"skipped_updates": `bad`} if `skips`, and otherwise {}.

        Args:
          steps: number of steps since the last check.
          bad: number of these steps that were not finite.
          where: a description of these steps.
        """
        self.bad_steps = self.bad_steps + bad if bad == steps else 0
        fails = bad > 0
        if self.skips:
            fails = self.bad_steps >= MAX_BAD_STEPS
            where = f"in all of the last {self.bad_steps} steps"
        require(
            not fails,
            f"The loss or its gradient is not finite {where}; lower "
            "`learning_rate` or raise `num_warmup_steps`",
        )
        return {"skipped_updates": float(bad)} if self.skips else {}


class NotFinite(InputError):
    """The error for outputs or losses that are not finite."""


def require_finite(*values: np.ndarray) -> None:
    """Raise `NotFinite` unless a model's outputs or losses are finite.

    Finite weights may be so large that outputs overflow. Without the error, the
    model would predict the first class, and a metric such as the accuracy would
    look valid.
    """
    if not all(np.isfinite(x).all() for x in values):
        raise NotFinite(
            "The outputs or losses of the model are not finite: its weights "
            "are too large or damaged. Use an earlier checkpoint, or train "
            "again with a lower `learning_rate`."
        )


def mean(rows: list[dict], name: str) -> float:
    """Return the mean of a metric, with each row weighted by its steps."""
    steps = sum(row["steps"] for row in rows)
    return sum(row[name] * row["steps"] for row in rows) / steps


def windows(rows: list[dict], number: int) -> list[list[dict]]:
    """Divide rows into at most `number` windows of about equal step counts."""
    total = sum(row["steps"] for row in rows)
    parts: list[list[dict]] = [[] for _ in range(number)]
    done = 0
    for row in rows:
        parts[done * number // total].append(row)
        done += row["steps"]
    return [part for part in parts if part]


def masked_spread(
    states: np.ndarray, ids: np.ndarray, weights: np.ndarray
) -> float | None:
    """Measure the spread of the states of masked words within texts.

    The result is the variance within texts, divided by the mean square. It is 0
    if a model makes the same prediction for every mask. On the initial plateau,
    a healthy model also makes nearly the same prediction for every mask. Loss
    and accuracy therefore do not distinguish it from a collapsed model. Neither
    do the states of other positions, because a collapsed model may still
    distinguish visible words, or one text from another.

    Args:
      states: [B, P, H], the states of the predicted words, without dropout.
      ids: [B, P], the input ids of the predicted words; only words with the
        most common id, which is [MASK], are used.
      weights: [B, P], 0 at padding.

    Returns:
      The spread, or None if no text has two masked words.
    """
    real = weights > 0
    if not real.any():
        return None
    masks = real & (ids == np.bincount(ids[real]).argmax())
    texts = [
        x[mask].astype(float) for x, mask in zip(states, masks, strict=True)
    ]
    texts = [x for x in texts if len(x) > 1]
    if not texts:
        return None
    within = sum(np.var(x, axis=0).sum() * len(x) for x in texts)
    degrees = sum(len(x) - 1 for x in texts)
    square = np.mean(np.sum(np.concatenate(texts) ** 2, axis=1))
    return float(within / degrees / square)


def collapse_notes(rows: list[dict]) -> dict[str, str]:
    """Return {kind: warning} if the model has collapsed, else {}.

    A model has collapsed if the last `masked_spread` in `rows` is very small.
    """
    spreads = [row["masked_spread"] for row in rows if "masked_spread" in row]
    if not spreads or spreads[-1] >= COLLAPSED_SPREAD:
        return {}
    return {
        "collapsed": "The model has collapsed to one prediction: within a "
        "text, the variance of the states of masked words is only "
        f"{spreads[-1]:.0e} of their mean square. Start again with a lower "
        "`learning_rate`, `bias_correction`, a longer warm-up "
        "(`num_warmup_steps`) or a smaller `beta_2`, such as 0.98"
    }


def sentence_order_notes(recent: list[dict]) -> dict[str, str]:
    """Return {kind: warning} if the recent SOP accuracy is unusual, else {}."""
    accuracy = mean(recent, "sop_accuracy")
    if abs(accuracy - 0.5) < CHANCE_MARGIN:
        return {
            "sop_chance": f"SOP accuracy is stuck at chance ({accuracy:.3f}). "
            "Small models and small batches need more steps. Otherwise, check "
            "that the text has one sentence per line and a blank line between "
            "documents, and try a lower learning rate"
        }
    if accuracy > TOO_GOOD:
        return {
            "sop_solved": f"SOP accuracy is {accuracy:.4f}, too high for real "
            "text: something in the records reveals the order, or the model "
            "has memorized the records. Check the held-out accuracy"
        }
    return {}


def loss_notes(
    settled: list[dict],
    what: str = "MLM",
    loss: str = "mlm_loss",
    accuracy: str = "mlm_accuracy",
    frequencies_only: float = FREQUENCIES_ONLY,
) -> dict[str, str]:
    """Return {kind: warning} for losses that are flat or rising since warm-up.

    Args:
      settled: the rows since warm-up.
      what: the name of the loss in the warning.
      loss, accuracy: the names of the columns in the rows.
      frequencies_only: an accuracy slightly above the accuracy of predicting by
        frequency alone.
    """
    notes = {}
    halves = windows(settled, 2)
    if len(halves) == 2:
        first, second = (mean(half, loss) for half in halves)
        learns = mean(halves[1], accuracy) > frequencies_only
        if first - second < FLAT_FALL * first and not learns:
            notes["flat_loss"] = (
                f"{what} loss is flat ({first:.3f}, then {second:.3f}): the "
                "model has learned only frequencies. Lower or raise the "
                "learning rate, or lengthen the warm-up"
            )
    losses = [mean(window, "loss") for window in windows(settled, 10)]
    if losses[-1] > min(losses) + DIVERGED_RISE:
        notes["diverged"] = (
            f"The loss is rising: {losses[-1]:.3f} after {min(losses):.3f}. Go "
            "back to an earlier checkpoint, and lower the learning rate"
        )
    return notes


def mask_notes(masked_share: float | None) -> dict[str, str]:
    """Return {kind: warning} if the share of predicted tokens is unusual.

    The result is {} if the share is usual or unknown.
    """
    low, high = MASK_RATES
    if masked_share is None or low <= masked_share <= high:
        return {}
    return {
        "mask_rate": f"{masked_share:.1%} of the tokens are predicted; for the "
        "paper's 15%, set max_predictions_per_seq to 0.15 times the length"
    }


@dataclasses.dataclass(frozen=True)
class Monitor:
    """Additional measurements of a pretraining run, and warnings about it.

    Args:
      tokens: length of an example.
      flops: FLOPs of one example's forward and backward passes.
      batch: number of examples per step.
      num_warmup_steps: number of initial steps that warnings about losses and
        accuracies ignore.
      peak_flops: peak FLOP/s of all devices together, or None if unknown.
      masked_share: share of the records' tokens that are predicted, if known.
      by_frequency: metrics of a model that predicts by frequency alone.
    """

    tokens: int
    flops: float
    batch: int
    num_warmup_steps: int = 0
    peak_flops: float | None = None
    masked_share: float | None = None
    by_frequency: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def scalars(self, examples_per_second: float) -> dict[str, float]:
        """Return the tokens per second and, if the peak is known, the MFU.

        Model FLOPs utilization (MFU) is model FLOP/s as a share of the peak.
        """
        values = {"tokens_per_second": examples_per_second * self.tokens}
        if self.peak_flops:
            flops = examples_per_second * self.flops
            values["model_flops_utilization"] = flops / self.peak_flops
        return values

    def notes(self, rows: list[dict]) -> dict[str, str]:
        """Return {kind: warning} for the rows of the history so far."""
        notes = mask_notes(self.masked_share) | collapse_notes(rows)
        settled = [
            row
            for row in rows
            if "steps" in row  # a training row
            and row["step"] - row["steps"] >= self.num_warmup_steps
        ]
        required_steps = max(ENOUGH_STEPS, ENOUGH_EXAMPLES // self.batch)
        if sum(row["steps"] for row in settled) < required_steps:
            return notes
        return notes | self.settled_notes(settled)

    def settled_notes(self, settled: list[dict]) -> dict[str, str]:
        """Return {kind: warning} for `settled`, the rows since warm-up."""
        recent = windows(settled, 4)[-1]
        return sentence_order_notes(recent) | loss_notes(settled)


def label_notes(rows: list[dict]) -> dict[str, str]:
    """Return {kind: warning} if a phoneme model has nothing to learn, else {}.

    There is nothing to learn if no symbol is predicted, or if the word accuracy
    is too high for real text.
    """
    rows = [row for row in rows if "steps" in row]
    notes, last = {}, rows[-1] if rows else {}
    if last and not last["trained_share"]:
        notes["nothing_trained"] = (
            "No symbol is predicted, because no word was masked. Make the "
            "records again with a larger masked_lm_prob"
        )
    if last and last["word_accuracy"] > TOO_GOOD:
        notes["labels_alike"] = (
            f"Word accuracy is {last['word_accuracy']:.4f}, too high for real "
            "text: all words have the same label, or the model has memorized "
            "the records"
        )
    return notes


class PhonemeMonitor(Monitor):
    """Measurements of a pretraining run on phonemes, and warnings about it."""

    def notes(self, rows: list[dict]) -> dict[str, str]:
        """Return {kind: warning} for the rows of the history so far."""
        return label_notes(rows) | super().notes(rows)

    def settled_notes(self, settled: list[dict]) -> dict[str, str]:
        """Return {kind: warning} for `settled`, the rows since warm-up."""
        accuracy = "masked_symbol_accuracy"
        threshold = self.by_frequency[accuracy] + CHANCE_MARGIN
        symbol_args = "Symbol", "symbols_loss", accuracy, threshold
        return loss_notes(settled, *symbol_args)
