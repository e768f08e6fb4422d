"""Errors that `fit` and related methods raise."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_fits import LABELS

from albert_tf.base.errors import InputError
from albert_tf.library.models import Classifier
from albert_tf.training.keras_optimizers import AdamW

TEXTS = ["a good film", "a bad film"]
ONE, SPLIT = {"sample_weight": [1]}, {"validation_split": 0.99}
LIST = {"validation_data": [TEXTS, LABELS]}
ALONE = {"validation_data": (TEXTS,)}
STREAM = tf.data.Dataset.from_tensor_slices((TEXTS, list(LABELS)))
LATE = tf.data.Dataset.from_tensor_slices((TEXTS, ["bad", "x"])).batch(1)
NUMBERS = tf.data.Dataset.range(2)
IDS = {"input_ids": np.array([[2, 5, 3], [2, 6, 3]], np.int32)}
ENTROPY = keras.losses.SparseCategoricalCrossentropy()


class Batches(keras.utils.PyDataset):
    """A `PyDataset` with one batch of texts and labels."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return np.array(TEXTS), np.array([0, 1])


def of(name, *x, **how):
    """Return a function that calls a method of its first argument."""
    return lambda model, path: getattr(model, name)(*x, **how)


def load(*x, **how):
    """Return a function that loads a model from its second argument."""
    return lambda model, path: Classifier.load(path, *x, **how)


def untrained(model, path):
    Classifier.load(path, LABELS).fit(TEXTS, LABELS)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (of("fit", TEXTS, ["bad"]), "as many labels as texts"),
        (of("predict", []), "the same number of texts, at least one"),
        (of("fit", iter([(TEXTS, LABELS)])), "`tf.data.Dataset` with labels"),
        (of("fit", TEXTS, LABELS, **LIST), "`validation_data` must be a tuple"),
        (of("fit", TEXTS, LABELS, **ALONE), "`validation_data` must be a tupl"),
        (of("fit", ()), r"\(texts, labels, weights\). Received: parts=0"),
        (of("fit", (TEXTS, LABELS, [1, 1], 1)), "Received: parts=4"),
        (of("fit", IDS), "Ids need labels"),
        (of("evaluate", tf.data.Dataset.from_tensors(IDS)), "Ids need labels"),
        (of("train_on_batch", IDS), "Ids need labels"),
        (of("fit", IDS, [0, 2]), "must be from 0 to 1"),
        (of("fit", IDS, [[0], [2]]), "must be from 0 to 1"),
        (of("fit", IDS, np.array([-1, 0])), "must be from 0 to 1"),
        (of("fit", IDS, [0.3, 0.9]), "from 0 to 1, without a fraction"),
        (of("fit", IDS, np.array([[0.3], [1]])), "without a fraction"),
        (
            of("fit", IDS, ["bad", "x"]),
            r"y\[1\]: the label must be one of bad,",
        ),
        (of("fit", [1, 2], LABELS), "must be a list of strings"),
        (of("fit", TEXTS, ["bad", "x"]), "must be one of bad, good"),
        (of("fit", TEXTS, [0, 2]), "or a number below 2"),
        (of("fit", TEXTS, LABELS, **ONE), "`sample_weight` must have one"),
        (of("fit", TEXTS, LABELS, epochs="2"), "`epochs` must be a whole"),
        (of("fit", TEXTS, LABELS, epochs=1.5), "`epochs` must be a whole"),
        (of("fit", TEXTS, LABELS, **SPLIT), "both parts"),
        (of("fit", NUMBERS, **SPLIT), "pass `validation_data` along"),
        (of("predict", TEXTS, TEXTS), "must be a list of strings"),
        (of("predict", TEXTS, batch_size=-1), "`batch_size` must"),
        (of("predict"), "texts, at least one"),
        (of("predict", np.array("film")), "must be a list of str"),
        (of("predict", "film.tsv"), "must be a list of texts, or"),
        (of("predict", TEXTS, steps=1), "not accept `steps`"),
        (
            of("fit", TEXTS, LABELS, class_weight={"bad": -1}),
            "must be finite and at least 0",
        ),
        (
            of("fit", TEXTS, LABELS, class_weight={"ugly": 2.0}),
            "`class_weight`: the label must be one of bad, good",
        ),
        (of("fit", STREAM.take(0)), "must have at least one example"),
        (of("fit", TEXTS), "`y` must be given"),
        (of("fit", STREAM.map(lambda x, y: x)), "`y` must be giv"),
        (of("evaluate", LATE), "^y.* one of bad, good, or .*label='x'$"),
        (of("fit", STREAM, LABELS), "must be in the data set"),
        (of("fit", STREAM, **ONE), "must be in the data set"),
        *(
            (of(name, Batches()), "must return ids, as `tokenizer")
            for name in ("fit", "evaluate", "predict")
        ),
        (of("compile", loss=ENTROPY), "`from_logits=True`"),
        (of("compile", loss=ENTROPY.name), "`from_logits=True`"),
        (of("save", "film.h5"), "must be a `.keras`"),
        (load(), "`labels` must be given"),
        (load(["a", "a"]), "different labels"),
        (load(LABELS, rate=1), "must be among .* Received: rate=1"),
        (load(LABELS, 99), "`max_length` must"),
        (load(LABELS, max_seq_length=99), "`max_seq_length` must"),
        (lambda m, path: Classifier.load("/no", LABELS), "`path` must be a"),
        (untrained, "`compile` must be called before"),
    ],
)
def test_refuses_what_does_not_fit(same_classifier, shallow, action, message):
    """The error for each mistake states the rule that the mistake breaks."""
    with pytest.raises(InputError, match=message):
        action(same_classifier, shallow)


def test_the_usual_optimizer_is_that_of_none_alone(classifier):
    """Only None selects the default optimizer; an unknown name is an error."""
    classifier.compile(None, None)
    assert isinstance(classifier.optimizer, AdamW) and classifier.own_loss
    with pytest.raises(ValueError, match="optimizer identifier: autto"):
        classifier.compile("autto")


@pytest.mark.parametrize("splits", [["train"], ["train", "test"]])
@pytest.mark.parametrize("method", ["fit", "predict"])
def test_one_split_must_be_chosen(method, splits, same_classifier):
    """A data set with splits raises an error that lists its splits."""
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS})
    both = datasets.DatasetDict({name: rows for name in splits})
    rule = f"must be one of the splits {', '.join(splits)}. Received"
    with pytest.raises(InputError, match=rule):
        getattr(same_classifier, method)(both)
