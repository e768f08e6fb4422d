"""SQuAD 1.1 (https://arxiv.org/abs/1606.05250) and 2.0 (1806.03822)."""

import dataclasses

from albert_tf.tasks.question_answering import DEFAULTS, QuestionAnswering


def squad(version: str, **more) -> QuestionAnswering:
    """Return the row of a version."""
    return QuestionAnswering(
        name=f"squad-{version}",
        folder="squad",
        splits={
            "train": {"": f"train-v{version}.json"},
            "eval": {"": f"dev-v{version}.json"},
        },
        **more,
    )


BEAM = dataclasses.replace(DEFAULTS, answer_head="beam")

ROWS = (
    squad("1.1", scoring="squad1", impossible=False),
    squad("2.0", scoring="squad2", impossible=True, config=BEAM),
)
