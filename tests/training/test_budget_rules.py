"""A time budget chooses values that were best in trials, scaled to the run."""

import dataclasses

import pytest
import tiny

from albert_tf.base.errors import InputError
from albert_tf.data.records.metadata import Metadata
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.phases import make_phases, read_schedules
from albert_tf.training.pretraining import budget_rules
from albert_tf.training.pretraining.budget import check_budget, values_of
from albert_tf.training.pretraining.budget_rules import Choice, Resources
from albert_tf.training.training_config import TrainingConfig

# A step of 64 examples takes 0.25 s, so 2,400 steps fit into ten minutes.
TRIAL = Resources(600.0, 0.25 / 64, tokens=64, hidden_size=128)
DEFAULTS = vars(OptimizerConfig()) | vars(TrainingConfig())


def choose(means=TRIAL, **fixed):
    """Return {setting: value} with a budget's choices.

    Settings that the budget does not choose have the given values or their
    defaults.
    """
    values = DEFAULTS | fixed
    return values | values_of(
        budget_rules.choose_values(means, values, set(fixed))
    )


def test_where_the_trials_were_their_numbers_are_chosen():
    """For a run of the trials' size, the best values of the trials are chosen.

    These values are Muon, a learning rate of 2e-3 at width 128, a `beta_2` of
    0.98 and a weight decay of 0.1.
    """
    values = choose()
    assert values["optimizer"] == "muon" and values["bias_correction"]
    assert values["train_batch_size"] == 64
    assert values["num_train_steps"] == 2400
    assert values["learning_rate"] == 2e-3
    adamw = choose(optimizer="adamw")
    assert adamw == values | {"optimizer": "adamw"}
    assert values["beta_2"] == 0.98
    assert values["weight_decay_rate"] == 0.1
    assert values["num_warmup_steps"] == 120
    assert values["save_checkpoints_steps"] == values["eval_steps"] == 240


def test_what_is_said_stays_and_the_rest_follows():
    """The user's values are kept, and all other values are adapted to them.

    Halving the batch size doubles the number of steps; LAMB has its own
    learning rate.
    """
    values = choose(train_batch_size=32, optimizer="lamb", eval_steps=7)
    assert (values["train_batch_size"], values["eval_steps"]) == (32, 7)
    assert values["num_train_steps"] == 4800
    assert values["learning_rate"] == pytest.approx(0.02 / 2**0.5, rel=0.02)
    assert values["beta_2"] == pytest.approx(0.98**0.5, abs=1e-4)
    assert values["weight_decay_rate"] == 0.01
    other = choose(learning_rate=0.5, optimizer="sgd")
    assert other["weight_decay_rate"] == 0.1
    values = choose(learning_rate=0.5, beta_2=0.9)
    assert (values["learning_rate"], values["beta_2"]) == (0.5, 0.9)


def test_the_rate_falls_with_the_width_and_rises_with_the_batch():
    """The learning rate is proportional to the square root of the batch size.

    The rate is inversely proportional to the square root of the width.
    """
    wide = dataclasses.replace(TRIAL, hidden_size=512)
    assert choose(wide)["learning_rate"] == 1e-3
    assert choose(train_batch_size=16)["learning_rate"] == 1e-3
    values = DEFAULTS | {"optimizer": "lamb", "train_batch_size": 256}
    found = budget_rules.learning_rate(wide, values)
    reason = "0.02 of the trials x 0.50 for the width x 2.00 for the batch"
    assert found == (0.02, reason)


@pytest.mark.parametrize(
    "seconds, steps, between",
    [(100, 500, 50), (300, 200, 60), (6000, 100, 600), (20_000, 45, 900)],
)
def test_checkpoints_are_a_minute_to_a_quarter_of_an_hour_apart(
    seconds, steps, between
):
    """Ten checkpoints are saved if they would then be 1 to 15 minutes apart.

    Otherwise, the interval is 1 or 15 minutes, or less if fewer than two
    checkpoints would be saved. The reason states the time between checkpoints.
    """
    means = dataclasses.replace(TRIAL, seconds=float(seconds))
    found = budget_rules.checkpoint_steps(means, {"num_train_steps": 1000})
    reason = f"every {between} s, the most time that can be lost"
    assert found == (steps, reason)


def test_the_precision_is_the_faster_one():
    """The device determines the precision unless the user sets it."""
    fast = dataclasses.replace(TRIAL, dtype=Choice("bfloat16", "a TPU"))
    assert choose()["dtype"] == "float32"
    assert choose(fast)["dtype"] == "bfloat16"
    assert choose(fast, dtype="float32")["dtype"] == "float32"


def test_the_batch_grows_with_the_root_of_the_tokens():
    """The batch size grows with the square root of the number of tokens.

    This rule applies to runs of more than 1e8 tokens. The batch size is a
    multiple of the number of micro-batches of all replicas.
    """
    fast = dataclasses.replace(TRIAL, example_seconds=1e-6, seconds=25_000.0)
    values = choose(fast)  # sqrt(1.6e12 / 1e8) is 126
    assert values["train_batch_size"] == 8192
    assert values["beta_2"] == 0.95
    assert values["num_train_steps"] == int(25e9 / 8192)
    three = dataclasses.replace(fast, replicas=3)
    assert choose(three)["train_batch_size"] == 8190
    longer = dataclasses.replace(TRIAL, tokens=512)
    assert choose(longer)["train_batch_size"] == 8
    longest = dataclasses.replace(TRIAL, tokens=8192, seconds=60.0)
    assert choose(longest)["train_batch_size"] == 1
    several = dataclasses.replace(longer, replicas=8)
    cut = choose(several, gradient_accumulation_steps=2)
    assert cut["train_batch_size"] == 16


@pytest.mark.parametrize(
    "examples, number", [(1000, 10), (3000, 6), (100_000, 2)]
)
def test_evaluations_take_their_share(examples, number):
    """A run has ten evaluations, or fewer if these take over 5% of the time.

    An example takes 1.6 ms, so 19,200 examples fit into 30 s. At least two
    evaluations are made.
    """
    means = dataclasses.replace(TRIAL, eval_examples=examples)
    values = choose(means)
    assert values["num_train_steps"] == 2280
    assert values["eval_steps"] == 2280 // number


@pytest.mark.parametrize(
    "layers, groups, sharing, depths",
    [
        (4, 1, "all", "2:0.3,4"),
        (5, 1, "all", "3:0.3,5"),
        (6, 4, "all", "4:0.3,6"),
        (3, 3, "all", None),
        (1, 1, "all", None),
        (4, 1, "attention", None),
    ],
)
def test_half_of_the_layers_run_at_first(layers, groups, sharing, depths):
    """If all layers share weights, a run starts with half of its layers.

    With several groups, each group keeps at least one layer.
    """
    config = dataclasses.replace(
        tiny.CONFIG,
        num_hidden_layers=layers,
        num_hidden_groups=groups,
        sharing=sharing,
    )
    values = values_of(budget_rules.choose_start(config, dynamic=False))
    assert values.pop("initial_weights") == "informed"
    assert values == ({"depth_schedule": depths} if depths else {})
    read_schedules("records", depths, None, config)


def test_masks_change_only_where_they_are_made_while_reading():
    """With dynamic masking, the mask rate falls from 0.3 to 0.2 and 0.15."""
    values = values_of(budget_rules.choose_start(tiny.CONFIG, dynamic=True))
    masks = values["mask_schedule"]
    rates = read_schedules("records", None, masks, tiny.CONFIG).masked_lm_prob
    assert [rate for rate, _ in rates] == [0.3, 0.2, 0.15]


def test_the_shortest_budget_gives_each_phase_a_step():
    """Even if only a few steps fit, each phase has at least one step."""
    values = choose(dataclasses.replace(TRIAL, seconds=1e-3))
    assert (values["num_train_steps"], values["num_warmup_steps"]) == (10, 1)
    config = dataclasses.replace(tiny.CONFIG, num_hidden_layers=4)
    values |= values_of(budget_rules.choose_start(config, dynamic=True))
    records = {"x": Metadata(64, 9, 50, "", {}, {"masking": "dynamic"})}
    chosen = values["depth_schedule"], values["mask_schedule"]
    phases = make_phases(
        read_schedules("x", *chosen, config),
        records,
        values["num_train_steps"],
        batch_size=values["train_batch_size"],
    )
    assert len(phases) == 4
    assert all(phase.begin < phase.end for phase in phases)


def test_choices_are_shown_as_flags_with_reasons():
    """Each chosen flag has a line with the rounded value and the reason."""
    choices = budget_rules.choose_values(TRIAL, DEFAULTS, {"optimizer"})
    lines = budget_rules.format_choices(choices)
    assert [line.split("=")[0].strip(" -") for line in lines] == [*choices]
    assert "--beta_2=0.98  " in lines[5] and "half-life" in lines[5]
    assert not any("optimizer" in line or "e+" in line for line in lines)
    assert choices["train_batch_size"].reason == (
        "4,096 tokens, for a run of 9,800,000"
    )
    assert choices["num_train_steps"].reason == (
        "600 s at 0.25 s a step; adapts to the pace"
    )
    evaluated = dataclasses.replace(TRIAL, eval_examples=3000)
    found = budget_rules.eval_steps(evaluated, {"num_train_steps": 7})
    assert found == (2, "6 evaluations of about 4.7 s")


@pytest.mark.parametrize(
    "values, named",
    [
        (({"num_train_steps"}, "weights", "adamw"), "`num_train_steps`.*both"),
        ((set(), "run", "adamw"), "init_state=run"),
        (({"optimizer"}, "weights", "sgd"), "optimizer=sgd"),
    ],
)
def test_what_a_budget_cannot_go_with_is_refused(values, named):
    """The error names a setting that conflicts with a budget."""
    with pytest.raises(InputError, match=named):
        check_budget(*values)


def test_settings_that_leave_nothing_open_are_taken():
    """A budget accepts SGD with a learning rate, and AdamW also without one.

    An optimizer that the user did not set needs no learning rate.
    """
    check_budget(set(), "weights", "sgd")
    check_budget({"optimizer"}, "transplant", "adamw")
    check_budget({"optimizer", "learning_rate"}, "weights", "sgd")
    check_budget(set(), "weights", "lamb")
