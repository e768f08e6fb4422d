"""The library's models, one for each kind of answer.

Shapes: B batch, C classes, choices or predicted numbers, H hidden width, N
examples.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from albert_tf.library.task_model import TaskModel
from albert_tf.model.layers import registered
from albert_tf.tasks.tagged_words import split_words
from albert_tf.text.packing import checked_texts


class ClassModel(TaskModel):
    """A model that predicts classes; `predict` returns probabilities."""

    def values_of_outputs(self, outputs):
        return self.task.probabilities(outputs)

    def predict_proba(self, x=(), *extra_columns, **kwargs) -> np.ndarray:
        """Return probabilities, as `predict` does."""
        return self.predict(x, *extra_columns, **kwargs)


@registered
class Classifier(ClassModel):
    """A model that predicts one class, or several if `multilabel` is set.

    Labels are class names or numbers. With `multilabel`, labels are lists of
    names, or rows with a 0 or 1 for each class. Labels can also be rows of
    probabilities, one-hot or soft.

    `predict` returns probabilities, float32 [N, C]; `classify` returns names.
    The network's outputs are logits [B, C].

    Options of `load`: `pairs`, for text pairs, and `multilabel`.
    """

    kinds = ("classification", "multilabel")
    options = ("pairs", "multilabel")

    def classify(self, *x, **kwargs) -> list:
        """Return each example's label, or a tuple of its labels."""
        return self._answers(
            lambda predictions: [p.label for p in predictions], *x, **kwargs
        )


@registered
class PairClassifier(Classifier):
    """A `Classifier` for pairs of texts: two columns, or a list of pairs."""

    @classmethod
    def load(cls, path, labels=None, **kwargs):
        """Load the model in a folder; see `TaskModel.load`."""
        return super().load(path, labels, **{"pairs": True} | kwargs)


@registered
class Regressor(TaskModel):
    """A model that predicts float32 numbers: one [N] or several [N, C].

    For several numbers, pass their names to `load` as `labels`, or their count
    as `num_labels`. The labels for `fit` are then rows of numbers.

    Options of `load`: `pairs`, for text pairs.
    """

    kinds, options = ("regression",), ("pairs",)

    def values_of_outputs(self, outputs):
        return self.task.numbers(outputs)


@registered
class Embedder(TaskModel):
    """A model that computes a vector, by default of length 1, for each text.

    The cosine between two vectors measures how similar their texts are.

    `fit` learns from single texts, with two crops of each text as a pair; from
    columns of pairs or triplets (anchor, positive, negative); or from pairs
    with scores. If the data are in memory, no two pairs (without scores) or
    triplets in a shuffled batch share a text. `predict` and `encode` return
    float32 [N, H], which `albert_tf.search` and `similarity` compare.
    """

    kinds = ("embedding",)

    def values_of_outputs(self, outputs):
        vectors = outputs["embedding"]  # [B, H], or [B, texts of an example, H]
        return vectors if vectors.ndim == 2 else vectors[:, 0]

    def encode(self, texts: Sequence[str], **kwargs) -> np.ndarray:
        """Return float32 vectors [N, H] of texts; `verbose` is 0 by default."""
        return self.predict(texts, **{"verbose": 0} | kwargs)


@registered
class MultipleChoice(ClassModel):
    """A model that selects one of several choices.

    `context`, `question` and `choices` are the input columns. Labels are
    indices of choices. `predict` returns probabilities, float32 [N, C],
    with 0 for missing choices.
    """

    kinds = ("multiple_choice",)

    def with_task_inputs(self, batch):
        mask = tf.ones(tf.shape(batch["input_ids"])[:2])
        return {"choice_mask": mask} | batch


@registered
class QuestionAnswerer(TaskModel):
    """A model that finds the answers to a `question` in a `context`.

    `question` and `context` are the input columns. Labels are texts to find in
    the context, lists of such texts, or dicts of `text` and `answer_start`, as
    in SQuAD; "" means no answer. `predict` returns the texts of the answers, or
    "" if there is no answer.
    """

    kinds = ("question_answering",)


@registered
class Tagger(TaskModel):
    """A model that tags every word of a text.

    A text is a string or a list of words. In a `tf.data.Dataset` without tags,
    the lists of strings are batches of texts if any string in the data set
    contains a space; otherwise, each list contains the words of one text.

    `predict` returns the tags of each text's words; `words_and_tags` returns
    words with their tags.
    """

    kinds = ("token_classification",)

    def words_and_tags(self, texts: Sequence[str], **kwargs) -> list[list]:
        """Return the (word, tag) pairs of each text, or of a single text."""
        if isinstance(texts, str):
            return self.words_and_tags([texts], **kwargs)[0]
        words = [split_words(text) for text in checked_texts(texts, "x")]
        tags = self.values(self.predictions(words, **kwargs))
        pairs = zip(words, tags, strict=True)
        return [list(zip(w, t, strict=True)) for w, t in pairs]
