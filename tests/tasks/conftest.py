"""What the tests of tasks share: a tokenizer of whole words."""

import pytest
import tiny_tasks


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """The WordPiece tokenizer of `tiny_tasks`."""
    return tiny_tasks.make_tokenizer(tmp_path_factory.mktemp("words"))
