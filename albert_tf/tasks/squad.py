"""SQuAD 1.1 (https://arxiv.org/abs/1606.05250) and 2.0 (1806.03822)."""

import dataclasses

from albert_tf.tasks.question_answering import DEFAULTS, QuestionAnswering

ROWS = (
    QuestionAnswering(
        name="squad-1.1",
        folder="squad",
        splits={
            "train": {"": "train-v1.1.json"},
            "eval": {"": "dev-v1.1.json"},
        },
        scoring="squad1",
        impossible=False,
    ),
    QuestionAnswering(
        name="squad-2.0",
        folder="squad",
        splits={
            "train": {"": "train-v2.0.json"},
            "eval": {"": "dev-v2.0.json"},
        },
        scoring="squad2",
        impossible=True,
        config=dataclasses.replace(DEFAULTS, answer_head="beam"),
    ),
)
