"""A collapsed model is told early, through the whole of a run."""

import goldens
import numpy as np
import pytest
import tensorflow as tf
from tiny_pretraining import run

from albert_tf.model.albert import AlbertForPretraining
from albert_tf.training.history import HEALTH, History
from albert_tf.training.objectives import masked_states


def test_what_workers_gather_is_no_bfloat16():
    """TensorFlow's collectives of CPUs have float32 and integers alone."""
    inputs = goldens.random_inputs(goldens.CONFIG)
    batch = inputs | {"masked_lm_weights": np.ones([3, 4], np.float32)}
    model = AlbertForPretraining(goldens.CONFIG, dtype="mixed_bfloat16")
    states = masked_states(model, batch)["states"]
    assert states.dtype == tf.float32 and states.shape[:2] == (3, 4)


@pytest.mark.parametrize(
    "rate, kinds", [(1.0, ["collapsed"]), (0.001, [])], ids=["wild", "mild"]
)
def test_a_collapse_is_told_a_hundred_steps_after_the_warmup(
    data_dir, config, tmp_path, capsys, rate, kinds
):
    """Once, in the log and the history; a healthy model is none."""
    output = tmp_path / "model"
    settings = {"num_train_steps": 102, "num_warmup_steps": 2}
    settings |= {"eval_steps": 1000, "optimizer": "adamw"}
    run(data_dir, config[0], output, **settings, learning_rate=rate)
    history = History.read(str(output))
    noted = [row for row in history.rows if row["split"] == HEALTH]
    assert [row["kind"] for row in noted if row["step"] == 102] == kinds
    at, spreads = history.column("train", "masked_spread")
    assert at == [102]
    assert (spreads[0] < 1e-6) is (kinds != [])
    said = "Warning at step 102: The model has collapsed"
    assert capsys.readouterr().err.count(said) == len(kinds)
