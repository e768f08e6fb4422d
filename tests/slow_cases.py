"""The mark `slow_after(n)`: a test's cases after the first n are slow."""

import collections

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the slow cases before pytest selects tests by marks."""
    seen = collections.Counter()
    for item in items:
        if mark := item.get_closest_marker("slow_after"):
            seen[item.function] += 1
            if seen[item.function] > mark.args[0]:
                item.add_marker(pytest.mark.slow)
