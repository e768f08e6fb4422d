"""Fixtures for the tests of the library."""

import pytest
from tiny_fits import LABELS, RATE, compiled

from albert_tf.library.models import Classifier

SETTINGS = {"rate": RATE, "metrics": ["accuracy"], "seed": 2}


@pytest.fixture
def classifier(shallow):
    """Return a new compiled classifier, which a test may change."""
    return compiled(Classifier, shallow, LABELS, **SETTINGS)


@pytest.fixture(scope="session")
def same_classifier(shallow):
    """Return a compiled classifier for tests that do not change the model."""
    return compiled(Classifier, shallow, LABELS, **SETTINGS)
