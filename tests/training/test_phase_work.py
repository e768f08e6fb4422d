"""What is left of a run whose phases cost differently."""

import dataclasses

import pytest
import tiny

from albert_tf.data.records.metadata import Metadata
from albert_tf.model.config import training_flops
from albert_tf.training.budget.phase_work import work_ahead
from albert_tf.training.pretraining.phases import Phase
from albert_tf.training.runs.run import Run

RECORDS = Metadata(16, 3, 50, "", {})
CONFIG = dataclasses.replace(tiny.CONFIG, num_hidden_layers=4)
# The deep steps are the more, so that a mean is no middle.
PHASES = (
    Phase(0, 40, 8, metadata=RECORDS, layers=1),
    Phase(40, 100, 6, metadata=RECORDS, layers=4),
)


def flops(layers):
    """Return what an example costs at a depth."""
    return training_flops(CONFIG.with_layers(layers), 16, 3)


@pytest.mark.parametrize("place, shallow", [(0, 40), (10.5, 29.5), (60, 0)])
def test_steps_ahead_count_by_what_they_cost(place, shallow):
    """Each by its own depth and batch, beside a step of the phase that runs."""
    deep = min(60, 100 - place)
    now, then = 8 * flops(1), 6 * flops(4)
    mean = (shallow * now + deep * then) / (shallow + deep)
    ahead = work_ahead(PHASES, place, PHASES[0], CONFIG)
    assert ahead == pytest.approx(mean / now)


def test_at_the_end_and_without_phases_a_step_is_a_step():
    """So that a run that is over, and one that is not told, can be asked."""
    assert work_ahead(PHASES, 100, PHASES[1], CONFIG) == 1
    plain = (Phase(0, 10, 4),)
    assert work_ahead(plain, 3, plain[0], CONFIG) == 1


def test_a_run_counts_what_is_left_by_its_phases(tmp_path):
    """A run whose deeper steps are to come has more than its steps left."""
    trainer = tiny.make_trainer(config=CONFIG, num_train_steps=100)
    told = Run(trainer, str(tmp_path / "told"), phases=PHASES)
    plain = Run(trainer, str(tmp_path / "plain"))
    assert plain.steps_left == 100
    shallow, deep = 40 * 8 * flops(1), 60 * 6 * flops(4)
    expected = (shallow + deep) / (8 * flops(1))
    assert told.steps_left == pytest.approx(expected) and expected > 150
