"""The summary that a run prints before its first step."""

import dataclasses

import pytest
import tiny

from albert_tf.data.records.metadata import Metadata
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.phases import Phase
from albert_tf.training.run import describe_run

PHASES = [Phase(0, 20, 16, metadata=Metadata(8, 3, 50, "", {}))]


@pytest.mark.parametrize(
    "name, replicas, said",
    [
        ("lamb", 1, "1 replica, batches of 16 x 8 tokens, lamb at 0.5"),
        ("adamw", 2, "2 replicas, batches of 16 x 8 tokens, adamw at 0.5"),
    ],
)
def test_only_lamb_is_said_to_have_trust_ratios(name, replicas, said, capsys):
    """The summary mentions trust ratios only if the optimizer is LAMB.

    For one replica, the summary uses the singular.
    """
    config = OptimizerConfig(
        optimizer=name, learning_rate=0.5, num_warmup_steps=2
    )
    trainer = tiny.new_trainer(replicas, optimizer=config)
    describe_run(trainer, PHASES)
    first, second = capsys.readouterr().out.splitlines()
    size = sum(weight.numpy().size for weight in trainer.weights.values())
    assert first == f"{size:,} parameters, {said}"
    assert second.startswith("Without weight decay")
    assert ("trust ratio" in second) == (name == "lamb")
    count, names = second.split(": ")[1:]
    names = names.split(", ")
    assert count == f"{len(names)} of {len(trainer.trained)} variables"
    for more in (
        PHASES * 2,
        [dataclasses.replace(*PHASES, masked_lm_prob=0.1)],
    ):
        describe_run(trainer, more)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3 + len(more)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    "start, warmup, late",
    [(0, 10, False), (3, 8, True), (0, 9, False), (0, 3125, True)],
)
def test_a_warmup_that_outlasts_the_run_is_said(start, warmup, late, capsys):
    """A warning is printed only if a run ends before warm-up is complete."""
    config = OptimizerConfig(
        learning_rate=0.5, start_warmup_step=start, num_warmup_steps=warmup
    )
    trainer = tiny.new_trainer(optimizer=config, num_train_steps=10)
    describe_run(trainer, PHASES)
    said = f"0.5 after {start + warmup:,} steps of warm-up, but the run ends"
    assert (said in capsys.readouterr().out) == late
