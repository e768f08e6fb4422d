"""What the tests of the library share."""

import keras
import pytest
from tiny_fits import LABELS, RATE

from albert_tf.library.models import Classifier
from albert_tf.training.keras_optimizers import AdamW


def new_classifier(folder):
    """Return a model with a new head, ready to learn."""
    keras.utils.set_random_seed(2)
    model = Classifier.load(folder, LABELS)
    model.compile(AdamW(RATE), metrics=["accuracy"], run_eagerly=True)
    return model


@pytest.fixture
def classifier(shallow):
    """A model that no other test has seen."""
    return new_classifier(shallow)


@pytest.fixture(scope="session")
def same_classifier(shallow):
    """A model for tests that leave it as it is."""
    return new_classifier(shallow)
