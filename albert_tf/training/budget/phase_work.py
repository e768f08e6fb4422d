"""What the steps of a run cost: the FLOPs of its phases."""

from collections.abc import Sequence

from albert_tf.model.config import AlbertConfig, training_flops
from albert_tf.training.pretraining.phases import Phase


def step_work(phase: Phase, config: AlbertConfig) -> float:
    """Return the FLOPs of a step of a phase; 1 where its data are unknown."""
    metadata = phase.metadata
    if metadata is None:
        return 1.0
    return phase.batch_size * training_flops(
        config.with_layers(phase.layers),
        metadata.max_seq_length,
        metadata.max_predictions_per_seq,
    )


def mean_work(
    phases: Sequence[Phase], place: float, config: AlbertConfig
) -> float:
    """Return the mean FLOPs of a step from a place in the schedule on."""
    steps = [
        max(phase.last_step - max(phase.first_step, place), 0.0)
        for phase in phases
    ]
    works = [step_work(phase, config) for phase in phases]
    whole = sum(n * work for n, work in zip(steps, works, strict=True))
    return whole / sum(steps) if sum(steps) else works[-1]


def work_ahead(
    phases: Sequence[Phase], place: float, now: Phase, config: AlbertConfig
) -> float:
    """Return how many steps of one phase a mean step ahead is worth."""
    return mean_work(phases, place, config) / step_work(now, config)
