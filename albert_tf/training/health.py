"""What the numbers of a pretraining run say about its health, in words.

Everything here reads rows of the history and costs a step nothing.
"""

import dataclasses

import numpy as np

# A warning wants this many steps after the warm-up, and this many examples,
# so that chance moves an accuracy by less than a percent.
ENOUGH_STEPS = 1000
ENOUGH_EXAMPLES = 10_000

# Bounds of what is called healthy.
CHANCE_MARGIN = 0.02
TOO_GOOD = 0.995
FLAT_FALL = 0.01  # of the loss, between two halves
FREQUENCIES_ONLY = 0.15  # accuracy that word frequencies alone nearly give
DIVERGED_RISE = 0.5  # nats above the best
MASK_RATES = (0.10, 0.25)

# Steps after the warm-up at which it is asked whether a model has collapsed,
# and texts that it is asked of.
SETTLED_STEPS = 100
SPREAD_TEXTS = 32
# A `masked_spread` below this is a collapse. On the demo's records it was at
# most 8.2e-5 in collapsed runs after the warm-up, and at least 0.26 on the
# plateau of healthy ones; docs/experiments.md has the runs.
COLLAPSED_SPREAD = 1e-3


def mean(rows: list[dict], name: str) -> float:
    """Return the mean of a metric, each row weighted by its steps."""
    steps = sum(row["steps"] for row in rows)
    return sum(row[name] * row["steps"] for row in rows) / steps


def windows(rows: list[dict], number: int) -> list[list[dict]]:
    """Cut rows into windows of about equally many steps."""
    total = sum(row["steps"] for row in rows)
    cuts: list[list[dict]] = [[] for _ in range(number)]
    done = 0
    for row in rows:
        cuts[done * number // total].append(row)
        done += row["steps"]
    return [cut for cut in cuts if cut]


def masked_spread(
    states: np.ndarray, ids: np.ndarray, weights: np.ndarray
) -> float | None:
    """Return how far the states of one text's masked words differ.

    The variance within a text, as a share of the mean square: 0 where a model
    has one answer for every gap. Loss and accuracy do not tell a collapsed
    model from the plateau, on which a healthy one answers nearly one thing
    too; nor do other states: a collapsed model may still tell words that it
    sees, or one text from another.

    Args:
      states: [B, P, H] of the predicted words, without dropout.
      ids: [B, P] what stands in their place; only those count that stand as
        [MASK], the commonest.
      weights: [B, P] 0 at padding.

    Returns:
      The share; None if no text has two such words.
    """
    real = weights > 0
    masks = real & (ids == np.bincount(ids[real]).argmax())
    texts = [
        x[mask].astype(float) for x, mask in zip(states, masks, strict=True)
    ]
    texts = [x for x in texts if len(x) > 1]
    if not texts:
        return None
    within = sum(np.var(x, axis=0).sum() * len(x) for x in texts)
    free = sum(len(x) - 1 for x in texts)
    square = np.mean(np.sum(np.concatenate(texts) ** 2, axis=1))
    return float(within / free / square)


def collapse_notes(rows: list[dict]) -> dict[str, str]:
    """Judge the last `masked_spread` of rows."""
    spreads = [row["masked_spread"] for row in rows if "masked_spread" in row]
    if not spreads or spreads[-1] >= COLLAPSED_SPREAD:
        return {}
    return {
        "collapsed": "The model has collapsed to one answer: the states of a "
        f"text's masked words differ by {spreads[-1]:.0e} of their square. "
        "Begin again with a lower `learning_rate`, with `bias_correction`, a "
        "longer warm-up (`num_warmup_steps`) or a smaller `beta_2`, as 0.98"
    }


def sentence_order_notes(recent: list[dict]) -> dict[str, str]:
    """Judge the sentence-order accuracy of recent training rows."""
    accuracy = mean(recent, "sop_accuracy")
    if abs(accuracy - 0.5) < CHANCE_MARGIN:
        return {
            "sop_chance": f"SOP accuracy is stuck at chance ({accuracy:.3f}). "
            "Small models and batches need longer; otherwise check that the "
            "text has one sentence per line and documents apart, and try a "
            "lower learning rate"
        }
    if accuracy > TOO_GOOD:
        return {
            "sop_solved": f"SOP accuracy is {accuracy:.4f}, too good for real "
            "text: something in the records gives the order away, or they are "
            "memorised. Compare it with the held-out accuracy"
        }
    return {}


def loss_notes(settled: list[dict]) -> dict[str, str]:
    """Judge the course of the losses since the warm-up."""
    notes = {}
    halves = windows(settled, 2)
    if len(halves) == 2:
        first, second = (mean(half, "mlm_loss") for half in halves)
        learns = mean(halves[1], "mlm_accuracy") > FREQUENCIES_ONLY
        if first - second < FLAT_FALL * first and not learns:
            notes["flat_loss"] = (
                f"MLM loss is flat ({first:.3f}, then {second:.3f}): the "
                "model has learnt word frequencies and no more. Lower or "
                "raise the learning rate, or lengthen the warm-up"
            )
    losses = [mean(window, "loss") for window in windows(settled, 10)]
    if losses[-1] > min(losses) + DIVERGED_RISE:
        notes["diverged"] = (
            f"The loss rises: {losses[-1]:.3f} after {min(losses):.3f}. Go "
            "back to an earlier checkpoint with a lower learning rate"
        )
    return notes


def mask_notes(masked_share: float | None) -> dict[str, str]:
    """Judge the share of the tokens that is predicted."""
    low, high = MASK_RATES
    if masked_share is None or low <= masked_share <= high:
        return {}
    return {
        "mask_rate": f"{masked_share:.1%} of the tokens are predicted; the "
        "paper's 15 % needs max_predictions_per_seq of 0.15 times the length"
    }


@dataclasses.dataclass(frozen=True)
class Monitor:
    """What a pretraining run measures beyond its losses.

    Args:
      tokens: length of an example.
      flops: of one example's forward and backward pass.
      batch: examples per step.
      num_warmup_steps: the step before which no warning looks.
      peak_flops: per second, of all devices together; None if unknown.
      masked_share: share of the records' tokens that is predicted, if known.
    """

    tokens: int
    flops: float
    batch: int
    num_warmup_steps: int = 0
    peak_flops: float | None = None
    masked_share: float | None = None

    def scalars(self, examples_per_second: float) -> dict[str, float]:
        """Return the speed in tokens, and as a share of the devices' peak."""
        values = {"tokens_per_second": examples_per_second * self.tokens}
        if self.peak_flops:
            flops = examples_per_second * self.flops
            values["model_flops_utilization"] = flops / self.peak_flops
        return values

    def notes(self, rows: list[dict]) -> dict[str, str]:
        """Return {kind: warning} for the history's rows so far."""
        notes = mask_notes(self.masked_share) | collapse_notes(rows)
        settled = [
            row
            for row in rows
            if "steps" in row  # of training
            and row["step"] - row["steps"] >= self.num_warmup_steps
        ]
        enough = max(ENOUGH_STEPS, ENOUGH_EXAMPLES // self.batch)
        if sum(row["steps"] for row in settled) < enough:
            return notes
        recent = windows(settled, 4)[-1]
        return notes | sentence_order_notes(recent) | loss_notes(settled)
