"""Counts of records as they are created, and a report with warnings.

Counts are integers, so sums over shards are exact.
"""

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from albert_tf.data.builder.boundaries import letter_warnings
from albert_tf.data.builder.text_formats import bad_items
from albert_tf.data.masking import Instances, Masked, MaskingConfig
from albert_tf.data.records.metadata import EVAL, TRAIN

REPLACEMENTS = ("mask", "same", "random")

# Counts of the text that are reported unchanged.
TEXT_COUNTS = """documents sentences sentences_without_tokens bad_lines
bad_rows bad_files empty_documents short_documents duplicate_documents
duplicate_tokens divided_document_tokens tokens""".split()

# Titles of groups of statistics in the report.
TITLES = {EVAL: "held-out records"}


def count_instances(instances: Instances) -> Counter:
    """Count the records, tokens and pairs in a batch."""
    return Counter(
        records=len(instances.lengths),
        slots=instances.input_ids.size,
        real_tokens=int(instances.lengths.sum()),
        paired=int(instances.segment_ids.any(axis=1).sum()),
        swapped=int(instances.swapped.sum()),
    )


def count_masks(instances: Instances, masked: Masked) -> Counter:
    """Count the masked tokens and n-grams in a batch."""
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
    for kind, number in zip(REPLACEMENTS, masked.kinds, strict=True):
        counts[f"tokens_{kind}"] = int(number)
    return counts


def _share(part: int, total: int, digits: int = 5) -> float:
    return round(part / max(total, 1), digits)


def _shares(values: list[int]) -> list[float]:
    return [_share(value, sum(values)) for value in values]


def summarize_records(made: Counter, config: MaskingConfig) -> dict:
    """Return the statistics of a split's records."""
    ngrams = range(1, config.ngram + 1)
    records, dropped = made["records"], made["dropped_tokens"]
    chunks = records + made["dropped_chunks"]
    special = 2 * records + made["paired"]
    tokens = dropped + made["real_tokens"] - special
    return {
        "records": records,
        "tokens_per_record": _share(made["real_tokens"], records, 2),
        "padding_share": round(
            1 - made["real_tokens"] / max(made["slots"], 1), 5
        ),
        "truncated_tokens": made["truncated_tokens"],
        "unpaired_share": _share(records - made["paired"], records),
        "swapped_share": _share(made["swapped"], made["paired"]),
        "one_segment_share": _share(made["one_segment_chunks"], chunks),
        "random_document_share": _share(made["random_documents"], records),
        "repeated_segment_share": _share(made["repeated_segments"], records),
        "dropped_chunks": made["dropped_chunks"],
        "dropped_token_share": _share(dropped, tokens),
        "masked_records": made["masked_records"],
        "masked_share_asked": config.masked_lm_prob,
        "masked_share": _share(made["masked"], made["masked_of"]),
        "budget_met_share": _share(made["budget_met"], made["masked_records"]),
        "ngrams_asked": config.ngram_probabilities().round(5).tolist(),
        "ngrams_drawn": _shares([made[f"ngrams_drawn_{n}"] for n in ngrams]),
        "ngrams_used": _shares([made[f"ngrams_used_{n}"] for n in ngrams]),
        "mask_same_random_asked": config.shares,
        "mask_same_random": _shares(
            [made[f"tokens_{k}"] for k in REPLACEMENTS]
        ),
    }


def summarize(
    text: Counter,
    made: dict[str, Counter],
    config: MaskingConfig,
    eval_fraction: float,
) -> dict:
    """Return the statistics for `metadata.json`.

    The statistics of the text and of the training records are at the top level.
    The key `EVAL` contains a dict with the statistics of the held-out records.

    Args:
      text: the counts of the text.
      made: the counts of each split's records.
      config: the masking settings.
      eval_fraction: the requested share of tokens to hold out.
    """
    held_out = made[EVAL]["tokens"]
    shares = {
        "held_out_share_asked": eval_fraction,
        "held_out_share": _share(held_out, held_out + made[TRAIN]["tokens"]),
    }
    letters = text["letters"]
    return (
        {name: text[name] for name in TEXT_COUNTS}
        | {
            "unknown_share": _share(text["unknown_tokens"], text["tokens"], 6),
            "dropped_marks_share": _share(text["dropped_marks"], letters),
            "beyond_rule_share": _share(text["beyond_rule"], letters),
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
    elif isinstance(value, float):
        value = f"{round(value, 4)}"
    return f"  {name.replace('_', ' '):<26}{value}"


def report(statistics: dict) -> str:
    """Return the statistics as a readable table."""
    lines, groups = [], []
    for name, value in statistics.items():
        if isinstance(value, dict):
            # Records of earlier versions may have more groups.
            title = TITLES.get(name, name.replace("_", " "))
            groups += ["", f"  {title}", report(value)] if value else []
        else:
            lines.append(_line(name, value))
    return "\n".join(lines + groups)


# A larger share of one-segment chunks means that lines are too long.
MANY_ONE_SEGMENT = 0.3

# Warn if the dropped chunks contained a larger share of the text.
MUCH_DROPPED = 0.05

# A larger share of unknown tokens means that the vocabulary does not suit the
# text.
MANY_UNKNOWN = 0.01

# If a larger share of the positions is padding, a shorter `max_seq_length` is
# faster.
MUCH_PADDING = 0.4

# Warn if truncation removes a larger share of the text.
MUCH_TRUNCATED = 0.05

# Labels are biased if the share of swapped pairs differs from one half by more
# than both of these limits.
UNEVEN = 0.02
CHANCE = 4.0  # standard deviations

# With fewer than FEW_HELD_OUT held-out records, the loss is a poor estimate. If
# that number of records would be more than MUCH_HELD_OUT of the text, the user
# should add text instead of holding out more.
FEW_HELD_OUT = 100
MUCH_HELD_OUT = 0.2

# The largest relative error of the held-out share that causes no warning.
HELD_OUT_MISS = 0.5


# Many words are too long to be masked if two conditions are met. Less than
# FEW_MASKED of the requested share is masked, and less than FEW_BUDGETS_MET of
# the examples have the requested number of predictions. (In short examples,
# rounding also reduces the share.)
FEW_MASKED = 0.8
FEW_BUDGETS_MET = 0.5
FEWEST_MASKED_RECORDS = 30


def _predictions(
    statistics: dict, config: MaskingConfig, length: int
) -> Iterator[str]:
    slots = config.max_masked(length)
    full = max(1, round(length * config.masked_lm_prob))
    if slots < full:
        yield (
            f"--max_predictions_per_seq={slots} at length {length} predicts "
            f"{slots / length:.1%} of the tokens of a full example instead of "
            f"{config.masked_lm_prob:.1%}; use {full} to reach this share"
        )
    if (
        statistics["masked_records"] >= FEWEST_MASKED_RECORDS
        and statistics["budget_met_share"] < FEW_BUDGETS_MET
        and statistics["masked_share"] < FEW_MASKED * config.masked_lm_prob
    ):
        yield (
            f"{statistics['masked_share']:.1%} of the tokens are predicted "
            f"instead of {config.masked_lm_prob:.1%}, because many words have "
            "more tokens than an example may predict; does --word_boundaries "
            "suit the language?"
        )


def _labels(statistics: dict) -> Iterator[str]:
    share = statistics["swapped_share"]
    number = statistics["records"] * (1 - statistics["unpaired_share"])
    limit = max(UNEVEN, CHANCE * 0.5 / math.sqrt(max(number, 1)))
    if number and abs(share - 0.5) > limit:
        yield (
            f"{share:.1%} of the examples are labeled swapped instead of "
            "half, so the label can be guessed; see --compat"
        )


def _text(statistics: dict) -> Iterator[str]:
    # Records of earlier versions lack this share.
    dropped_share = statistics.get("dropped_token_share", 0.0)
    many = statistics["one_segment_share"] > MANY_ONE_SEGMENT
    if many or dropped_share > MUCH_DROPPED:
        dropped = statistics["dropped_chunks"]
        outcome = (
            f"{dropped:,} of {statistics['records'] + dropped:,} were dropped "
            f"with {dropped_share:.0%} of the tokens because they contain one "
            "sentence (--single_segment_policy=keep keeps them for masking)"
            if dropped and not statistics["unpaired_share"]
            else f"{statistics['unpaired_share']:.0%} of the examples have no "
            "order"
        )
        yield (
            f"{statistics['one_segment_share']:.0%} of the chunks contain one "
            f"line, and {outcome}; the sentence-order task needs one sentence "
            "per line (--split_sentences; --input_format=lines if rows of a "
            "table are sentences), blank lines only between documents, and "
            "room for several sentences (--max_seq_length)"
        )
    if statistics["unknown_share"] > MANY_UNKNOWN:
        yield (
            f"{statistics['unknown_share']:.1%} of the tokens are unknown; "
            "does the vocabulary match the text (language, casing)?"
        )
    yield from letter_warnings(
        statistics["dropped_marks_share"], statistics["beyond_rule_share"]
    )
    if message := bad_items(statistics):
        yield message


def _room(statistics: dict) -> Iterator[str]:
    if statistics["padding_share"] > MUCH_PADDING:
        yield (
            f"{statistics['padding_share']:.0%} of the positions are padding "
            "because documents are short; a smaller --max_seq_length trains "
            "faster"
        )
    remaining = statistics["records"] * statistics["tokens_per_record"]
    truncated = statistics["truncated_tokens"]
    if truncated > MUCH_TRUNCATED * (remaining + truncated):
        yield (
            f"{truncated / (remaining + truncated):.0%} of the tokens were "
            "truncated to fit the length; split long sentences or increase "
            "--max_seq_length"
        )


def few_held_out(records: int, share: float) -> Iterator[str]:
    """Yield a warning if too few records are held out.

    Args:
      records: the number of held-out records.
      share: the held-out share of the text, or the requested share if that is
        larger.
    """
    if 0 < records < FEW_HELD_OUT:
        enough = share * FEW_HELD_OUT / records
        yield f"only {records} examples are held out; " + (
            f"--eval_fraction={enough:.2g} holds out about {FEW_HELD_OUT}"
            if 0 < enough <= MUCH_HELD_OUT
            else "add text"
        )


def other_share(
    share: float, requested: float, unit: str, advice: str
) -> Iterator[str]:
    """Yield a warning if the held-out share differs from the requested one."""
    if share and abs(share - requested) > HELD_OUT_MISS * requested:
        yield (
            f"{share:.2%} of the {unit} are held out instead of "
            f"{requested:.2%}: {advice}"
        )


def _held_out(statistics: dict) -> Iterator[str]:
    split = statistics[EVAL]
    records, share = split["records"], split["held_out_share"]
    requested = split["held_out_share_asked"]
    yield from other_share(
        *(share, requested, "tokens"),
        "the text is too short, or its lines are too long, to divide it "
        "more finely; add text or split it (--split_sentences)",
    )
    divided = statistics["divided_document_tokens"]
    unique_tokens = statistics["tokens"] - statistics["duplicate_tokens"]
    divided /= max(unique_tokens, 1)
    if divided > requested:
        yield (
            f"one document has {divided:.0%} of the tokens, more than the "
            "share to hold out: part of it is held out, and training uses the "
            "rest; if the file contains several documents, separate them by "
            "blank lines"
        )
    yield from few_held_out(records, max(share, requested))


def warnings(
    statistics: dict, config: MaskingConfig, max_seq_length: int
) -> Iterator[str]:
    """Yield warnings about the records, with advice."""
    yield from _predictions(statistics, config, max_seq_length)
    for warnings_of in (_labels, _text, _room, _held_out):
        yield from warnings_of(statistics)
