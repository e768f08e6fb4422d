"""The process that runs transformers for the tests in this folder."""

import importlib.util

import other_process
import pytest


@pytest.fixture(scope="session")
def transformers():
    """Return a function that calls `transformers_side` in another process."""
    for package in ("sentence_transformers", "torch", "transformers"):
        if importlib.util.find_spec(package) is None:  # without importing it
            pytest.skip(f"could not import {package}")
    with other_process.calling("transformers_side") as call:
        yield call
