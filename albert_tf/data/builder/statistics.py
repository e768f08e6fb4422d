"""What was counted while records were made, and what it says.

Counts are whole numbers, so that those of shards add up exactly.
"""

from collections import Counter

import numpy as np

from albert_tf.data.masking import Instances, Masked, MaskingConfig
from albert_tf.data.records import EVAL, TRAIN

KINDS = ("mask", "same", "random")

# What is told of the text as it was counted.
TEXT_COUNTS = """documents sentences sentences_without_tokens bad_lines
bad_rows bad_files short_documents duplicate_documents duplicate_tokens
divided_document_tokens tokens""".split()

# What the report calls a group of statistics.
TITLES = {EVAL: "held-out records"}


def count_instances(instances: Instances) -> Counter:
    """Count a batch of records, masks aside."""
    return Counter(
        records=len(instances.lengths),
        slots=instances.input_ids.size,
        real_tokens=int(instances.lengths.sum()),
        paired=int(instances.segment_ids.any(axis=1).sum()),
        swapped=int(instances.swapped.sum()),
    )


def count_masks(instances: Instances, masked: Masked) -> Counter:
    """Count the masks of a batch of records."""
    predictions = masked.weights.sum(axis=1)
    counts = Counter(
        masked_records=len(predictions),
        masked_of=int(instances.lengths.sum()),
        masked=int(predictions.sum()),
        budget_met=int(np.sum(predictions == masked.budget)),
    )
    for n in range(1, len(masked.drawn)):
        counts[f"ngrams_drawn_{n}"] = int(masked.drawn[n])
        counts[f"ngrams_used_{n}"] = int(masked.used[n])
    for kind, number in zip(KINDS, masked.kinds, strict=True):
        counts[f"tokens_{kind}"] = int(number)
    return counts


def _share(part: int, whole: int, digits: int = 5) -> float:
    return round(part / max(whole, 1), digits)


def _shares(values: list[int]) -> list[float]:
    return [_share(value, sum(values)) for value in values]


def summarize_records(made: Counter, config: MaskingConfig) -> dict:
    """Return what was counted while making the records of a split."""
    ngrams = range(1, config.ngram + 1)
    chunks = made["records"] + made["dropped_chunks"]
    return {
        "records": made["records"],
        "tokens_per_record": _share(made["real_tokens"], made["records"], 2),
        "padding_share": round(
            1 - made["real_tokens"] / max(made["slots"], 1), 5
        ),
        "truncated_tokens": made["truncated_tokens"],
        "unpaired_share": _share(
            made["records"] - made["paired"], made["records"]
        ),
        "swapped_share": _share(made["swapped"], made["paired"]),
        "one_segment_share": _share(made["one_segment_chunks"], chunks),
        "random_document_share": _share(
            made["random_documents"], made["records"]
        ),
        "repeated_segment_share": _share(
            made["repeated_segments"], made["records"]
        ),
        "dropped_chunks": made["dropped_chunks"],
        "masked_records": made["masked_records"],
        "masked_share_asked": config.masked_lm_prob,
        "masked_share": _share(made["masked"], made["masked_of"]),
        "budget_met_share": _share(made["budget_met"], made["masked_records"]),
        "ngrams_asked": config.ngram_probabilities().round(5).tolist(),
        "ngrams_drawn": _shares([made[f"ngrams_drawn_{n}"] for n in ngrams]),
        "ngrams_used": _shares([made[f"ngrams_used_{n}"] for n in ngrams]),
        "mask_same_random_asked": config.shares,
        "mask_same_random": _shares([made[f"tokens_{k}"] for k in KINDS]),
    }


def summarize(
    text: Counter,
    made: dict[str, Counter],
    config: MaskingConfig,
    eval_fraction: float,
) -> dict:
    """Return the statistics of `metadata.json`.

    Those of the training records stand at the top, beside the text's.

    Args:
      text: counted while reading the text.
      made: counted while making the records of each split.
      config: what was asked for.
      eval_fraction: the share of the tokens to hold out, as asked for.
    """
    held_out = made[EVAL]["tokens"]
    shares = {
        "held_out_share_asked": eval_fraction,
        "held_out_share": _share(held_out, held_out + made[TRAIN]["tokens"]),
    }
    unknown = _share(text["unknown_tokens"], text["tokens"], 6)
    return (
        {name: text[name] for name in TEXT_COUNTS}
        | {
            "unknown_share": unknown,
            "dropped_marks_share": _share(
                text["dropped_marks"], text["letters"]
            ),
            "beyond_rule_share": _share(text["beyond_rule"], text["letters"]),
        }
        | summarize_records(made[TRAIN], config)
        | {EVAL: shares | summarize_records(made[EVAL], config)}
    )


def _line(name: str, value: object) -> str:
    if isinstance(value, list):
        value = "  ".join(f"{item:.4f}" for item in value)
    elif name.endswith(("_share", "_share_asked")) and value is not None:
        value = f"{value:.2%}"
    elif isinstance(value, int):
        value = f"{value:,}"
    return f"  {name.replace('_', ' '):<26}{value}"


def report(statistics: dict) -> str:
    """Return the statistics as a person reads them."""
    lines, groups = [], []
    for name, value in statistics.items():
        if isinstance(value, dict):
            # Records made before may have further groups.
            groups += ["", f"  {TITLES.get(name, name)}", report(value)]
        else:
            lines.append(_line(name, value))
    return "\n".join(lines + groups)
