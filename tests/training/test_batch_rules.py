"""Optimizer settings that are derived from the batch."""

import math

import pytest
from tiny_pretraining import Look, run

from albert_tf.base.errors import InputError
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.pretraining.pretraining_settings import (
    with_half_life,
    with_rate,
)
from albert_tf.training.training_config import TrainingConfig


def test_the_automatic_rate_is_the_square_root_rule(capsys):
    """At 4096 it is the paper's rate, and at a quarter of it half the rate."""
    auto = OptimizerConfig(learning_rate="auto")
    for batch, rate in ((4096, 0.00176), (1024, 0.00088), (64, 0.00022)):
        training = TrainingConfig(train_batch_size=batch)
        found = with_rate(auto, training).learning_rate
        assert found == pytest.approx(rate)
        assert f"sqrt({batch} / 4096) = {rate:g}" in capsys.readouterr().out
    fixed = OptimizerConfig(learning_rate=0.5)
    assert with_rate(fixed, training).learning_rate == 0.5


def test_the_automatic_rate_is_lambs():
    """`auto` is an error with AdamW, and so is any other word."""
    adamw = OptimizerConfig(learning_rate="auto", optimizer="adamw")
    with pytest.raises(InputError, match="optimizer=adamw"):
        with_rate(adamw, TrainingConfig())
    with pytest.raises(InputError, match="a number or one of auto"):
        OptimizerConfig(learning_rate="fast")


def test_half_of_the_second_moment_is_left_after_a_half_life(capsys):
    """This holds for any batch; without a half-life `beta_2` is unchanged."""
    ours = OptimizerConfig(beta_2=0.95)
    for tokens in (4096, 262_144, 3_000_000):
        found = with_half_life(ours, 3e6, tokens).beta_2
        assert found ** (3e6 / tokens) == pytest.approx(0.5)
        assert f"beta_2 is {found:.6g} instead" in capsys.readouterr().out
    assert with_half_life(ours, 0.0, 4096) is ours


def test_a_half_life_that_no_beta_2_has_is_refused():
    """A half-life is an error if its `beta_2` is out of range."""
    with pytest.raises(InputError, match="`beta_2` must be at most"):
        with_half_life(OptimizerConfig(), 1e12, 4096)


def test_a_run_counts_the_tokens_of_its_records(
    data_dir, config, tmp_path, capsys
):
    """They are batch times length, and `run.flags` has the half-life."""
    output = tmp_path / "model"
    seen = [Look(lambda run: None)]
    run(data_dir, config[0], output, beta_2_half_life=999.0, hooks=seen)
    length = config[1].max_position_embeddings
    beta_2 = math.exp(-math.log(2) * 8 * length / 999)
    assert f"beta_2 is {beta_2:.6g} instead of 0.999" in capsys.readouterr().out
    flags = (output / "run.flags").read_text()
    assert "--beta_2_half_life=999.0\n" in flags and "--beta_2=0.999\n" in flags
