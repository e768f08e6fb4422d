"""Averaged weights in pretraining; the formula is tested with fine-tuning."""

import numpy as np
import tiny
from tiny_pretraining import run, values

from albert_tf.training import checkpoints
from albert_tf.training.weight_average import AVERAGE


def table(prefix):
    """Return {name: value} of a checkpoint."""
    read = checkpoints.reader(prefix)
    return {name: read(name) for name in checkpoints.read_table(prefix)}


def test_the_average_is_evaluated_and_read_by_others(
    data_dir, config, tmp_path
):
    """`best/` has it at each checkpoint, also of a run that was resumed."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    settings = {"ema_decay": 0.5, "save_checkpoints_steps": 2}
    metrics = run(data_dir, config[0], whole, **settings)
    for stop_step in (2, 4):
        run(data_dir, config[0], resumed, **settings, stop_step=stop_step)
        kept = table(checkpoints.for_inference(str(resumed)))
        state = values(resumed)
        average = {name: state[f"{AVERAGE}{name}"] for name in kept}
        assert tiny.largest_difference(kept, average) == 0.0
        assert tiny.largest_difference(kept, state) > 1e-4
    for name, value in values(whole).items():
        np.testing.assert_array_equal(value, state[name], name)
    alone = run(
        data_dir, config[0], whole, **settings, do_train=False, do_eval=True
    )
    assert alone == metrics
