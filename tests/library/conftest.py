"""What the tests of the library share."""

import keras
import pytest
from tiny_fits import LABELS, RATE

from albert_tf.library.models import Classifier
from albert_tf.training.optimization.keras_optimizers import AdamW


@pytest.fixture
def classifier(shallow):
    """A model with a new head, ready to learn."""
    keras.utils.set_random_seed(2)
    model = Classifier.load(shallow, LABELS)
    model.compile(AdamW(RATE), metrics=["accuracy"], run_eagerly=True)
    return model
