"""The phases of a run: lengths, shapes, positions and depths."""

import dataclasses
from unittest import mock

import pytest
import tiny

from albert_tf.data.records.metadata import Metadata
from albert_tf.training import checkpoints, distribution, run
from albert_tf.training.clock import Pace
from albert_tf.training.phases import Phase
from albert_tf.training.run import Run

PHASE = Phase(0, 20, 12, metadata=Metadata(8, 3, 50, "", {}))


@pytest.mark.parametrize(("later", "steps"), [(0, 3), (1, 2), (2, 1), (3, 1)])
def test_each_later_phase_is_left_a_step(later, steps, monkeypatch):
    """A phase leaves one step per later phase, but runs at least one itself.

    The duration of a checkpoint, not of an evaluation, limits the steps.
    """
    monkeypatch.setattr(distribution, "of_chief", lambda strategy, n: n)
    seconds = {"checkpoint": 7.0, "evaluation": 3.0}
    own = mock.Mock(step=10, end=13, last=13, seconds=seconds)
    own._ahead = [None] * later
    own.clock.most.return_value = own.clock.steps_to.return_value = 9
    own.pace.steps.return_value = 5
    assert run.Run._window_steps(own, []) == steps
    own.pace.steps.assert_called_once_with(7.0)


def test_each_shape_compiles_once():
    """The clock learns which steps compile, and how many shapes are left.

    A phase with the shape of an earlier phase does not compile.
    """
    own = mock.Mock(compiled=set())
    for shape in ("a", "b", "a"):
        own.pace, own.phase.shape = Pace(0), shape
        for seconds in (9.0, 5.0):
            run.Run._measure(own, 2, seconds)
    calls = [x.args for x in own.clock.measure.call_args_list]
    assert calls == [
        *((2, 9.0, True, True), (2, 5.0, False, False)),
        *((2, 9.0, True, True), (2, 5.0, False, False)),
        *((2, 9.0, True, False), (2, 5.0, False, False)),
    ]
    own._ahead = [mock.Mock(shape=shape) for shape in "bcdc"]
    run.Run._turn(own, over=True)
    given = own.step, own.seconds, True, 4, 2
    own.clock.turn.assert_called_once_with(*given)


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, -1])
def test_an_older_checkpoint_names_folders(tmp_path, order):
    """Positions that an older checkpoint stores by folder are restored.

    If folders have equal records, these continue after the last example read.
    """
    trainer = tiny.new_trainer()
    folders = {"a": 24, "b": 0, "gone": 8}
    read = {name: folders[name] for name in [*folders][::order]}
    checkpoints.save(str(tmp_path), trainer.state(), 2, facts={"read": read})
    phases = [
        dataclasses.replace(PHASE, end=end, data_dir=name, layers=1)
        for name, end in [("a", 10), ("b", 20)][::order]
    ]
    made = Run(trainer, str(tmp_path), phases=phases)
    next(made.windows(lambda *_, **sizes: tiny.train_batches(**sizes)))
    assert made.read[PHASE.records] == 24 + PHASE.batch_size


def test_a_restored_step_is_in_its_phase(tmp_path):
    """A run that takes its step from another run begins in the step's phase.

    With `init_state=run`, the step is restored after the run is created.
    """
    ends = ((0, 2), (2, 4), (4, 20))
    phases = [
        dataclasses.replace(PHASE, begin=a, end=b, layers=1) for a, b in ends
    ]
    made = Run(tiny.new_trainer(), str(tmp_path), phases=phases)
    made.trainer.optimizer.iterations.assign(8)
    next(made.windows(lambda *_, **sizes: tiny.train_batches(**sizes)))
    assert made.step == 9
    assert (made.phase, made.phase_begun) == (phases[2], 4)


def test_a_stop_skips_no_phase(tmp_path, monkeypatch):
    """A run that stops early is in the phase of its last step.

    Only the end of the schedule hurries phases. The steps run at the depth of
    their phase.
    """
    depths = []
    phases = [
        dataclasses.replace(PHASE, begin=a, end=b, layers=b)
        for a, b in ((0, 2), (2, 4), (4, 20))
    ]
    trainer = tiny.new_trainer(stop_step=3)
    monkeypatch.setattr(
        trainer, "at_depth", lambda layers: depths.append(layers) or trainer
    )
    made = Run(trainer, str(tmp_path), phases=phases)
    batches = made.windows(lambda *_, **sizes: tiny.train_batches(**sizes))
    assert [window.steps for window in batches] == [1, 1, 1]
    assert made.phase == phases[1] and made.phase_begun == 2
    assert depths == [2, 4]
