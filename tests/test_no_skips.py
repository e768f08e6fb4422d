"""In `make interchange`, skipped tests count as failures."""

import pytest

pytest_plugins = ["pytester"]

WHOLE = "def test_whole(): pass"
CASES = {
    "nothing": ("", 0),
    "a_test": (
        "import pytest\ndef test_a(): pytest.importorskip('no_such')",
        1,
    ),
    "a_module": ("import pytest\npytest.importorskip('no_such')", 1),
}


@pytest.mark.parametrize("skipped", CASES)
def test_a_run_that_skips_fails(pytester, skipped):
    """With the plugin, a run fails if a test or a module is skipped.

    Tests are skipped here because a package is missing.
    """
    code, status = CASES[skipped]
    pytester.makepyfile(test_whole=WHOLE, test_other=code)
    assert pytester.runpytest("-p", "no:cacheprovider").ret == 0
    result = pytester.runpytest("-p", "no_skips", "-p", "no:cacheprovider")
    assert result.ret == status
    result.assert_outcomes(passed=1, skipped=status)
    if status:
        result.stdout.fnmatch_lines(["SKIPPED test_other*no_such*"])
