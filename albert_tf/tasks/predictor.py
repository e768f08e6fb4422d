"""Answers to queries, whatever computes the outputs of a model.

Keras's `predict`, a LiteRT file and an ONNX file differ in one function. This
module needs NumPy alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from albert_tf.tasks.features import Features
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import Tokenizer


class Predictor:
    """A task with a tokenizer and a model.

    Args:
      task: what is predicted.
      tokenizer: the model's.
      run: returns the head's outputs {name: [N, ...]} for all rows of features.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Tokenizer,
        run: Callable[[Features], dict[str, np.ndarray]],
    ):
        self.task, self.tokenizer, self.run = task, tokenizer, run

    def predictions(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Return the prediction of each example."""
        features = self.task.features(examples, self.tokenizer)
        return self.task.predictions(examples, self.run(features), features)

    def __call__(self, queries: Sequence[dict], top: int = 5) -> list[dict]:
        """Return the answers to queries, as JSON has them.

        Args:
          queries: {field: value} each; see `Task.fields`.
          top: most answers to a question.
        """
        task = self.task
        examples = [task.example(**query) for query in queries]
        pairs = zip(queries, self.predictions(examples), strict=True)
        return [task.answer(query, found, top) for query, found in pairs]
