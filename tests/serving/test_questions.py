"""When a question has no answer, and how likely the answers are."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from exporting import close, concrete, model_dir, strings

from albert_tf.serving.encoder import ServingConfig
from albert_tf.serving.model_servers import load_server
from albert_tf.tasks.registry import find
from albert_tf.tasks.task_config import TaskConfig

CONTEXT = "the teacher reads letters in the small garden over the river"


def served(pretrained_dir, folder, **settings):
    """Return the server of a question model with random weights."""
    config = TaskConfig(
        max_seq_length=24,
        doc_stride=5,
        max_query_length=6,
        answer_head="simple",
        **settings,
    )
    task = dataclasses.replace(find("squad-2.0"), impossible=True)
    model_dir(folder, pretrained_dir, task.with_config(config))
    return load_server(str(folder), ServingConfig())


@pytest.mark.parametrize(
    ("threshold", "answered"), [(-1e9, False), (1e9, True)]
)
def test_the_threshold_of_fine_tuning_decides(
    pretrained_dir, tmp_path, threshold, answered
):
    """An answer is withheld above it; probabilities are those of scores."""
    server = served(
        pretrained_dir, tmp_path / "model", null_score_diff_threshold=threshold
    )
    found = server.call("answer", strings(["who reads"]), strings([CONTEXT]))
    best = found["answers"][0, 0].numpy()
    assert best
    assert found["answer"][0].numpy() == (best if answered else b"")
    weights = np.exp(found["scores"][0] - found["scores"][0, 0])
    close(found["probabilities"][0], weights / weights.sum())


def test_each_question_has_its_context(pretrained_dir, tmp_path):
    """Two questions for one context are an error that names both."""
    server = served(pretrained_dir, tmp_path / "model")
    answer = concrete(server, "answer")["answer"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many rows"):
        answer(question=strings(["who", "what"]), context=strings([CONTEXT]))
