"""What the builder's tests share: a corpus, and an unbroken build of it."""

import pytest
from tiny_corpus import settings, write_corpus

from albert_tf.data.builder import build


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder with a vocabulary and two text files of random words."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def whole(corpus, tmp_path_factory):
    """The output of an unbroken build in one process, and its metadata."""
    output = tmp_path_factory.mktemp("whole") / "out"
    return output, build.run(*settings(corpus, output))
