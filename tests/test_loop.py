"""The run: exact resume, clean stops, the best weights, health."""

import os
import shutil
import signal

import pytest
import tensorflow as tf
import tiny

from albert_tf import checkpoints, files
from albert_tf.errors import InputError
from albert_tf.history import History
from albert_tf.loop import Pace, Run, due, next_stop
from albert_tf.optimization import OptimizerConfig


def make_run(output_dir, evaluate=None, **kwargs):
    trainer = tiny.make_trainer(**kwargs)
    return Run(
        trainer,
        str(output_dir),
        tiny.train_batches,
        evaluate or (lambda: trainer.evaluate(tiny.eval_batches())),
        best_metric="mlm_accuracy",
    )


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    directory = tmp_path_factory.mktemp("unbroken")
    run = make_run(directory)
    run.train()
    return directory, tiny.values(run.trainer)


def test_a_resumed_run_ends_with_the_same_bits(unbroken, tmp_path):
    """Weights, slots and step equal those of a run that was not broken."""
    directory, expected = unbroken
    for path in directory.glob("ckpt-7.*"):
        shutil.copy(path, tmp_path)
    files.write_text(
        str(tmp_path / "checkpoint"), 'model_checkpoint_path: "ckpt-7"\n'
    )
    run = make_run(tmp_path)
    assert run.trainer.step == 7
    run.train()
    assert tiny.largest_difference(expected, tiny.values(run.trainer)) == 0.0


def test_a_half_written_checkpoint_is_not_picked_up(unbroken, tmp_path):
    """Data without an index, as a kill leaves them, do not count."""
    for path in unbroken[0].glob("ckpt-7.data*"):
        shutil.copy(path, tmp_path)
    assert checkpoints.latest(str(tmp_path)) is None


def test_sigterm_saves_and_returns(tmp_path):
    """A run told to stop saves at its step, and a later one goes on."""

    def evaluate():
        os.kill(os.getpid(), signal.SIGTERM)
        return {"mlm_accuracy": 0.5}

    run = make_run(tmp_path, evaluate)
    run.train()
    assert run.trainer.step == 10
    assert checkpoints.latest(str(tmp_path)).endswith("ckpt-10")


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    """The error names the steps and the last good checkpoint."""
    wild = OptimizerConfig(
        optimizer="adamw", learning_rate=1e30, num_warmup_steps=8
    )
    run = make_run(tmp_path, optimizer=wild, save_checkpoints_steps=1)
    with pytest.raises(InputError, match="between steps .*ckpt-"):
        run.train()
    good = checkpoints.latest(str(tmp_path))
    table = {n: tf.Variable(v) for n, v in tiny.values(run.trainer).items()}
    checkpoints.restore(good, table, ignore=())
    assert all(bool(tf.reduce_all(v == v)) for v in table.values())


def test_the_best_weights_are_kept(tmp_path):
    """`best/` holds the weights of the evaluation that was best, not last."""
    scores = iter([0.9, 0.1])
    seen = []

    def evaluate():
        seen.append(tiny.values(run.trainer))
        return {"mlm_accuracy": next(scores)}

    run = make_run(tmp_path, evaluate)
    run.train()
    checkpoints.restore_weights(run.trainer.model, str(tmp_path))
    found = tiny.values(run.trainer)
    for name in run.trainer.weights:
        assert (found[name] == seen[0][name]).all(), name


def test_the_history_holds_every_evaluation_once(unbroken, tmp_path):
    """Rows after the resumed step are dropped and measured again."""
    directory, _ = unbroken
    history = History(str(directory), 20)
    assert history.column("eval", "mlm_loss")[0] == [10, 20]
    assert len(History(str(directory), 10).column("eval", "loss")[0]) == 1
    assert (directory / "curves.png").stat().st_size > 5000


def test_stops_fall_on_every_cadence():
    """No stretch runs over an evaluation, a checkpoint or the end."""
    stops, step = [], 0
    while step < 20:
        step = next_stop(step, 20, 6, 7)
        stops.append(step)
    assert stops == [6, 7, 12, 14, 18, 20]
    assert due(20, 20, 7) and due(14, 20, 7) and not due(15, 20, 7)


def test_pace_aims_at_seconds():
    """The first stretch, which compiles, does not set the pace."""
    pace = Pace(fixed=0)
    assert pace.steps() == 1
    pace.measure(1, 30.0)
    pace.measure(2, 0.2)
    assert pace.steps() == 50
