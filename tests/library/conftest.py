"""Fixtures for the tests of the library."""

import keras
import pytest
from tiny_fits import LABELS, RATE

from albert_tf.library.models import Classifier
from albert_tf.training.keras_optimizers import AdamW


def new_classifier(folder):
    """Return a compiled model with a new head."""
    keras.utils.set_random_seed(2)
    model = Classifier.load(folder, LABELS)
    model.compile(AdamW(RATE), metrics=["accuracy"], run_eagerly=True)
    return model


@pytest.fixture
def classifier(shallow):
    """Return a new compiled classifier, which a test may change."""
    return new_classifier(shallow)


@pytest.fixture(scope="session")
def same_classifier(shallow):
    """Return a compiled classifier for tests that do not change the model."""
    return new_classifier(shallow)
