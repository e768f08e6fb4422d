"""The learning rate `auto`, which the batch size determines."""

import pytest

from albert_tf.base.errors import InputError
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.schedules import with_rate
from albert_tf.training.training_config import TrainingConfig


def test_the_automatic_rate_is_the_square_root_rule(capsys):
    """The rate `auto` is proportional to the square root of the batch size.

    For a batch size of 4096, it is the learning rate of the ALBERT paper.
    """
    auto = OptimizerConfig(learning_rate="auto")
    for batch, rate in ((4096, 0.00176), (1024, 0.00088), (64, 0.00022)):
        training = TrainingConfig(train_batch_size=batch)
        found = with_rate(auto, training).learning_rate
        assert found == pytest.approx(rate)
        assert f"sqrt({batch} / 4096) = {rate:g}" in capsys.readouterr().out
    fixed = OptimizerConfig(learning_rate=0.5)
    assert with_rate(fixed, training).learning_rate == 0.5


def test_the_automatic_rate_is_lambs():
    """The rate `auto` requires LAMB; no other word is a legal rate."""
    adamw = OptimizerConfig(learning_rate="auto", optimizer="adamw")
    with pytest.raises(InputError, match="optimizer=adamw"):
        with_rate(adamw, TrainingConfig())
    with pytest.raises(InputError, match="a number or one of auto"):
        OptimizerConfig(learning_rate="fast")
