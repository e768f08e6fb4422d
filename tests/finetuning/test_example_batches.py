"""The results of training do not depend on the lengths of batches."""

import numpy as np
import pytest
import tensorflow as tf
from tiny_runs import build, run, weights

from albert_tf.finetuning.finetuning_trainer import training_step
from albert_tf.model.ops import CompiledForTpu


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
    """If XLA compiles each length, lengths are rounded up further."""
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


@pytest.mark.slow
def test_cut_batches_train_to_the_same_weights(shallow, opinions, tmp_path):
    """Shorter batches lead to equal weights, up to rounding."""
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
