"""The lengths to which batches are padded do not affect training."""

import numpy as np
import pytest
import tensorflow as tf
from tiny_runs import build, run, weights

from albert_tf.finetuning import finetuning_trainer
from albert_tf.finetuning.evaluation import bucketed
from albert_tf.finetuning.finetuning_trainer import make_batches, training_step
from albert_tf.model.ops import CompiledForTpu
from albert_tf.tasks.features import Features


@pytest.mark.parametrize(
    ("bucketing", "jit_compile", "step"),
    [
        ("none", None, 0),
        ("evaluation", None, 1),
        ("all", False, 1),
        ("evaluation", True, 0),
        ("all", True, 16),
    ],
)
def test_lengths_are_few_where_each_is_compiled(bucketing, jit_compile, step):
    """Batch lengths are rounded up to multiples of a step, which flags set.

    A step of 0 means that all lengths are equal. With XLA, other steps are
    larger than without it; on a TPU, the step is 0.
    """
    s = build(
        output_dir="out",
        model_dir="in",
        do_train=True,
        length_bucketing=bucketing,
        jit_compile=jit_compile,
    )
    here = tf.distribute.get_strategy()
    assert training_step(s.run, s.training, here, 200) == step
    assert training_step(s.run, s.training, CompiledForTpu(), 200) == 0
    for part, settings in (("train", {"all"}), ("eval", {"all", "evaluation"})):
        assert bucketed(s.run, here, part) == (bucketing in settings)
        assert not bucketed(s.run, CompiledForTpu(), part)


@pytest.mark.parametrize(("bucketing", "group"), [("none", 0), ("all", 6)])
def test_a_task_has_a_part_of_each_batch(bucketing, group, monkeypatch):
    """A task's batch size and position are proportional to the task's share.

    Each task has its own seed.
    """
    monkeypatch.setattr(
        finetuning_trainer, "training_batches", lambda _, **how: how
    )
    s = build(
        output_dir="out",
        model_dir="in",
        do_train=True,
        length_bucketing=bucketing,
        random_seed=5,
    )
    row = np.zeros(3, np.int32), 3
    features = Features.from_rows([row], {}, 0, 16)
    here = tf.distribute.get_strategy()
    make = make_batches(features, s.run, s.training, here, 6, 2)
    assert make(start=32, num_shards=2, shard=1, batch_size=8) == {
        "batch_size": 3,
        "seed": 7,
        "start": 12,
        "num_shards": 2,
        "shard": 1,
        "group": group,
        "step": 0 if bucketing == "none" else 1,
    }


@pytest.mark.slow
def test_cut_batches_train_to_the_same_weights(shallow, opinions, tmp_path):
    """Batches with less padding lead to the same weights, up to rounding."""
    values = {k: opinions[k] for k in ("task", "train_file")}
    values |= {"model_dir": shallow, "num_train_steps": 10}
    values |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    for how in ("none", "evaluation"):
        output = str(tmp_path / how)
        run(do_train=True, output_dir=output, length_bucketing=how, **values)
    for name in ("classifier/kernel", "albert/embeddings/word_embeddings"):
        padded, cut = (
            weights(str(tmp_path / how), name) for how in ("none", "evaluation")
        )
        assert np.abs(padded).max() > 0.01
        np.testing.assert_allclose(cut, padded, atol=2e-4)
