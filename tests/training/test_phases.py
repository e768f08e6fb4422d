"""The phases of schedules: boundaries, batches, shapes and summaries."""

import dataclasses

import pytest
import tiny

from albert_tf.base.errors import InputError
from albert_tf.data.records.metadata import Metadata
from albert_tf.model.config import training_flops
from albert_tf.training.phases import (
    Phase,
    batch_in_tokens,
    check_mask_schedule,
    description,
    folders,
    make_phases,
    mean_work,
    read_schedule,
    read_schedules,
    step_work,
    table_of,
)

DYNAMIC = {"masking": "dynamic", "masked_lm_prob": 0.15}
RECORDS = {
    name: Metadata(tokens, round(0.15 * tokens), 50, "", {}, DYNAMIC)
    for name, tokens in (("a", 64), ("b", 128), ("c", 512))
}
DEEP = dataclasses.replace(tiny.CONFIG, num_hidden_layers=6)


def phases(
    data_dir="a", depth=None, masks=None, steps=100, config=DEEP, **kwargs
):
    schedules = read_schedules(data_dir, depth, masks, config)
    values = {"batch_size": 64, **kwargs}
    return make_phases(schedules, RECORDS, steps, **values)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("one", [("one", 1.0)]),
        ("x*,y?:0.25,z", [("x*,y?", 0.25), ("z", 1.0)]),
        ("gs://b/x,gs://b/y", [("gs://b/x,gs://b/y", 1.0)]),
        (
            "gs://x:9/a:.5,b:0.25,gs://c",
            [("gs://x:9/a", 0.5), ("b", 0.75), ("gs://c", 1.0)],
        ),
    ],
)
def test_a_value_ends_at_its_share(text, expected):
    """Each value of a schedule applies until its share of the steps is used up.

    Values may contain commas and colons, as paths in `data_dir` do.
    """
    assert list(read_schedule("data_dir", text)) == expected
    assert folders(text) == [value for value, _ in expected]


@pytest.mark.parametrize(
    "text", ["2,4,6", "2:0.5,6:0.5", "2:0.6,4:0.4,6", "2:0,6", "2:1..,6", ""]
)
def test_what_is_no_schedule_is_refused(text):
    """A missing, extra or illegal share raises an error.

    The sum of the shares must be below 1.
    """
    with pytest.raises(InputError, match="VALUE:SHARE,VALUE:SHARE,VALUE"):
        read_schedule("depth_schedule", text, int)


def test_there_are_no_more_prediction_places_than_a_rate_needs():
    """With a mask schedule, the rate determines the number of predictions.

    The limit in the records does not apply.
    """
    limited = dataclasses.replace(
        RECORDS["a"], settings=DYNAMIC | {"max_predictions_per_seq": 5}
    )
    schedules = read_schedules("a", None, "0.3:0.5,0.15", DEEP)
    made = make_phases(schedules, {"a": limited}, 100, batch_size=64)
    assert [p.metadata.max_predictions_per_seq for p in made] == [19, 10]
    assert [p.metadata.masking_config().masked_lm_prob for p in made] == [
        *(0.3, 0.15)
    ]
    assert phases()[0].metadata is RECORDS["a"]


def test_a_batch_keeps_its_tokens():
    """The batches of all phases have about the same number of tokens.

    Each batch size is a multiple of `unit`.
    """
    sizes = [p.batch_size for p in phases("a:0.7,b:0.2,c")]
    assert sizes == [64, 32, 8]
    made = phases("a:0.7,b:0.2,c", batch_size=60, unit=12)
    assert [p.batch_size for p in made] == [60, 24, 12]
    assert phases(batch_size=63)[0].batch_size == 63
    assert batch_in_tokens(1, 64, 512, 2) == 2


@pytest.mark.parametrize(
    "depth, changes, message",
    [
        ("2:0.5,4", {}, "must end with `num_hidden_layers`.* 6"),
        ("8:0.5,6", {}, "never exceed it"),
        ("0:0.5,6", {}, "or fall below"),
        ("2:0.5,6", {"num_hidden_groups": 3}, "or fall below.* 3"),
        ("2:0.5,6", {"sharing": "attention"}, "sharing=attention"),
    ],
)
def test_a_depth_must_train_all_weights(depth, changes, message):
    """A schedule must give each group a layer in every phase.

    The last phase must have all layers, and no phase may have more. Layers must
    share all weights.
    """
    config = dataclasses.replace(DEEP, **changes)
    with pytest.raises(InputError, match=message):
        phases(depth=depth, config=config)


def test_every_value_needs_a_step():
    """A run that is too short for its schedule raises an error."""
    assert len(phases(depth="2:0.3,4:0.3,6", steps=3)) == 3
    with pytest.raises(InputError, match="`layers` must have at least one"):
        phases(depth="2:0.1,4:0.1,6", steps=3)


def test_records_with_masks_have_no_schedule_of_them():
    """The error for a mask schedule names a folder whose masks are fixed."""
    check_mask_schedule("0.3:0.5,0.15", RECORDS)
    static = RECORDS | {"d": dataclasses.replace(RECORDS["a"], settings={})}
    with pytest.raises(InputError, match="data_dir=d with masks"):
        check_mask_schedule("0.3:0.5,0.15", static)


def test_work_is_the_mean_over_the_time_of_the_phases():
    """The FLOPs per example are a harmonic mean over the phases.

    In this mean, the weight of a phase is its share of the run.
    """
    made = phases("a:0.25,c", "2:0.25,6")
    first, second = (
        training_flops(DEEP.with_layers(layers), tokens, round(0.15 * tokens))
        for layers, tokens in ((2, 64), (6, 512))
    )
    expected = 1 / (0.25 / first + 0.75 / second)
    assert mean_work(made, DEEP) == pytest.approx(expected)


def test_work_includes_the_words_of_phonemes():
    """The FLOPs of a step on phonemes include the head that predicts words."""
    statistics = {"word_labels": 70}
    metadata = dataclasses.replace(RECORDS["a"], statistics=statistics)
    phase = Phase(0, 5, 8, metadata=metadata, layers=2)
    work = training_flops(DEEP.with_layers(2), 64, 10, words=70)
    assert step_work(phase, DEEP) == 8 * work


def test_equal_steps_share_a_compilation():
    """Phases with the same batch, depth and lengths have the same shape."""
    first, second, third = phases("a:0.2,b:0.3,a")
    assert first.shape == third.shape == (64, 6, (64, 10))
    assert second.shape == (32, 6, (128, 19))
    assert Phase(0, 5, 8).shape == (8, None, None)


def test_a_phase_says_what_its_steps_are():
    """A phase's summary states the mask rate only if the rate is scheduled."""
    first, second = phases(masks="0.3:0.5,0.15")
    expected = "batches of 64 x 64 tokens from a, 6 layers"
    assert first.summary() == f"{expected}, masks 0.3"
    assert second.summary() == f"{expected}, masks 0.15"
    assert phases()[0].summary() == expected
    assert phases(depth="1:0.5,6")[0].summary().endswith(" from a, 1 layer")


def test_a_schedule_has_a_description():
    """The description of a schedule names its values, but not the run's end."""
    expected = "(to the end: 6 layers, batches of 64)"
    assert description(phases()) == description(phases(steps=90)) == expected
    assert description(phases("a:0.5,b", "2:0.5,6", "0.3:0.5,0.15")) == (
        "(to step 50: 2 layers, batches of 64, masks 0.3; "
        "to the end: 6 layers, batches of 32, masks 0.15)"
    )


def test_the_phases_are_a_table():
    """The table has a line for each phase."""
    masked = table_of(phases(masks="0.3:0.5,0.15", steps=4000))
    row = "0 to 2,000 6 64 64 19 0.3 a"
    assert masked.splitlines()[1].split() == row.split()
    head, first, last = table_of(phases("a:0.5,c", "2:0.5,6")).splitlines()
    assert head.split()[:4] == ["steps", "layers", "batch", "tokens"]
    assert first.split() == "0 to 50 2 64 64 10 a".split()
    assert last.split() == "50 to 100 6 8 512 77 c".split()
