"""The collapse of a model is reported early in a run."""

import goldens
import numpy as np
import tensorflow as tf
from tiny_pretraining import run
from tiny_runs import eagerly

from albert_tf.training.evaluator import PretrainingObjective
from albert_tf.training.health import COLLAPSED_SPREAD, masked_spread
from albert_tf.training.history import HEALTH, History
from albert_tf.training.pretraining import pretrain


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
    found = PretrainingObjective.masked_states(model, batch)
    assert found["states"].dtype == tf.float32
    assert found["states"].shape[:2] == (3, 4)
    found = {name: np.asarray(value) for name, value in found.items()}
    assert masked_spread(**found) > COLLAPSED_SPREAD


@eagerly()
def test_a_collapse_is_told_once_the_model_has_settled(
    data_dir, config, tmp_path, capsys, monkeypatch
):
    """A collapse is reported once in the log and once in the history."""
    monkeypatch.setattr(pretrain, "SETTLED_STEPS", 4)
    output = tmp_path / "model"
    settings = {"num_train_steps": 6, "num_warmup_steps": 2}
    settings |= {"eval_steps": 1000, "optimizer": "adamw"}
    run(data_dir, config[0], output, **settings, learning_rate=1.0)
    history = History.read(str(output))
    noted = [row for row in history.rows if row["split"] == HEALTH]
    assert [r["kind"] for r in noted if r["step"] == 6] == ["collapsed"]
    at, spreads = history.column("train", "masked_spread")
    assert at == [6] and spreads[0] < COLLAPSED_SPREAD
    said = "Warning at step 6: The model has collapsed"
    assert capsys.readouterr().err.count(said) == 1
