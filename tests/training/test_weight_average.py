"""Averaged weights in pretraining; tests of fine-tuning check the formula."""

import numpy as np
import pytest
import tiny
from tiny_pretraining import Look, assert_same_bits, run, table, values

from albert_tf.base.errors import InputError
from albert_tf.training import checkpoints
from albert_tf.training.optimizer import AVERAGE, OptimizerConfig


@pytest.mark.slow
def test_the_average_is_evaluated_and_read_by_others(
    data_dir, config, tmp_path
):
    """At each checkpoint, even after a resume, `best/` has averaged weights."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    settings = {"ema_decay": 0.5, "save_checkpoints_steps": 2}
    metrics = run(data_dir, config[0], whole, **settings)
    for stop_step in (2, 4):
        run(data_dir, config[0], resumed, **settings, stop_step=stop_step)
        stored = table(checkpoints.for_inference(str(resumed)))
        state = values(resumed)
        average = {name: state[f"{AVERAGE}{name}"] for name in stored}
        assert tiny.largest_difference(stored, average) == 0.0
        assert tiny.largest_difference(stored, state) > 1e-4
    assert_same_bits(whole, resumed)
    alone = run(
        data_dir, config[0], whole, **settings, do_train=False, do_eval=True
    )
    assert alone == metrics


@pytest.mark.slow
def test_an_average_can_begin_late_but_not_end(data_dir, config, tmp_path):
    """An average can begin at a checkpoint, but cannot be dropped later.

    The same rule applies in another folder with `init_state=run`.
    """
    settings = {"data_dir": data_dir, "config_file": config[0]}
    settings |= {"output_dir": tmp_path, "save_checkpoints_steps": 3}
    run(**settings, stop_step=3)
    weights, seen = values(tmp_path), []

    def begun(run):
        seen.append(run.step)
        for name, mean in run.trainer.optimizer.average.means.items():
            np.testing.assert_array_equal(mean.numpy(), weights[name], name)

    look = {"ema_decay": 0.5, "hooks": [Look(begun)], "stop_step": 3}
    source = {"init_checkpoint": str(tmp_path), "init_state": "run"}
    elsewhere = settings | source | {"output_dir": tmp_path / "elsewhere"}
    run(**elsewhere, **look)
    run(**settings, **look)
    assert seen == [3, 3]
    run(**settings, ema_decay=0.5)
    assert any(name.startswith(AVERAGE) for name in values(tmp_path))
    elsewhere["output_dir"] = tmp_path / "without"
    for how in (settings, elsewhere):
        with pytest.raises(InputError, match="`ema_decay` must be set"):
            run(**how, do_train=False, do_eval=True)


def test_a_model_without_a_step_has_no_average():
    """Before the first step, the weights themselves are evaluated."""
    trainer = tiny.make_trainer(optimizer=OptimizerConfig(ema_decay=0.5))
    before = {n: v.numpy() for n, v in trainer.weights.items()}
    with trainer.evaluated_weights():
        for name, variable in trainer.weights.items():
            np.testing.assert_array_equal(variable.numpy(), before[name], name)
