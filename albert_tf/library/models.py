"""The models of the library, one for each kind of answer.

Shapes: B batch, C classes or choices, H hidden width, N examples.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from albert_tf.library.task_model import ClassModel, TaskModel
from albert_tf.model.layers import registered
from albert_tf.tasks.tagged_words import divided
from albert_tf.text.packing import checked_texts


@registered
class Classifier(ClassModel):
    """One of several classes, or with `multilabel=True` any number of them.

    Labels are names of classes or their numbers; of several classes lists of
    names, or 0 and 1 for each. Rows may have a share of each class instead,
    one-hot or soft. `predict` returns probabilities, float32 [N, C];
    `classify` the names. The network's outputs are logits [B, C].

    Options of `load`: `pairs`, for pairs of texts, and `multilabel`.
    """

    kinds = ("classification", "multilabel")
    options = ("pairs", "multilabel")

    def classify(self, *x, **kwargs) -> list:
        """Return the label of each example, or the tuple of its labels."""
        return self._answered(
            lambda found: [p.label for p in found], *x, **kwargs
        )


@registered
class PairClassifier(Classifier):
    """A `Classifier` of pairs: texts are a tuple of two columns, or pairs."""

    @classmethod
    def load(cls, path, labels=None, **kwargs):
        """Return the model of a folder; see `TaskModel.load`."""
        return super().load(path, labels, **{"pairs": True} | kwargs)


@registered
class Regressor(TaskModel):
    """A number, or several; `predict` returns float32 [N], or [N, C].

    For several numbers, pass their names as the `labels` of `load`, or their
    count as `num_labels`; labels in `fit` are then rows of numbers.

    Options of `load`: `pairs`, for pairs of texts.
    """

    kinds, options = ("regression",), ("pairs",)


@registered
class Embedder(TaskModel):
    """A vector of length one for each text; cosines say how alike texts are.

    `fit` learns from texts, two crops of which belong together; from pairs or
    triplets (a text, one that belongs to it, one that does not), a tuple of
    columns; or from pairs with scores. Shuffled batches of data in memory have
    no two pairs or triplets that share a text. `predict` and `encode` return
    float32 [N, H], which `albert_tf.search` and `similarity` compare.
    """

    kinds = ("embedding",)

    def encode(self, texts: Sequence[str], **kwargs) -> np.ndarray:
        """Return the vector of each text, float32 [N, H], without progress."""
        return self.predict(texts, **{"verbose": 0} | kwargs)


@registered
class MultipleChoice(ClassModel):
    """One of several choices: columns `context`, `question`, `choices`.

    Labels are numbers of choices from 0. `predict` returns probabilities,
    float32 [N, C], 0 where an example has fewer choices.
    """

    kinds = ("multiple_choice",)

    def with_task_inputs(self, batch):
        every = tf.ones(tf.shape(batch["input_ids"])[:2])
        return {"choice_mask": every} | batch


@registered
class QuestionAnswerer(TaskModel):
    """Spans of a context that answer a question: `question`, `context`.

    Labels are texts, which are sought in the context; lists of them; or
    dicts of `text` and `answer_start`, as in SQuAD; "" for no answer.
    `predict` returns the answers' texts, "" where there is none.
    """

    kinds = ("question_answering",)


@registered
class Tagger(TaskModel):
    """A tag for every word: texts are lists of words, or are divided.

    In a `tf.data.Dataset` without tags, lists of strings are batches of texts
    if any string has a space; otherwise they are the words of a text.

    `predict` returns the tags of each text's words; `words_and_tags` both.
    """

    kinds = ("token_classification",)

    def words_and_tags(self, texts: Sequence[str], **kwargs) -> list[list]:
        """Return (word, tag) for each word of texts, or of a lone text."""
        if isinstance(texts, str):
            return self.words_and_tags([texts], **kwargs)[0]
        words = [divided(text) for text in checked_texts(texts, "x")]
        tags = self.values(self.predictions(words, **kwargs))
        both = zip(words, tags, strict=True)
        return [list(zip(w, t, strict=True)) for w, t in both]
