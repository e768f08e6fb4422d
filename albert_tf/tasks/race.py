"""RACE, https://arxiv.org/abs/1704.04683, in the folders of its release."""

from albert_tf.tasks.choice_files import Layout
from albert_tf.tasks.multiple_choice import MultipleChoice
from albert_tf.tasks.task import splits_of


def race(name: str, *levels: str) -> MultipleChoice:
    """Return the row of some levels of RACE."""
    return MultipleChoice(
        name=name,
        folder="RACE",
        splits=splits_of("train", "dev", "test"),
        layout=Layout("race", levels=levels),
        number=4,
    )


ROWS = (
    race("race", "middle", "high"),
    race("race-middle", "middle"),
    race("race-high", "high"),
)
