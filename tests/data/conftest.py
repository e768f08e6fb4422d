"""Fixtures for the builder's tests: a corpus and a finished build."""

import pytest
from tiny_corpus import make_records, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Return a folder with a vocabulary and two text files of random words."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def whole(corpus, tmp_path_factory):
    """Return the output folder and metadata of an uninterrupted build."""
    output = tmp_path_factory.mktemp("whole") / "out"
    return output, make_records(corpus, output)
