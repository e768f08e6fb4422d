"""What the statistics of a data set warn of, and what to change."""

import math
from collections.abc import Iterator

from albert_tf.data.builder import letters
from albert_tf.data.builder.text_files import bad_items
from albert_tf.data.masking import MaskingConfig
from albert_tf.data.records import EVAL

# More one-segment chunks than this: lines are too long for the length.
MANY_ONE_SEGMENT = 0.3

# More unknown tokens than this: the vocabulary is another language's.
MANY_UNKNOWN = 0.01

# More padding than this is better spent on a shorter `max_seq_length`.
MUCH_PADDING = 0.4

# More of the text than this lost in cutting pairs to their length.
MUCH_TRUNCATED = 0.05

# Labels farther from even than this, and than chance has it, are no coin's.
UNEVEN = 0.02
CHANCE = 4.0  # standard deviations

# The loss of fewer held-out records than this is a poor estimate; a larger
# share of the text than this is better used for training.
FEW_HELD_OUT = 100
MUCH_HELD_OUT = 0.2

# The largest difference of the held-out share, relative to the one asked for.
HELD_OUT_MISS = 0.5


def _predictions(config: MaskingConfig, length: int) -> Iterator[str]:
    slots = config.most_masked(length)
    full = max(1, round(length * config.masked_lm_prob))
    if slots < full:
        yield (
            f"--max_predictions_per_seq={slots} at length {length} predicts "
            f"{slots / length:.1%} of the tokens of a full example instead of "
            f"{config.masked_lm_prob:.1%}; {full} predicts them all"
        )


def _labels(statistics: dict) -> Iterator[str]:
    share = statistics["swapped_share"]
    number = statistics["records"] * (1 - statistics["unpaired_share"])
    limit = max(UNEVEN, CHANCE * 0.5 / math.sqrt(max(number, 1)))
    if number and abs(share - 0.5) > limit:
        yield (
            f"{share:.1%} of the examples are labelled swapped instead of "
            "half: the label can be guessed; see --compat"
        )


def _text(statistics: dict) -> Iterator[str]:
    if statistics["one_segment_share"] > MANY_ONE_SEGMENT:
        dropped = statistics["dropped_chunks"]
        fate = (
            f"{dropped:,} of {statistics['records'] + dropped:,} were left "
            "out, being one sentence (--single_segment_policy=keep learns "
            "their words)"
            if dropped
            else f"{statistics['unpaired_share']:.0%} of the examples have no "
            "order"
        )
        yield (
            f"{statistics['one_segment_share']:.0%} of the chunks are one "
            f"line, and {fate}; the sentence-order task wants one sentence per "
            "line (--split_sentences; --input_format=lines if rows of a table "
            "are sentences), a blank line between documents only, and room "
            "for several sentences (--max_seq_length)"
        )
    if statistics["unknown_share"] > MANY_UNKNOWN:
        yield (
            f"{statistics['unknown_share']:.1%} of the tokens are unknown; "
            "does the vocabulary fit the text (language, casing)?"
        )
    yield from letters.warnings(
        statistics["dropped_marks_share"], statistics["beyond_rule_share"]
    )
    if said := bad_items(statistics):
        yield said


def _room(statistics: dict) -> Iterator[str]:
    if statistics["padding_share"] > MUCH_PADDING:
        yield (
            f"{statistics['padding_share']:.0%} of the positions are padding: "
            "the documents are short; a smaller --max_seq_length trains faster"
        )
    kept = statistics["records"] * statistics["tokens_per_record"]
    lost = statistics["truncated_tokens"]
    if lost > MUCH_TRUNCATED * (kept + lost):
        yield (
            f"{lost / (kept + lost):.0%} of the tokens were cut off to fit "
            "the length; split long sentences, or raise --max_seq_length"
        )


def _held_out(statistics: dict) -> Iterator[str]:
    found = statistics[EVAL]
    records, share = found["records"], found["held_out_share"]
    asked = found["held_out_share_asked"]
    if share and abs(share - asked) > HELD_OUT_MISS * asked:
        yield (
            f"{share:.2%} of the tokens are held out instead of {asked:.2%}: "
            "the text is too short, or its lines are too long, to divide it "
            "more finely; add text, or split it (--split_sentences)"
        )
    divided = statistics["divided_document_tokens"]
    kept = statistics["tokens"] - statistics["duplicate_tokens"]
    divided /= max(kept, 1)
    if divided > asked:
        yield (
            f"one document has {divided:.0%} of the tokens, more than the "
            "share to hold out: part of it is held out, and training uses the "
            "rest; if it is several documents, put blank lines between them"
        )
    if 0 < records < FEW_HELD_OUT:
        enough = share * FEW_HELD_OUT / records
        yield f"only {records} examples are held out; " + (
            f"--eval_fraction={enough:.2g} holds out about {FEW_HELD_OUT}"
            if 0 < enough <= MUCH_HELD_OUT
            else "add text"
        )


def warnings(
    statistics: dict, config: MaskingConfig, max_seq_length: int
) -> Iterator[str]:
    """Yield what a user should know, and what to change."""
    yield from _predictions(config, max_seq_length)
    for look in (_labels, _text, _room, _held_out):
        yield from look(statistics)
