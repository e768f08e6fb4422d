"""When a question has no answer, and how likely the answers are."""

import dataclasses

import numpy as np
import pytest
from exporting import close, model_dir, strings

from albert_tf.serving.base import ServingConfig
from albert_tf.serving.registry import load_server
from albert_tf.tasks.config import TaskConfig
from albert_tf.tasks.registry import find

CONTEXT = "the teacher reads letters in the small garden over the river"


@pytest.mark.parametrize(
    ("threshold", "answered"), [(-1e9, False), (1e9, True)]
)
def test_the_threshold_of_fine_tuning_decides(
    pretrained_dir, tmp_path, threshold, answered
):
    """An answer is withheld above it; probabilities are those of scores."""
    config = TaskConfig(
        max_seq_length=24,
        doc_stride=5,
        max_query_length=6,
        answer_head="simple",
        null_score_diff_threshold=threshold,
    )
    task = dataclasses.replace(find("squad-2.0"), impossible=True)
    folder = tmp_path / "model"
    model_dir(folder, pretrained_dir, task.with_config(config))
    server = load_server(str(folder), ServingConfig())
    found = server.answer(strings(["who reads"]), strings([CONTEXT]))
    best = found["answers"][0, 0].numpy()
    assert best
    assert found["answer"][0].numpy() == (best if answered else b"")
    weights = np.exp(found["scores"][0] - found["scores"][0, 0])
    close(found["probabilities"][0], weights / weights.sum())
