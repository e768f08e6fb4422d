"""The quick tests run a test's first cases; `make slow` runs the others."""

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.slow_after(2)
@pytest.mark.parametrize("case", range(5))
def test_many(case): pass

@pytest.mark.slow_after(1)
@pytest.mark.parametrize("case", range(3))
def test_others(case): pass

@pytest.mark.parametrize("case", range(4))
def test_unmarked(case): pass
"""


@pytest.mark.parametrize("marks, number", [("not slow", 7), ("slow", 5)])
def test_every_case_runs_in_one_suite(pytester, marks, number):
    """Each case is either quick or slow; unmarked tests are quick."""
    pytester.makepyfile(TESTS)
    options = ["-p", "slow_cases", "-p", "no:cacheprovider", "-m", marks]
    pytester.runpytest(*options).assert_outcomes(
        passed=number, deselected=12 - number
    )
