"""Statistics and warnings are computed from counts."""

from collections import Counter

import numpy as np
import pytest

from albert_tf.data.builder import statistics as reporting
from albert_tf.data.builder.statistics import report, summarize, warnings
from albert_tf.data.masking import Instances, Masked, MaskingConfig

TEXT = Counter(documents=10, sentences=100, tokens=10_000, unknown_tokens=5)
MADE = Counter(
    records=100,
    slots=12_800,
    paired=100,
    real_tokens=10_000,
    swapped=51,
    one_segment_chunks=2,
    masked_records=100,
    masked_of=10_000,
    masked=1_500,
    budget_met=99,
    ngrams_drawn_1=60,
    ngrams_drawn_2=30,
    ngrams_drawn_3=10,
    tokens_mask=1_200,
    tokens_same=150,
    tokens_random=150,
)


def statistics(text=None, made=None, held_out=None):
    """Return the statistics of a sound data set with some changed counts."""
    made = {
        "train": Counter(dict(MADE) | (made or {})),
        "eval": Counter(dict(MADE) | (held_out or {})),
    }
    text = TEXT | Counter(text or {})
    return summarize(text, made, MaskingConfig(), 0.0)


def test_statistics_by_hand():
    """The statistics of both splits equal ratios that are computed by hand."""
    found = statistics(held_out={"swapped": 60, "paired": 80})
    assert found["unpaired_share"] == 0
    assert found["eval"]["unpaired_share"] == 0.2
    assert found["swapped_share"] == 0.51
    assert found["eval"]["swapped_share"] == 0.75
    assert found["one_segment_share"] == 0.02
    assert found["masked_share"] == 0.15
    assert found["budget_met_share"] == 0.99
    assert found["ngrams_drawn"] == [0.6, 0.3, 0.1]
    assert found["mask_same_random"] == [0.8, 0.1, 0.1]


def test_shares_are_rounded():
    """Shares are rounded to five decimals.

    The share of unknown tokens is rounded to six decimals, and the number of
    tokens per record to two. The held-out share is relative to the tokens used
    for records, without duplicates in the text. The dropped share does not
    count special tokens: 40 of 40 + 100 - 21 tokens.
    """
    made = {"records": 7, "real_tokens": 100, "slots": 300, "swapped": 3}
    made |= {"paired": 7, "truncated_tokens": 1, "dropped_chunks": 2}
    made |= {"random_documents": 1, "repeated_segments": 2}
    made["dropped_tokens"] = 40
    found = summarize(
        Counter(tokens=6, unknown_tokens=2, letters=7, beyond_rule=3),
        {"train": Counter(made, tokens=2), "eval": Counter(tokens=1)},
        MaskingConfig(ngram=2),
        0.25,
    )
    assert found["tokens_per_record"] == 14.29
    assert found["padding_share"] == 0.66667
    assert found["dropped_token_share"] == 0.33613
    assert found["swapped_share"] == 0.42857
    assert found["random_document_share"] == 0.14286
    assert found["repeated_segment_share"] == 0.28571
    assert found["unknown_share"] == 0.333333
    assert found["dropped_marks_share"] == 0
    assert found["beyond_rule_share"] == 0.42857
    assert found["ngrams_asked"] == [0.66667, 0.33333]
    assert found["ngrams_used"] == [0, 0]
    held_out = found["eval"]
    assert held_out["held_out_share"] == 0.33333
    assert held_out["held_out_share_asked"] == 0.25
    assert held_out["padding_share"] == held_out["records"] + 1 == 1
    one = Counter(records=1, paired=1, swapped=1, one_segment_chunks=3)
    found = reporting.summarize_records(one, MaskingConfig())
    assert found["swapped_share"] == 1
    assert found["one_segment_share"] == 3


def test_records_and_masks_are_counted():
    """The counts of a batch equal those counted by hand."""
    flags = np.array([[0, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]], bool)
    lengths = np.array([4, 2, 3])
    ids, swapped = flags.astype(np.int32), np.array([True, False, True])
    batch = Instances(ids, flags, flags, flags, lengths, swapped)
    assert reporting.count_instances(batch) == Counter(
        records=3, slots=12, real_tokens=9, paired=2, swapped=2
    )
    weights = np.array([[1, 1], [1, 0], [1, 0]], np.float32)
    budget, drawn, used = np.array([[2, 1, 2], [9, 7, 5], [9, 6, 4]])
    masks = Masked(ids, ids, ids, weights, budget, drawn, used, lengths)
    assert reporting.count_masks(batch, masks) == Counter(
        masked_records=3,
        masked_of=9,
        masked=4,
        budget_met=2,
        ngrams_drawn_1=7,
        ngrams_used_1=6,
        ngrams_drawn_2=5,
        ngrams_used_2=4,
        tokens_mask=4,
        tokens_same=2,
        tokens_random=3,
    )


def test_report_names_every_group():
    """The report covers text, masks and n-grams, and held-out records."""
    text = report(statistics())
    for words in (
        "documents                 10",
        "masked share              15.00%",
        "ngrams asked              0.5454  0.2727  0.1818",
        "held-out records",
    ):
        assert words in text


def test_sound_data_warns_of_nothing():
    """The statistics of sound data cause no warnings."""
    assert not list(warnings(statistics(), MaskingConfig(), 128))


def test_limits_themselves_are_sound():
    """A share equal to its limit causes no warning."""
    text = {"tokens": 10_000, "unknown_tokens": 100}
    made = {"real_tokens": 9_500, "truncated_tokens": 500, "slots": 15_833}
    made |= {"one_segment_chunks": 30, "swapped": 70}
    made |= {"masked": 1_200, "budget_met": 49}
    found = statistics(text, made)
    assert not list(warnings(found, MaskingConfig(), 128))
    found["padding_share"] = 0.4
    assert not list(warnings(found, MaskingConfig(), 128))
    nothing = statistics({"duplicate_tokens": TEXT["tokens"]})
    assert not list(warnings(nothing, MaskingConfig(), 128))


@pytest.mark.parametrize(
    "made",
    [
        {"masked": 1_190, "budget_met": 50},  # rounding of short examples
        {"masked": 1_190, "budget_met": 10, "masked_records": 29},
        {"masked_records": 0, "masked_of": 0, "masked": 0, "budget_met": 0},
    ],
)
def test_few_masks_with_another_cause(made):
    """Few masks cause a warning only if words are too long in many examples."""
    assert not list(warnings(statistics(made=made), MaskingConfig(), 128))


@pytest.mark.parametrize(
    "records, paired, even, uneven",
    [
        (100, 100, (30, 70), (29, 71)),  # four standard deviations of 5%
        (400, 100, (30, 70), (29, 71)),  # only pairs have a label
        (10**6, 10**6, (480_010, 519_990), (479_990, 520_010)),  # 2%
    ],
)
def test_uneven_labels_are_told_from_chance(records, paired, even, uneven):
    """Uneven labels cause a warning if |share - 1/2| exceeds both limits.

    The limits are 2% and four standard deviations of the share of swapped
    pairs.
    """
    for swapped in (*even, *uneven):
        made = {"records": records, "paired": paired, "swapped": swapped}
        text = "".join(reporting._labels(statistics(made=made)))
        assert ("labeled swapped" in text) == (swapped in uneven)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"made": {"swapped": 90}}, "90.0% of the examples are labeled"),
        (
            {"made": {"one_segment_chunks": 120, "dropped_chunks": 100}},
            "60% of the chunks contain one line, and 100 of 200 were dropped",
        ),
        (
            {"made": {"dropped_chunks": 1, "dropped_tokens": 9_700}},
            "2% of the chunks contain one line, and 1 of 101 were dropped "
            "with 50% of the tokens",
        ),
        (
            {"made": {"one_segment_chunks": 60, "paired": 60, "swapped": 30}},
            "60% of the chunks contain one line, and 40% of the examples have",
        ),
        (  # with `keep`, only next-sentence pairs are dropped
            {
                "made": {
                    "one_segment_chunks": 60,
                    "paired": 50,
                    "swapped": 25,
                    "dropped_chunks": 20,
                }
            },
            "50% of the chunks contain one line, and 50% of the examples have",
        ),
        ({"text": {"unknown_tokens": 300}}, "3.0% of the tokens are unknown"),
        (
            {"made": {"masked": 1_190, "budget_met": 49}},
            "11.9% of the tokens are predicted",
        ),
        ({"text": {"bad_lines": 3}}, "3 lines were not UTF-8"),
        ({"made": {"slots": 40_000}}, "75% of the positions are padding"),
        (
            {"made": {"truncated_tokens": 2_500}},
            "20% of the tokens were truncated",
        ),
    ],
)
def test_warnings(changes, message):
    """Each warning states the figure that caused it."""
    (warning,) = warnings(statistics(**changes), MaskingConfig(), 128)
    assert message in warning


def test_groups_of_earlier_records_are_reported():
    """Statistics that only earlier versions wrote are also reported."""
    probe = {"balanced_accuracy": 0.51, "loss": 0.12346, "no_share": None}
    found = statistics() | {"leak_probe": probe, "nothing": {}}
    assert not list(warnings(found, MaskingConfig(), 128))
    text = report(found)
    assert "balanced accuracy         0.51" in text
    assert "  leak probe\n" in text and "nothing" not in text
    assert "  loss                      0.1235\n" in text
    assert text.endswith("  no share                  None")
    assert "  documents                 10\n  sentences" in text
    assert "  tokens                    10,000\n" in text


def held_out_warnings(requested, share, records, **text):
    """Return the list of warnings about held-out text.

    `requested` and `share` are the requested and the actual share of the
    tokens, and `records` is the number of held-out records.
    """
    tokens = {"train": 1_000_000 * (1 - share), "eval": 1_000_000 * share}
    made = {
        split: Counter(dict(MADE) | {"tokens": round(number)})
        for split, number in tokens.items()
    }
    made["eval"]["records"] = records
    text = TEXT | Counter(tokens=1_000_000, **text)
    found = summarize(text, made, MaskingConfig(), requested)
    return list(warnings(found, MaskingConfig(), 128))


def test_held_out_share_is_compared():
    """A held-out share that differs from its goal by over half is reported.

    A share of 0 is not. If part of a document is held out, and the document
    has a larger share of the tokens than the goal, a warning states this.
    """
    assert not held_out_warnings(0.02, 0.029, 100)
    for share in (0.009, 0.31):
        (warning,) = held_out_warnings(0.02, share, 100)
        assert f"{share:.2%} of the tokens are held out" in warning
        assert "instead of 2.00%" in warning
    big = {"divided_document_tokens": 800_000}
    (warning,) = held_out_warnings(0.02, 0.02, 100, **big)
    assert "one document has 80% of the tokens" in warning
    assert not held_out_warnings(0.9, 0.9, 100, **big)
    assert not held_out_warnings(0.8, 0.8, 100, **big)
    assert not held_out_warnings(0.5, 0.25, 100)
    assert not held_out_warnings(0.5, 0.75, 100)
    assert not held_out_warnings(0.5, 0, 100)
    copies = {"duplicate_tokens": 200_000}  # dropped from the records
    (warning,) = held_out_warnings(0.02, 0.02, 100, **big, **copies)
    assert "one document has 100% of the tokens" in warning


def test_advice_on_few_held_out_records():
    """For few held-out records, the advice is a share for about 100 records.

    If this share would exceed 20%, the advice is to add text.
    """

    def advice(*args):
        return "".join(reporting.few_held_out(*args))

    assert "=0.2 holds out about 100" in advice(50, 0.1)
    assert advice(49, 0.1).endswith("; add text")
    assert advice(1, 0.001).startswith("only 1 examples are held out")
    assert advice(5, 0).endswith("; add text")
    assert "=0.1 holds out about 100" in advice(99, 0.1)
    assert not advice(0, 0.1) and not advice(100, 0.1)
    (warning,) = held_out_warnings(0.02, 0.02, 50)
    assert warning == advice(50, 0.02)
    (warning,) = held_out_warnings(0.04, 0.03, 80)
    assert warning == advice(80, 0.04)  # not 0.0375, which is less than 0.04


@pytest.mark.parametrize("do_permutation", [False, True])
def test_released_predictions_at_512(do_permutation):
    """A warning states that 20 predictions in 512 tokens are 3.9%, not 15%.

    The warning advises 77 predictions. Permuted tokens do not count as masked.
    """
    config = MaskingConfig(
        max_predictions_per_seq=20, do_permutation=do_permutation
    )
    (warning,) = warnings(statistics(), config, 512)
    assert "predicts 3.9% of the tokens" in warning
    assert "use 77 to reach" in warning
