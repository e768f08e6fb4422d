"""The steps at which a run returns to Python: cadence, pace, time limit."""

import time

import pytest

from albert_tf.training.clock import Pace, next_stop
from albert_tf.training.hooks import StopInTime


@pytest.mark.parametrize(
    "elapsed, spent", [(3000.0, False), (3540.0, True), (3700.0, True)]
)
def test_a_budget_leaves_room_for_a_stretch_and_its_checkpoint(elapsed, spent):
    """A run ends if 30 s of steps and two saves do not fit in the time left."""
    limit = StopInTime(1.0)
    limit.start = time.monotonic() - elapsed
    limit.longest, limit.saving = 30.0, 20.0
    assert limit.spent() is spent


def test_stops_fall_on_every_cadence():
    """Windows of steps end at each evaluation, each checkpoint and the end."""
    stops, step = [], 0
    while step < 20:
        step = next_stop(step, 20, [6, 7])
        stops.append(step)
    assert stops == [6, 7, 12, 14, 18, 20]


def test_pace_aims_at_seconds():
    """A window of steps lasts about 5 s, and has at most 1,000 steps.

    The first steps, which include compilation, do not affect the pace.
    """
    pace = Pace(fixed=0)
    assert pace.steps() == 1
    pace.measure(1, 30.0)
    assert pace.seconds == 0 and pace.steps() == 2
    pace.measure(2, 0.2)
    assert pace.steps() == 50
    pace.measure(1000, 0.1)
    assert pace.steps() == 1000  # SIGTERM is not handled during them
    pace.measure(2, 20.0)
    assert pace.steps() == 1


@pytest.mark.parametrize("save, steps", [(3, 50), (27, 30), (28, 20), (60, 10)])
def test_a_slow_checkpoint_shortens_a_stretch(save, steps):
    """Steps and a checkpoint fit into the 30 s that follow SIGTERM.

    Each step takes 0.1 s; at least 10 steps are run at once.
    """
    pace = Pace(fixed=0, seconds=0.1, compiled=True)
    assert pace.steps(save) == steps
    assert Pace(fixed=7).steps(save) == 7
