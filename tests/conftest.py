"""Setup that loads the shared fixtures into the processes that run tests."""

import pytest
from slow_cases import pytest_collection_modifyitems  # noqa: F401

# Required because a folder's conftest.py may import the module first.
pytest.register_assert_rewrite("shared_fixtures")


def pytest_configure(config):
    """Load `shared_fixtures`, unless worker processes run the tests.

    With `-n`, this process only distributes the tests, so it does not need
    TensorFlow, whose import takes seconds. TensorFlow's messages about
    processors are hidden.
    """
    if config.getoption("numprocesses", None):
        return
    plugins = config.pluginmanager
    capture = plugins.getplugin("capturemanager")
    capture.resume_global_capture()
    plugins.import_plugin("shared_fixtures")
    capture.suspend_global_capture()
    capture.read_global_capture()
