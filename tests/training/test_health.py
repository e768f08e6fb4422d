"""Unhealthy runs print warnings, and healthy runs print none."""

import goldens
import numpy as np
import pytest
import tensorflow as tf
from tiny_pretraining import run
from tiny_runs import eagerly

from albert_tf.data.records.metadata import read_metadata
from albert_tf.model.config import training_flops
from albert_tf.model.phonemes import AlbertForPhonemes
from albert_tf.training.health import (
    COLLAPSED_SPREAD,
    Monitor,
    PhonemeMonitor,
    masked_spread,
    mean,
    windows,
)
from albert_tf.training.history import HEALTH, History
from albert_tf.training.objectives import PhonemeObjective, PretrainingObjective
from albert_tf.training.pretraining import pretrain


def monitor(**kwargs):
    values = {"tokens": 128, "flops": 2e9, "batch": 256}
    return Monitor(**(values | kwargs))


def rows_of(columns, steps=50, count=100):
    """Return training rows; values may be functions of progress (0 to 1)."""

    def at(value, x):
        return float(value(x)) if callable(value) else float(value)

    return [
        {"step": (i + 1) * steps, "steps": steps, "split": "train"}
        | {name: at(value, x) for name, value in columns.items()}
        for i, x in enumerate(np.linspace(0, 1, count))
    ]


def rows(mlm, sop, accuracy=0.4, **kwargs):
    """Return training rows of a run on words."""
    columns = {"mlm_loss": mlm, "mlm_accuracy": accuracy, "sop_accuracy": sop}
    made = rows_of(columns, **kwargs)
    return [row | {"loss": row["mlm_loss"] + 0.5} for row in made]


def falling(x):
    return 10 - 8 * x


@pytest.mark.parametrize(
    "history, kinds",
    [
        (rows(falling, 0.8), set()),
        (rows(falling, 0.505), {"sop_chance"}),
        (rows(falling, 0.999), {"sop_solved"}),
        (rows(7.0, 0.8, accuracy=0.06), {"flat_loss"}),
        (rows(lambda x: 7 - 0.06 * x, 0.8, accuracy=0.06), {"flat_loss"}),
        (rows(2.0, 0.8, accuracy=0.6), set()),  # flat after learning
        (rows(7.0, 0.8, accuracy=lambda x: 0.05 + 0.2 * x), set()),
        (rows(lambda x: 3 + 4 * max(0, x - 0.7), 0.8), {"diverged"}),
        (rows(lambda x: 8 - 12 * x if x < 0.5 else 4, 0.8), {"diverged"}),
        (rows(falling, lambda x: 0.9 if x < 0.7 else 0.505), {"sop_chance"}),
        (rows(7.0, 0.5, accuracy=0.06, count=10), set()),  # too early to judge
        (rows(7.0, 0.5, accuracy=0.06, count=0), set()),
        (rows(falling, 0.8, accuracy=0.06), set()),
        (rows(7.0, 0.5, steps=999, count=1), set()),
        (rows(7.0, 0.5, steps=1000, count=1), {"sop_chance"}),
    ],
)
def test_warnings_fit_the_course(history, kinds):
    """Each problem causes a different warning; a healthy run causes none."""
    assert set(monitor().notes(history)) == kinds


def test_the_warmup_is_not_judged():
    """Only rows that begin after warm-up can cause a warning."""
    sick = rows(7.0, 0.5, accuracy=0.06)
    assert monitor().notes(sick)
    assert monitor(num_warmup_steps=4000).notes(sick)  # 1000 steps remain
    assert not monitor(num_warmup_steps=4050).notes(sick)


def test_small_batches_need_more_steps():
    """Few examples cause no warning: accuracy on them varies by chance."""
    sick = rows(falling, 0.5)
    assert not monitor(batch=1).notes(sick)
    assert monitor(batch=4).notes(sick)
    for steps in (9999, 10000):
        sick = rows(falling, 0.5, steps=steps, count=1)
        assert bool(monitor(batch=1).notes(sick)) == (steps == 10000)


def test_other_rows_are_not_training():
    """Evaluation rows and earlier warnings are ignored."""
    others = [
        {"step": 1, "split": "eval", "sop_accuracy": 0.5},
        {"step": 1, "split": "health", "kind": "x", "note": "y"},
    ]
    assert not monitor().notes(others + rows(falling, 0.8))


@pytest.mark.parametrize(
    "share, warned",
    [
        *((0.15, False), (0.039, True), (0.4, True), (None, False)),
        *((0.1, False), (0.25, False), (0.0, True)),
    ],
)
def test_the_mask_rate_is_judged_at_once(share, warned):
    """A mask rate below 10% or above 25% is reported even without any rows."""
    found = monitor(masked_share=share).notes([])
    assert bool(found) is warned
    assert all(f"{100 * share:.1f}% of" in note for note in found.values())


@pytest.mark.parametrize(
    "changes, kinds",
    [
        ({}, set()),
        ({"trained_share": 0.0}, {"nothing_trained"}),
        ({"word_accuracy": 0.999}, {"labels_alike"}),
        (
            {"symbols_loss": 3.0, "masked_symbol_accuracy": 0.1},
            {"flat_loss"},
        ),
        (
            {"symbols_loss": 3.0, "masked_symbol_accuracy": 0.11},
            {"flat_loss"},
        ),
        ({"symbols_loss": 3.0, "masked_symbol_accuracy": 0.13}, set()),
        ({"word_accuracy": lambda x: 0.999 * (x > 0.98)}, {"labels_alike"}),
        ({"trained_share": lambda x: x < 0.98}, {"nothing_trained"}),
        ({"loss": lambda x: 5 + 3 * x}, {"diverged"}),
        ({"masked_spread": 1e-5}, {"collapsed"}),
    ],
)
def test_each_fault_of_phonemes_has_its_warning(changes, kinds):
    """Each fault causes a different warning; a healthy run causes none."""
    healthy = {
        "symbols_loss": lambda x: 3 - x,
        "masked_symbol_accuracy": lambda x: 0.1 + 0.2 * x,
        "word_accuracy": lambda x: 0.2 + 0.5 * x,
        "trained_share": 0.12,
        "loss": lambda x: 9 - 3 * x,
    }
    monitor = PhonemeMonitor(
        256, 1e9, 64, by_frequency={"masked_symbol_accuracy": 0.1}
    )
    assert set(monitor.notes(rows_of(healthy | changes))) == kinds
    assert monitor.notes([]) == {}


def test_means_weigh_rows_by_their_steps():
    """A row of ten steps has ten times the weight of a row of one step."""
    some = [{"steps": 10, "x": 1.0}, {"steps": 1, "x": 12.0}]
    assert mean(some, "x") == pytest.approx(2.0)


def test_windows_have_about_equal_steps():
    """Windows contain about the same number of steps, and no row is lost."""
    some = [{"steps": n} for n in (1, 1, 1, 1, 4, 8)]
    assert [len(cut) for cut in windows(some, 2)] == [5, 1]
    assert windows(some[:1], 4) == [some[:1]]


def test_speed_is_a_share_of_the_peak():
    """At 2 GFLOP per example, 100 examples/s are 20% of 1 TFLOP/s."""
    found = monitor(peak_flops=1e12).scalars(100.0)
    assert found["model_flops_utilization"] == pytest.approx(0.2)
    assert found["tokens_per_second"] == 12800.0
    assert "model_flops_utilization" not in monitor().scalars(100.0)


def test_the_spread_is_that_within_texts_at_masks():
    """The spread is computed within each text, from masked positions only.

    Padding may be more frequent than the mask.
    """
    rng = np.random.default_rng(0)
    states = np.zeros((3, 5, 2))
    states[0, :3] = [[10, 1], [10, 3], [10, 2]]  # variance 1 of about 100
    states[1, :2] = [[-10, 5], [-10, 5]]
    states[:, 3:] = rng.normal(size=(3, 2, 2))
    ids = np.array([[4, 4, 4, 9, 0], [4, 4, 3, 7, 0], [4, 0, 0, 0, 0]])
    weights = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 0, 0, 0, 0]])
    square = (101 + 109 + 104 + 125 + 125) / 5
    found = masked_spread(states.astype("f4"), ids, weights)
    assert found == pytest.approx((2 + 0) / (2 + 1) / square)
    assert masked_spread(states[2:], ids[2:], weights[2:]) is None
    assert masked_spread(states, ids, 0 * weights) is None


def test_a_collapse_is_told_by_the_last_spread():
    """A collapse is reported unless the model has since recovered."""
    early = [row | {"masked_spread": 1e-5} for row in rows(7.0, 0.5, count=3)]
    early[0]["masked_spread"] = 0.3
    notes = monitor().notes(early)
    assert set(notes) == {"collapsed"}
    for remedy in ("learning_rate", "bias_correction", "warmup", "beta_2"):
        assert remedy in notes["collapsed"]
    for healthy in (0.3, COLLAPSED_SPREAD):
        early[-1]["masked_spread"] = healthy
        assert not monitor().notes(early)


def test_a_healthy_model_spreads_its_states():
    """The spread of a healthy model's masked states is above the limit.

    The states are float32, because TensorFlow's CPU collectives do not support
    bfloat16.
    """
    config = goldens.variant("shared", num_hidden_layers=1)
    weights = goldens.random_weights(config)
    model = goldens.build(config, weights, dtype="mixed_bfloat16")
    batch = goldens.random_inputs(config)
    batch["input_ids"][:, :4], batch["masked_lm_positions"][:] = 4, range(4)
    batch["masked_lm_weights"] = np.ones([3, 4], np.float32)
    found = PretrainingObjective().masked_states(model, batch)
    assert found["states"].dtype == tf.float32
    assert found["states"].shape[:2] == (3, 4)
    found = {name: np.asarray(value) for name, value in found.items()}
    assert masked_spread(**found) > COLLAPSED_SPREAD


@pytest.mark.parametrize("layers", [1, 3, None])
def test_the_spread_is_that_of_the_trained_depth(layers):
    """The states are the outputs of the layers that the phase trains."""
    config = goldens.variant("shared")
    weights = goldens.random_weights(config)
    batch = goldens.random_inputs(config)
    batch["masked_lm_weights"] = np.ones([3, 4], np.float32)
    batch["symbol_weights"] = np.ones([3, 10], np.float32)
    text, sounds = goldens.build(config, weights), AlbertForPhonemes(config, 7)
    for objective, model in (
        (PretrainingObjective(layers), text),
        (PhonemeObjective(4, layers), sounds),
    ):
        inputs = {k: batch[k] for k in ("input_ids", "input_mask")}
        if model is text:
            names = "segment_ids", "masked_lm_positions"
            inputs |= {k: batch[k] for k in names}
        expected = model(**inputs, layers=layers)["sequence_output"]
        found = objective.masked_states(model, batch)["states"]
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow
@eagerly()
def test_a_collapse_is_told_once_the_model_has_settled(
    data_dir, config, tmp_path, capsys, monkeypatch
):
    """A collapse is reported once in the log and once in the history.

    Each row of the history has the speed and its share of the peak.
    """
    monkeypatch.setattr(pretrain, "SETTLED_STEPS", 4)
    output = tmp_path / "model"
    settings = {"num_train_steps": 6, "num_warmup_steps": 2}
    settings |= {"eval_steps": 1000, "optimizer": "adamw"}
    settings |= {"learning_rate": 1.0, "peak_tflops": 2.0}
    run(data_dir, config[0], output, **settings)
    history = History.read(str(output))
    slots = read_metadata(data_dir).max_predictions_per_seq
    flops = training_flops(config[1], 16, slots)
    _, speeds = history.column("train", "examples_per_second")
    _, shares = history.column("train", "model_flops_utilization")
    assert shares == pytest.approx([x * flops / 2e12 for x in speeds])
    noted = [row for row in history.rows if row["split"] == HEALTH]
    assert [r["kind"] for r in noted if r["step"] == 6] == ["collapsed"]
    at, spreads = history.column("train", "masked_spread")
    assert at == [6] and spreads[0] < COLLAPSED_SPREAD
    warning = "Warning at step 6: The model has collapsed"
    assert capsys.readouterr().err.count(warning) == 1
