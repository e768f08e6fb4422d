"""What was counted while records were made, and what it says.

Counts are whole numbers, so that those of shards add up exactly.
"""

from collections import Counter

import numpy as np

from albert_tf.masking import KEEP_SHARE, MASK_SHARE, Masked, MaskingConfig
from albert_tf.pretraining_data.instances import Instances

KINDS = ("mask", "same", "random")

# More one-segment chunks than this: the text is hardly one sentence per line.
MANY_ONE_SEGMENT = 0.3


def count_batch(instances: Instances, masked: Masked) -> Counter:
    """Count a batch of records."""
    predictions = masked.weights.sum(axis=1)
    counts = Counter(
        records=len(instances.lengths),
        slots=instances.input_ids.size,
        real_tokens=int(instances.lengths.sum()),
        swapped=int(instances.swapped.sum()),
        masked=int(predictions.sum()),
        due=int(masked.budget.sum()),
        budget_met=int(np.sum(predictions == masked.budget)),
    )
    for name, values in (("drawn", masked.drawn), ("used", masked.used)):
        for n, value in enumerate(values[1:].tolist(), 1):
            counts[f"ngrams_{name}_{n}"] = value
    for kind, value in zip(KINDS, masked.kinds.tolist(), strict=True):
        counts[f"tokens_{kind}"] = value
    return counts


def _shares(values: list[int]) -> list[float]:
    total = max(sum(values), 1)
    return [round(value / total, 5) for value in values]


def summarize(text: Counter, made: Counter, config: MaskingConfig) -> dict:
    """Return the statistics of `metadata.json`.

    Args:
      text: counted while reading the text.
      made: counted while making the training records.
      config: what was asked for.
    """
    ngrams = range(1, config.ngram + 1)
    chunks = max(made["records"] + made["dropped_chunks"], 1)
    real = max(made["real_tokens"], 1)
    return {
        "documents": text["documents"],
        "sentences": text["sentences"],
        "sentences_without_tokens": text["empty_sentences"],
        "bad_lines": text["bad_lines"],
        "tokens": text["tokens"],
        "unknown_share": round(
            text["unknown_tokens"] / max(text["tokens"], 1), 6
        ),
        "records": made["records"],
        "tokens_per_record": round(real / max(made["records"], 1), 2),
        "padding_share": round(1 - real / max(made["slots"], 1), 5),
        "truncated_tokens": made["truncated_tokens"],
        "swapped_share": round(made["swapped"] / max(made["records"], 1), 5),
        "one_segment_share": round(made["one_segment_chunks"] / chunks, 5),
        "dropped_chunks": made["dropped_chunks"],
        "masked_share_asked": config.masked_lm_prob,
        "masked_share": round(made["masked"] / real, 5),
        "budget_met_share": round(
            made["budget_met"] / max(made["records"], 1), 5
        ),
        "ngrams_asked": config.ngram_probabilities().round(5).tolist(),
        "ngrams_drawn": _shares([made[f"ngrams_drawn_{n}"] for n in ngrams]),
        "ngrams_used": _shares([made[f"ngrams_used_{n}"] for n in ngrams]),
        "mask_same_random_asked": [
            MASK_SHARE,
            KEEP_SHARE,
            round(1 - MASK_SHARE - KEEP_SHARE, 5),
        ],
        "mask_same_random": _shares([made[f"tokens_{k}"] for k in KINDS]),
    }


def warnings(
    statistics: dict, config: MaskingConfig, max_seq_length: int
) -> list[str]:
    """Return what a user should know, and what to change."""
    found = []
    slots = config.predictions(max_seq_length)
    full = max(1, round(max_seq_length * config.masked_lm_prob))
    if slots < full:
        found.append(
            f"--max_predictions_per_seq={slots} at length {max_seq_length} "
            f"predicts {slots / max_seq_length:.1%} of the tokens of a full "
            f"example instead of {config.masked_lm_prob:.1%}; "
            f"{full} predicts them all"
        )
    if statistics["one_segment_share"] > MANY_ONE_SEGMENT:
        found.append(
            f"{statistics['one_segment_share']:.0%} of the chunks are one "
            "sentence; the sentence-order task wants one sentence per line, "
            "a blank line between documents, and room for several sentences "
            "(--max_seq_length)"
        )
    if statistics["unknown_share"] > 0.01:
        found.append(
            f"{statistics['unknown_share']:.1%} of the tokens are unknown; "
            "does the vocabulary fit the text (language, casing)?"
        )
    if statistics["bad_lines"]:
        found.append(f"{statistics['bad_lines']} lines were not UTF-8")
    return found


def _line(name: str, value: object) -> str:
    if isinstance(value, list):
        value = "  ".join(f"{item:.4f}" for item in value)
    elif isinstance(value, int):
        value = f"{value:,}"
    return f"  {name.replace('_', ' '):<26}{value}"


def report(statistics: dict) -> str:
    """Return the statistics as a person reads them."""
    lines = []
    for name, value in statistics.items():
        if name.endswith("_share"):
            value = f"{value:.2%}"
        lines.append(_line(name, value))
    return "\n".join(lines)
